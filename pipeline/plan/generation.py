"""Applies a generation: a snapshot that replaces a replicaset's state where logs are missing.

If no server has the logs of a gap, the spool gets a new snapshot instead. A server's directory whose old logs were
collected continues from the server's own snapshot. The snapshot is the replicaset's complete state at its vclock: keys
and spaces that are not in it are deleted, differing tuples are updated, and equal ones keep their origin and time. The
missing rows are in no log; they are recorded in `_gaps` as `bridged`. A snapshot for healing
(`pipeline.requests.generation`) may be older than the tables.

Pure. `pipeline.reduce` finds the keys that change; `sources.xlog.stream.read_ahead` finds generations in a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.plan.control import (
    ControlChanges,
    ReplicaIdChange,
    SpaceChange,
    SpaceDefinition,
    apply_control_rows,
    row_space_id,
)
from pipeline.plan.position import LogPosition, LogSegment
from pipeline.plan.settle import LsnGap
from pipeline.plan.summary import ControlRow
from pipeline.state import ReplicasetState
from schemas.iproto import SystemSpace
from schemas.states import SpaceEvent
from sources.xlog.format.vclock import is_at_most, vclock_maximum, without_local


@dataclass(frozen=True)
class SnapshotGeneration:
    """A snapshot that replaces a replicaset's state at the beginning of a batch.

    Parameters
    ----------
    segment : int
        The snapshot's segment number.
    settled : mapping of int to int
        The replicaset's settled vclock after the snapshot.
    bridged : tuple of LsnGap
        The missing lsns, whose effects are in the snapshot.
    spaces : frozenset of int, or None
        Ids of the spaces that it replaces; None for all.

    """

    segment: int
    settled: Mapping[int, int]
    bridged: tuple[LsnGap, ...]
    spaces: frozenset[int] | None = None

    @property
    def position(self) -> LogPosition:
        """The position before the snapshot's first row."""
        return LogPosition(self.segment, 0, 0)


def find_generation(known: ReplicasetState | None, parts: Sequence[LogSegment]) -> SnapshotGeneration | None:
    """Return the generation that a batch begins with; None if there is none. A replicaset's first snapshot is not one.

    Parameters
    ----------
    known : ReplicasetState or None
        Before the batch; None for a replicaset that is new.
    parts : sequence of LogSegment
        The replicaset's segments in log order; waiting rows may come first.

    """
    first = next((part for part in parts if not part.has_waited), None)
    if known is None or first is None or not first.is_snapshot:
        return None
    ids = known.id_translations.get(first.source, {})
    vclock = {ids.get(i, i): lsn for i, lsn in without_local(first.vclock).items()}
    if not (first.heals or first.is_generation) and is_at_most(vclock, known.settled):
        return None
    position = LogPosition(first.number, 0, 0)
    gaps = tuple(
        LsnGap(i, known.settled.get(i, 0) + 1, lsn, position)
        for i, lsn in sorted(vclock.items())
        if lsn > known.settled.get(i, 0)
    )
    return SnapshotGeneration(first.number, vclock_maximum(known.settled, vclock), gaps, first.spaces)


def apply_generation(
    known: ReplicasetState,
    generation: SnapshotGeneration | None,
    rows: Iterable[ControlRow],
    snapshots: frozenset[int],
) -> ControlChanges:
    """Apply a replicaset's control rows, where a generation's rows replace all definitions before them.

    A space whose definition is the same in the generation is `renewed`. Any other space is dropped before the
    generation's rows, which may define it again. An instance that is not in the generation's `_cluster` is expelled.
    A generation that replaces only some spaces changes neither other spaces nor instances. Without a generation, this
    is `pipeline.plan.control.apply_control_rows`.
    """
    if generation is None:
        return apply_control_rows(known.spaces, known.cluster, rows, snapshots)
    all_rows = list(rows)
    chosen = generation.spaces
    if chosen is not None:
        all_rows = [
            row for row in all_rows if _defines_one_of(row, chosen) or row.space_id == SystemSpace.CLUSTER
        ]
    own = [row for row in all_rows if row.position.segment == generation.segment]
    alone = apply_control_rows({}, {}, own, snapshots)
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
        rest = apply_control_rows(lasting, known.cluster, all_rows, snapshots)
        return replace(rest, changes=(*begun, *rest.changes))
    members = {registration.replica_id for registration in alone.registrations}
    gone = [ReplicaIdChange(generation.position, i, None) for i in known.cluster if i not in members]
    cluster = {i: uuid for i, uuid in known.cluster.items() if i in members}
    rest = apply_control_rows(lasting, cluster, all_rows, snapshots)
    return replace(rest, registrations=(*gone, *rest.registrations), changes=(*begun, *rest.changes))


def _defines_one_of(row: ControlRow, spaces: frozenset[int]) -> bool:
    """Return whether a row belongs to `_space` or `_index`, and defines one of these spaces."""
    return (
        row.space_id in (SystemSpace.SPACE, SystemSpace.INDEX) and row_space_id(row.key, row.tuple) in spaces
    )


def _is_same_definition(old: SpaceDefinition, new: SpaceDefinition | None) -> bool:
    return new is not None and old.decoded() == new.decoded()
