"""The writer's state between two batches: immutable, loaded from the tables at the start, replaced by each batch.

Pure. `pipeline.commit.load` loads it. All that must survive a restart is also in the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from schemas.errors import TupleError
from schemas.iproto import VCLOCK_MAX
from schemas.space import KeyParts, Space, faulty_space, space_of_rows
from schemas.system_tuples import fields_of
from udfs.remap.cluster_replace import FIRST_DAEMON_ID


@dataclass(frozen=True)
class VshardBucket:
    """The state of a bucket in one replicaset."""

    status: str
    peer: str | None = None
    """The replicaset that it is sent to, or received from, as vshard names it."""
    since: datetime | None = None
    """When the replicaset received the bucket: the timestamp of its row `receiving`, or else of its first row (in a
    snapshot, the time at which the snapshot was written)."""
    timestamp: datetime | None = None
    doubled_with: frozenset[int] = frozenset()
    """Ids of the other replicasets in which the bucket is active."""


Buckets = Mapping[int, VshardBucket]


@dataclass(frozen=True)
class SpaceDefinition:
    """The encoded tuples that define a space: one of `_space`, and those of `_index` by index id."""

    space: bytes
    indexes: Mapping[int, bytes] = field(default_factory=dict)

    def decoded(self) -> Space:
        """Return the space that the tuples define; malformed tuples give a space with a `fault`."""
        return self._decoded

    @cached_property
    def _decoded(self) -> Space:
        space = _fields_or_empty(self.space)
        try:
            return space_of_rows(space, self.indexes)
        except TupleError as error:
            return faulty_space(space, error.reason)


def _fields_or_empty(data: bytes) -> Sequence[Any]:
    try:
        return fields_of(data, "a row of _space")
    except TupleError:
        return ()


@dataclass(frozen=True)
class ApplierMapEntry:
    """Rows of the replica id `local_id` with lsn >= `since_lsn` come from the instance `global_id`."""

    local_id: int
    global_id: int
    since_lsn: int


@dataclass(frozen=True)
class ReplicasetState:
    """The state of a replicaset after the last batch that read its log."""

    id: int
    """The aggregator's number of the replicaset."""
    uuid: str
    settled: Mapping[int, int] = field(default_factory=dict)
    """The vclock of the rows that are in `_changelog`: for each replica id, the last lsn."""
    read: Mapping[int, int] = field(default_factory=dict)
    """The vclock of all rows read so far, also of those that wait in `_pending`."""
    cluster: Mapping[int, str] = field(default_factory=dict)
    """The replicaset's `_cluster`: for each replica id, the instance uuid."""
    applier_map: tuple[ApplierMapEntry, ...] = ()
    """Oldest entries first."""
    spaces: Mapping[int, SpaceDefinition] = field(default_factory=dict)
    """User spaces by space id."""
    tables: Mapping[int, str] = field(default_factory=dict)
    """For each space id, the table that has the space's versions."""
    primary_keys: Mapping[int, frozenset[KeyParts]] = field(default_factory=dict)
    """For each space id, all primary keys that the space has had so far (`schemas.space.key_parts`)."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """For each space whose new rows go to `_changelog` but not to its table, the reason."""
    applied_definitions: Mapping[int, Space] = field(default_factory=dict)
    """For each refused space that has rows in its table, the definition by which the last rows were applied."""
    leader: str | None = None
    """The instance (uuid) whose log was read last. Component 0 of `settled` and `read` counts its local changes."""
    last_source: str | None = None
    local_lsns: Mapping[str, int] = field(default_factory=dict)
    """For each instance uuid, the lsn of the last change of a local space that is in `_changelog`."""
    id_translations: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """For each source whose `_cluster` differs from `cluster`, a map from the source's replica ids to those in
    `cluster`; only ids that differ are in the map."""
    has_loss: bool = False
    """Whether rows of its log are lost, or differ between members. If so, the key of an INSERT may already exist."""
    unknown_spaces: frozenset[int] = frozenset()
    """Ids of spaces whose rows wait in `_pending` for the space's definition."""
    described_spaces: Mapping[int, bytes] = field(default_factory=dict)
    """For each space that a REPLACE of `_space` has described, and whose creation was not read, its `_space` tuple."""
    server_version: str | None = None
    """The Tarantool version that wrote the last row read. In memory only."""
    last_file: str | None = None
    """The last file that was read, in `last_source`. In memory only."""
    cluster_by_source: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """For each source whose `_cluster` was read, its content: the instance uuid of each replica id. In memory only."""
    buckets: Mapping[int, VshardBucket] = field(default_factory=dict)
    """vshard's buckets by bucket id, if the replicaset is a storage of vshard."""
    last_log_time: datetime | None = None
    """The latest timestamp of a settled row, if one is known."""

    def definition(self, space_id: int) -> Space | None:
        """Return the definition of the rows that a space has in its table; None if it has no rows in a table.

        The table's rows of a refused space do not change, so its newer definitions do not apply to them.
        """
        if space_id in self.refused:
            return self.applied_definitions.get(space_id)
        rows = self.spaces.get(space_id)
        return None if rows is None else rows.decoded()

    @property
    def has_waiting_rows(self) -> bool:
        """Whether rows of the replicaset wait in `_pending`."""
        return dict(self.read) != dict(self.settled)


@dataclass(frozen=True)
class TableWriters:
    """Which replicasets (ids) have written to a table, and whether `_versions` has unfit versions of its keys."""

    replicasets: frozenset[int] = frozenset()
    has_unfit: bool = False


@dataclass(frozen=True)
class State:
    """The state of all replicasets and tables, which one batch passes to the next."""

    epoch: int = -1
    """The number of the last committed epoch; -1 before the first."""
    replicasets: Mapping[str, ReplicasetState] = field(default_factory=dict)
    """By uuid."""
    global_ids: Mapping[str, int] = field(default_factory=dict)
    """For each instance uuid, its global id, as in the aggregator's `_cluster`."""
    writers: Mapping[str, TableWriters] = field(default_factory=dict)
    """By table."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """For each table, the Delta version that the last epoch names."""
    aggregator_id: int | None = None
    aggregator_lsn: int = 0
    """The lsn of the aggregator's last change of `_cluster` that is in `_changelog`."""
    settings: str | None = None
    """The settings of the last batch (`pipeline.plan.settings`); None before the first."""
    undecided_buckets: frozenset[int] = frozenset()
    """Ids of vshard's buckets that seem active in two replicasets, but one of the two logs may not be read far enough.
    """

    set_aside: Mapping[str, str] = field(default_factory=dict)
    """For each table of a space that somebody else has changed, or that is lost, what was found: no batch writes it.
    In memory only."""

    @property
    def instance_uuids(self) -> dict[int, str]:
        """The uuid of each instance by its global id; subscription daemons, which sign no rows, are left out."""
        return {number: uuid for uuid, number in self.global_ids.items() if number < FIRST_DAEMON_ID}

    def with_replicasets(self, changed: Mapping[str, ReplicasetState]) -> State:
        """Return the state with some replicasets replaced."""
        return replace(self, replicasets={**self.replicasets, **changed})

    def vclocks(self) -> dict[str, dict[int, int]]:
        """Return the settled vclock of each replicaset, by replicaset uuid."""
        return {uuid: dict(one.settled) for uuid, one in self.replicasets.items()}

    def start_vclocks(self) -> dict[str, dict[int, int]]:
        """Return a vclock from which any source of a replicaset can be read without a gap, by replicaset uuid."""
        return {uuid: _start_vclock(one) for uuid, one in self.replicasets.items()}

    def waiting_start_vclocks(self) -> dict[str, dict[int, int]]:
        """Return `start_vclocks` of those replicasets that have waiting rows."""
        return {uuid: _start_vclock(one) for uuid, one in self.replicasets.items() if one.has_waiting_rows}


def _start_vclock(replicaset: ReplicasetState) -> dict[int, int]:
    """Return the component-wise minimum of the settled vclock in the replica ids of each source."""
    lowest = {i: lsn for i, lsn in replicaset.settled.items() if i < VCLOCK_MAX}
    for ids in replicaset.id_translations.values():
        vclock = {i: replicaset.settled.get(ids.get(i, i), 0) for i in {*lowest, *ids}}
        lowest = {i: min(lowest.get(i, 0), lsn) for i, lsn in vclock.items()}
    return lowest
