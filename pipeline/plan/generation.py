"""A snapshot that a replicaset's log continues with behind a hole: a new generation of its state.

A spool bridges logs that no server has any more by a new snapshot; a directory of a server that has collected its logs
continues from one of the server's own. For the tables it is all that the replicaset holds
at its vclock: keys and spaces that it lacks are gone, tuples that differ are changed, all others stay as they are,
with the origin and the time that they have. What was missing is in no log; `_gaps` names it as `bridged`.
A snapshot that heals (`pipeline.requests.generation`) may be behind the tables.

Pure. Not here: which keys those are (`pipeline.reduce`), where a stream meets a generation
(`sources.xlog.stream.read_ahead`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.plan.control import (
    ControlChanges,
    IdRegistration,
    SpaceChange,
    SpaceDefinition,
    follow_control_rows,
    row_space_id,
)
from pipeline.plan.position import LogPosition, LogSegment
from pipeline.plan.settle import LsnGap
from pipeline.plan.summary import ControlRow
from pipeline.state import ReplicasetState
from schemas.iproto import SystemSpace
from schemas.states import SpaceEvent
from sources.xlog.format.vclock import joined, not_beyond, shared


@dataclass(frozen=True)
class SnapshotGeneration:
    """The snapshot with which a replicaset's part of a batch begins.

    Parameters
    ----------
    segment : int
    settled : mapping of int to int
        The replicaset's vclock with it.
    bridged : tuple of LsnGap
        What is in no log.
    spaces : frozenset of int, or None
        The spaces that it replaces; None for all.

    """

    segment: int
    settled: Mapping[int, int]
    bridged: tuple[LsnGap, ...]
    spaces: frozenset[int] | None = None

    @property
    def position(self) -> LogPosition:
        """The place before its first row."""
        return LogPosition(self.segment, 0, 0)


def find_generation(known: ReplicasetState | None, parts: Sequence[LogSegment]) -> SnapshotGeneration | None:
    """Return the generation that a batch brings; a replicaset's first snapshot is none.

    Parameters
    ----------
    known : ReplicasetState or None
        Before the batch.
    parts : sequence of LogSegment
        Of the replicaset, in order; rows that waited may come first.

    """
    first = next((part for part in parts if part.segment >= 0), None)
    if known is None or first is None or not first.is_snapshot:
        return None
    ids = known.id_translations.get(first.source, {})
    vclock = {ids.get(i, i): lsn for i, lsn in shared(first.vclock).items()}
    if not (first.heals or first.is_generation) and not_beyond(vclock, known.settled):
        return None
    position = LogPosition(first.segment, 0, 0)
    gaps = tuple(
        LsnGap(i, known.settled.get(i, 0) + 1, lsn, position)
        for i, lsn in sorted(vclock.items())
        if lsn > known.settled.get(i, 0)
    )
    return SnapshotGeneration(first.segment, joined(known.settled, vclock), gaps, first.spaces)


def follow_generation(
    known: ReplicasetState,
    generation: SnapshotGeneration | None,
    rows: Iterable[ControlRow],
    snapshots: frozenset[int],
) -> ControlChanges:
    """Follow a replicaset's control rows (`pipeline.plan.control.follow_control_rows`), those of a generation as a whole state.

    A space that the generation defines as it was is `renewed`; any other space is dropped before the generation's
    rows, and defined again by them, if at all. An instance that its `_cluster` lacks was expelled. Where it replaces
    some spaces only, all others, and the instances, stay as they are.
    """
    if generation is None:
        return follow_control_rows(known.spaces, known.cluster, rows, snapshots)
    all_rows = list(rows)
    chosen = generation.spaces
    if chosen is not None:
        all_rows = [
            row for row in all_rows if _defines_one_of(row, chosen) or row.space_id == SystemSpace.CLUSTER
        ]
    own = [row for row in all_rows if row.position.segment == generation.segment]
    alone = follow_control_rows({}, {}, own, snapshots)
    renewed = {i for i, old in known.spaces.items() if _is_same_definition(old, alone.spaces.get(i))}
    replaced = {i: old for i, old in known.spaces.items() if chosen is None or i in chosen}
    lasting = {i: old for i, old in known.spaces.items() if i in renewed or i not in replaced}
    begun = [
        SpaceChange(
            generation.position,
            i,
            SpaceEvent.RENEWED if i in renewed else SpaceEvent.DROPPED,
            old,
            None,
            None,
        )
        for i, old in replaced.items()
    ]
    if chosen is not None:
        rest = follow_control_rows(lasting, known.cluster, all_rows, snapshots)
        return replace(rest, changes=(*begun, *rest.changes))
    members = {registration.local_id for registration in alone.registrations}
    gone = [IdRegistration(generation.position, i, None) for i in known.cluster if i not in members]
    cluster = {i: uuid for i, uuid in known.cluster.items() if i in members}
    rest = follow_control_rows(lasting, cluster, all_rows, snapshots)
    return replace(rest, registrations=(*gone, *rest.registrations), changes=(*begun, *rest.changes))


def _defines_one_of(row: ControlRow, spaces: frozenset[int]) -> bool:
    """Whether a row defines one of these spaces."""
    return (
        row.space_id in (SystemSpace.SPACE, SystemSpace.INDEX) and row_space_id(row.key, row.tuple) in spaces
    )


def _is_same_definition(old: SpaceDefinition, new: SpaceDefinition | None) -> bool:
    return new is not None and old.decoded() == new.decoded()
