"""Assigns global ids: decides how a row of a source's `_cluster` changes the aggregator's `_cluster`.

The rules are those of the project's documents on server ids (000) and on a chain of aggregators (001). The primary key
is the uuid. A row of a source's `_cluster` with a known uuid changes only the applier map of that source, which maps
the source's replica ids to global ids; a new uuid is inserted with a free global id. An id is never reused, not even
that of an expelled instance. Subscription daemons, which the headers of spools name, have ids above those of all
instances. Each change of `_cluster` is made by the aggregator and takes its next lsn; a row that changes nothing takes
no lsn, so that no change circulates in a loop.

Two allocations:

- `counter`: a new uuid gets the global id after the highest one.
- `preserve`: a new uuid gets its replica id as its global id; if that id is taken, it gets the lowest free id above.
  If 5 is the id of uuid5, `{5, uuid6}` becomes `{6, uuid6}`, and the source's map gets `{5: 6}`.

Pure; `warehouse.system_tables.cluster` stores the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

Allocation = Literal["counter", "preserve"]

OWN_REPLICASET_UUID = "aggregator"
"""The `replicaset_uuid` of the aggregator's own row."""

OWN_REPLICASET_ID = 0
"""The `replicaset_id` of the aggregator's own row."""


FIRST_DAEMON_ID = 1_000_001
"""The first global id of subscription daemons. They sign no rows, so the ids below are left to instances: above all
those that fit into a vclock."""


@dataclass(frozen=True)
class Member:
    """One row of `_cluster`: an instance."""

    global_id: int | None
    uuid: str | None
    """Both are None if the replicaset is known, but none of its instances yet."""
    local_id: int | None
    """The instance's replica id in its replicaset; None for an anonymous replica, which no row of `_cluster` names."""
    replicaset_id: int
    """The aggregator's short number for the replicaset."""
    replicaset_uuid: str
    lsn: int = 0
    """The aggregator's lsn of the last change of the row."""
    expelled: bool = False
    """Whether the replicaset has removed the instance, which keeps its global id."""

    @property
    def key(self) -> str:
        """The key of the row: the instance's uuid, or the replicaset's if there is none."""
        return self.uuid or self.replicaset_uuid

    @property
    def is_daemon(self) -> bool:
        """Whether it is a subscription daemon, which fills a spool: no server, and the origin of no row."""
        return self.global_id is not None and self.global_id >= FIRST_DAEMON_ID


@dataclass(frozen=True)
class IncomingMember:
    """One row of a source's `_cluster`, or the instance that a log file's header names."""

    uuid: str | None
    """None if only the replicaset is known."""
    local_id: int | None
    """The instance's replica id; None if a file's header names the instance, not a row of `_cluster`."""
    replicaset_uuid: str
    expelled: bool = False
    is_daemon: bool = False
    """Whether the header is that of a spool's file, which names a subscription daemon."""


@dataclass(frozen=True)
class Cluster:
    """The current content of the aggregator's `_cluster`."""

    allocation: Allocation = "counter"
    """`counter` or `preserve`."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """By `Member.key`."""

    @property
    def lsn(self) -> int:
        """The aggregator's lsn of its last change."""
        return max((member.lsn for member in self.members.values()), default=0)

    @property
    def own_member(self) -> Member | None:
        """The row of the aggregator itself."""
        return next((m for m in self.members.values() if m.replicaset_uuid == OWN_REPLICASET_UUID), None)

    @cached_property
    def global_ids(self) -> Mapping[str, int]:
        """Global ids by uuid."""
        return {m.uuid: m.global_id for m in self.members.values() if m.uuid and m.global_id is not None}

    @cached_property
    def instance_uuids(self) -> Mapping[int, str]:
        """The uuid of each instance, by global id."""
        return {global_id: uuid for uuid, global_id in self.global_ids.items()}

    @cached_property
    def replicaset_ids(self) -> Mapping[str, int]:
        """The aggregator's replicaset numbers by uuid."""
        return {member.replicaset_uuid: member.replicaset_id for member in self.members.values()}

    def with_change(self, change: ClusterChange) -> Cluster:
        """Return the table after a change."""
        rest = {key: member for key, member in self.members.items() if key != change.key}
        return replace(self, members={**rest, change.row.key: change.row})


@dataclass(frozen=True)
class ClusterChange:
    """A change by the aggregator itself: `row` replaces the row with this `key`, or is inserted."""

    key: str
    row: Member


@dataclass(frozen=True)
class Decision:
    """The effect of one incoming row."""

    cluster: Cluster
    map_entry: tuple[int, int] | None = None
    """The entry (replica id, global id) of the applier map of the row's source; None if the row assigns no id."""
    change: ClusterChange | None = None
    """The change to write; None if the table does not change."""


def decide_row(cluster: Cluster, new: IncomingMember) -> Decision:
    """Decide the effect of one row of a source's `_cluster`, as a before_replace trigger of `_cluster` does."""
    old = cluster.members.get(new.uuid or new.replicaset_uuid)
    row = _row_to_insert(cluster, new) if old is None else _row_after_update(old, new)
    if row is None or row == old:
        return Decision(cluster, _map_entry(new, old))
    key = old.key if old is not None else _placeholder_key(cluster, new) or row.key
    change = ClusterChange(key, replace(row, lsn=cluster.lsn + 1))
    return Decision(cluster.with_change(change), _map_entry(new, change.row), change)


def _row_to_insert(cluster: Cluster, new: IncomingMember) -> Member | None:
    if new.expelled or (new.uuid is None and new.replicaset_uuid in cluster.replicaset_ids):
        return None
    global_id = None if new.uuid is None else _next_global_id(cluster, new)
    number = _replicaset_id(cluster, new.replicaset_uuid)
    return Member(global_id, new.uuid, new.local_id, number, new.replicaset_uuid)


def _row_after_update(old: Member, new: IncomingMember) -> Member:
    # The row keeps its replicaset: a replicaset without rows would lose its number.
    if old.replicaset_uuid != new.replicaset_uuid:
        return old
    if new.expelled:
        return replace(old, expelled=True)
    if new.local_id is None or not (old.expelled or old.local_id is None):
        return old
    return replace(old, local_id=new.local_id, expelled=False)


def _replicaset_id(cluster: Cluster, uuid: str) -> int:
    numbers = cluster.replicaset_ids
    if uuid == OWN_REPLICASET_UUID:
        return OWN_REPLICASET_ID
    return numbers.get(uuid, max(numbers.values(), default=OWN_REPLICASET_ID) + 1)


def _placeholder_key(cluster: Cluster, new: IncomingMember) -> str | None:
    """Return the key of the replicaset's placeholder row, which its first instance takes over."""
    row = cluster.members.get(new.replicaset_uuid)
    return row.key if row is not None and row.uuid is None else None


def _map_entry(new: IncomingMember, member: Member | None) -> tuple[int, int] | None:
    """Return the entry (replica id, global id) for the applier map of a row's source; None if the row assigns no id."""
    if member is None or member.global_id is None or new.local_id is None or new.expelled:
        return None
    return new.local_id, member.global_id


def _next_global_id(cluster: Cluster, new: IncomingMember) -> int:
    """Return the global id that a new instance or daemon gets."""
    taken = {m.global_id for m in cluster.members.values() if m.global_id is not None}
    if new.is_daemon:
        return max({FIRST_DAEMON_ID - 1, *taken}) + 1
    if cluster.allocation == "counter":
        return max((number for number in taken if number < FIRST_DAEMON_ID), default=0) + 1
    # `preserve` tries the instance's replica id first.
    candidate = new.local_id or 1
    while candidate in taken:
        candidate += 1
    return candidate


def apply_incoming(
    cluster: Cluster, rows: Iterable[IncomingMember], own_uuid: str
) -> tuple[Cluster, tuple[ClusterChange, ...]]:
    """Apply incoming rows in order as one commit; return the new table and its changes.

    Rows that undo each other change nothing, so a batch that is repeated after a kill makes no second change. If the
    aggregator is not a member yet, this call adds it: with the allocation `counter` before the first row, with
    `preserve` after the last row, so that it takes an id that no instance needs.
    """
    incoming = list(rows)
    if cluster.own_member is None:
        own = IncomingMember(own_uuid, None, OWN_REPLICASET_UUID)
        incoming = [own, *incoming] if cluster.allocation == "counter" else [*incoming, own]
    after, keys = cluster, dict[str, str]()
    for row in incoming:
        decision = decide_row(after, row)
        after = decision.cluster
        if decision.change is not None:
            # A placeholder row is stored under its replicaset's uuid, so its change needs that key.
            keys[decision.change.row.key] = keys.pop(decision.change.key, decision.change.key)
    changed = {
        k: after.members[k] for k in keys if not _is_same_row(cluster.members.get(k), after.members[k])
    }
    signed = [
        ClusterChange(keys[k], replace(row, lsn=cluster.lsn + 1 + i))
        for i, (k, row) in enumerate(changed.items())
    ]
    result = cluster
    for change in signed:
        result = result.with_change(change)
    return result, tuple(signed)


def _is_same_row(one: Member | None, other: Member) -> bool:
    return one is not None and replace(one, lsn=0) == replace(other, lsn=0)
