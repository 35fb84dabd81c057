"""A snapshot that a replicaset's log goes on from behind a hole: a generation of its state.

A spool bridges logs that no server has any more by a new snapshot. For the tables it is all that the replicaset holds
at its vclock: keys and spaces that it lacks are gone, tuples that differ are changed, all others stay as they are,
with the origin and the time that they have. What was missing is in no log and stands in `_gaps` as `bridged`.
One that heals (`jobs.batch.heal`) may be behind the tables.

Pure. Not here: which keys those are (`jobs.batch.rows`), where a stream meets one (`sources.xlog.course`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.batch.control import Control, Registration, SpaceChange, SpaceRows, follow
from jobs.batch.settle import Gap
from jobs.batch.state import Replicaset
from jobs.batch.stretch import Stretch
from jobs.batch.summary import ControlRow, Order
from sources.xlog.vclock import joined, not_beyond, shared


@dataclass(frozen=True)
class Generation:
    """The snapshot with which a replicaset's part of a batch begins.

    Parameters
    ----------
    segment : int
    settled : mapping of int to int
        The replicaset's vclock with it.
    bridged : tuple of Gap
        What is in no log.

    """

    segment: int
    settled: Mapping[int, int]
    bridged: tuple[Gap, ...]

    @property
    def order(self) -> Order:
        """The place before its first row."""
        return Order(self.segment, 0, 0)


def generation_of(known: Replicaset | None, parts: Sequence[Stretch]) -> Generation | None:
    """Return the generation that a batch brings; a replicaset's first snapshot is none.

    Parameters
    ----------
    known : Replicaset or None
        Before the batch.
    parts : sequence of Stretch
        Of the replicaset, in order; rows that waited may stand in front.

    """
    first = next((part for part in parts if part.segment >= 0), None)
    if known is None or first is None or not first.is_snapshot:
        return None
    ids = known.ids.get(first.source, {})
    vclock = {ids.get(i, i): lsn for i, lsn in shared(first.vclock).items()}
    if not first.heals and not_beyond(vclock, known.settled):
        return None
    order = Order(first.segment, 0, 0)
    gaps = tuple(
        Gap(i, known.settled.get(i, 0) + 1, lsn, order)
        for i, lsn in sorted(vclock.items())
        if lsn > known.settled.get(i, 0)
    )
    return Generation(first.segment, joined(known.settled, vclock), gaps)


def followed(
    known: Replicaset, generation: Generation | None, rows: Iterable[ControlRow], snapshots: frozenset[int]
) -> Control:
    """Follow a replicaset's control rows (`jobs.batch.control.follow`), a generation's as what they are.

    A space that the generation defines as it was is `renewed`; any other one is dropped before its rows, and defined
    anew by them, if at all. An instance that its `_cluster` lacks was expelled.
    """
    if generation is None:
        return follow(known.spaces, known.cluster, rows, snapshots)
    told = list(rows)
    alone = follow({}, {}, (row for row in told if row.order.segment == generation.segment), snapshots)
    renewed = {i for i, old in known.spaces.items() if _same(old, alone.spaces.get(i))}
    kept = {i: old for i, old in known.spaces.items() if i in renewed}
    begun = [
        SpaceChange(generation.order, i, "renewed" if i in renewed else "dropped", old, None, None)
        for i, old in known.spaces.items()
    ]
    members = {registration.local_id for registration in alone.registrations}
    gone = [Registration(generation.order, i, None) for i in known.cluster if i not in members]
    cluster = {i: uuid for i, uuid in known.cluster.items() if i in members}
    rest = follow(kept, cluster, told, snapshots)
    return Control((*gone, *rest.registrations), (*begun, *rest.changes), rest.spaces)


def _same(old: SpaceRows, new: SpaceRows | None) -> bool:
    return new is not None and old.decoded() == new.decoded()
