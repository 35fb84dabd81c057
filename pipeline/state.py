"""What the writer knows between two batches: frozen data, loaded from the tables once and advanced by each batch.

Pure. Loading it is `pipeline.commit.load`; nothing in here is ever the only copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from schemas.iproto import VCLOCK_MAX
from schemas.space import KeyParts

if TYPE_CHECKING:
    from pipeline.plan.control import SpaceDefinition
    from pipeline.plan.vshard import VshardBucket


@dataclass(frozen=True)
class MapEntry:
    """Rows of `local_id` with lsn >= `since_lsn` are the instance `global_id`'s."""

    local_id: int
    global_id: int
    since_lsn: int


@dataclass(frozen=True)
class ReplicasetState:
    """One replicaset as far as it was followed.

    Parameters
    ----------
    id : int
        The aggregator's short number for the uuid.
    uuid : str
    settled : mapping of int to int
        Replica id to the last lsn that is in `_changelog`.
    read : mapping of int to int
        The same with the rows that wait in `_pending`.
    cluster : mapping of int to str
        Its `_cluster` now: replica id to instance uuid.
    applier_map : tuple of MapEntry
        Its applier map, oldest entries first.
    spaces : mapping of int to SpaceDefinition
        Its user spaces.
    tables : mapping of int to str
        Space id to the table where the space's versions are.
    primary_keys : mapping of int to frozenset
        Space id to the primary keys that the space has had (`schemas.space.key_parts`).
    refused : mapping of int to str
        Space id to the reason why it is followed in `_changelog` only.
    leader : str or None
        The instance whose log was read last; component 0 of the vclocks is its own.
    last_source : str or None
        The source that was read last.
    local_lsns : mapping of str to int
        Instance uuid to its component 0: the last change of its local spaces that is in `_changelog`.
    id_translations : mapping of str to mapping of int to int
        By source whose `_cluster` differs (document 001): its replica ids to those that are used here.
    has_loss : bool
        Whether rows of its log are missing for good or differ from those of a member: then an INSERT does not prove
        that its key is new.
    unknown_spaces : frozenset of int
        Ids of spaces whose rows wait in `_pending` for their definition.
    server_version : str or None
        The version of the server that wrote the last row of it. In memory only.
    last_file : str or None
        The file that was read last, of `source`. In memory only.
    buckets : mapping of int to VshardBucket
        vshard's buckets, where the replicaset is a storage of vshard.
    log_time : datetime or None
        The latest time of a settled row of its log, so far as it is known.
    views : mapping of str to mapping of int to str
        By source whose `_cluster` was read: replica id to instance uuid. In memory only.

    """

    id: int
    uuid: str
    settled: Mapping[int, int] = field(default_factory=dict)
    read: Mapping[int, int] = field(default_factory=dict)
    cluster: Mapping[int, str] = field(default_factory=dict)
    applier_map: tuple[MapEntry, ...] = ()
    spaces: Mapping[int, SpaceDefinition] = field(default_factory=dict)
    tables: Mapping[int, str] = field(default_factory=dict)
    primary_keys: Mapping[int, frozenset[KeyParts]] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    leader: str | None = None
    last_source: str | None = None
    local_lsns: Mapping[str, int] = field(default_factory=dict)
    id_translations: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    has_loss: bool = False
    unknown_spaces: frozenset[int] = frozenset()
    server_version: str | None = None
    last_file: str | None = None
    views: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    buckets: Mapping[int, VshardBucket] = field(default_factory=dict)
    log_time: datetime | None = None

    @property
    def has_waiting_rows(self) -> bool:
        """Whether rows of it wait in `_pending`."""
        return dict(self.read) != dict(self.settled)


@dataclass(frozen=True)
class TableWriters:
    """Who wrote rows of one table, and whether it has versions without a usable tuple, which are in `_versions`."""

    replicasets: frozenset[int] = frozenset()
    has_unfit: bool = False


@dataclass(frozen=True)
class State:
    """What one batch passes to the next.

    Parameters
    ----------
    epoch : int
        The last committed one; -1 before the first.
    replicasets : mapping of str to ReplicasetState
        By uuid.
    global_ids : mapping of str to int
        Instance uuid to global id, as in `_cluster`.
    writers : mapping of str to TableWriters
        By table.
    versions : mapping of str to int
        Table to its Delta version, as the last epoch names it.
    own_id : int or None
        The aggregator's own global id.
    own_lsn : int
        Its last lsn that is in `_changelog`.
    settings : str or None
        What the configuration of the last batch said (`pipeline.plan.settings`); None where it was not stored.
    undecided_buckets : frozenset of int
        vshard's buckets that two replicasets seem to hold at once, as long as one of the logs may be behind.

    """

    epoch: int = -1
    replicasets: Mapping[str, ReplicasetState] = field(default_factory=dict)
    global_ids: Mapping[str, int] = field(default_factory=dict)
    writers: Mapping[str, TableWriters] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    own_id: int | None = None
    own_lsn: int = 0
    settings: str | None = None
    undecided_buckets: frozenset[int] = frozenset()

    def with_replicasets(self, changed: Mapping[str, ReplicasetState]) -> State:
        """Return the state with some replicasets replaced."""
        return replace(self, replicasets={**self.replicasets, **changed})

    def vclocks(self) -> dict[str, dict[int, int]]:
        """Return the settled vclock of each replicaset in its own replica ids."""
        return {uuid: dict(one.settled) for uuid, one in self.replicasets.items()}

    def start_vclocks(self) -> dict[str, dict[int, int]]:
        """Return from where each replicaset can be read without a hole, whichever of its sources is read.

        Where sources have different ids, that is the lowest position over the sources.
        """
        return {uuid: _lowest_vclock(one) for uuid, one in self.replicasets.items()}

    def waiting_vclocks(self) -> dict[str, dict[int, int]]:
        """Return the same for the replicasets whose rows wait."""
        return {uuid: _lowest_vclock(one) for uuid, one in self.replicasets.items() if one.has_waiting_rows}


def _lowest_vclock(one: ReplicasetState) -> dict[int, int]:
    """Return the component-wise minimum of the settled vclock over the sources' own ids."""
    own = {i: lsn for i, lsn in one.settled.items() if i < VCLOCK_MAX}
    for ids in one.id_translations.values():
        theirs = {i: one.settled.get(ids.get(i, i), 0) for i in {*own, *ids}}
        own = {i: min(own.get(i, 0), lsn) for i, lsn in theirs.items()}
    return own
