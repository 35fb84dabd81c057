"""Applies a generation: a snapshot that replaces a replicaset's state where logs are missing.

A spool has a generation if no server has the missing logs any more: the daemon stores a new snapshot instead. A
server's directory has one if the server has removed old logs: reading continues from the server's own snapshot. The
snapshot is the replicaset's complete state at its vclock: keys and spaces that are not in it are deleted, differing
tuples are updated, and equal ones keep their origin and time. The missing rows are in no log; they are recorded in
`_gaps` as `bridged`. A snapshot for healing (`pipeline.requests.healing`) may be older than the tables.

Pure. `pipeline.reduce` finds the keys that change; `sources.xlog.stream.read_ahead` finds generations in a stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.plan.ids.settle import LsnGap
from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.plan.rows.summary import ControlRow
from pipeline.plan.spaces.system_rows import (
    ControlChanges,
    ReplicaIdChange,
    SpaceChange,
    apply_control_rows,
    row_space_id,
)
from pipeline.state import ReplicasetState, SpaceDefinition
from schemas.iproto import SystemSpace
from schemas.states import SpaceEvent
from sources.xlog.format.vclock import is_at_most, vclock_maximum, without_local


@dataclass(frozen=True)
class SnapshotGeneration:
    """A snapshot that replaces a replicaset's state at the beginning of a batch."""

    segment: int
    settled_vclock: Mapping[int, int]
    """The replicaset's settled vclock after the snapshot."""
    bridged_gaps: tuple[LsnGap, ...]
    """The missing lsns, whose effects are in the snapshot."""
    replaced_spaces: frozenset[int] | None = None
    """Ids of the spaces that it replaces; None for all."""

    @property
    def position(self) -> LogPosition:
        """The position before the snapshot's first row."""
        return LogPosition(self.segment, 0, 0)


def find_generation(
    known: ReplicasetState | None, segments: Sequence[LogSegment]
) -> SnapshotGeneration | None:
    """Return the generation that a batch begins with; None if there is none.

    The first snapshot of a new replicaset is not a generation. Before a generation's segments waiting rows may come.
    """
    first = next((part for part in segments if not part.has_waited), None)
    if known is None or first is None or not first.is_snapshot:
        return None
    ids = known.id_translations.get(first.source, {})
    vclock = {ids.get(i, i): lsn for i, lsn in without_local(first.vclock).items()}
    if not (first.is_healing or first.is_generation) and is_at_most(vclock, known.settled):
        return None
    position = LogPosition(first.number, 0, 0)
    gaps = tuple(
        LsnGap(i, known.settled.get(i, 0) + 1, lsn, position)
        for i, lsn in sorted(vclock.items())
        if lsn > known.settled.get(i, 0)
    )
    return SnapshotGeneration(
        first.number, vclock_maximum(known.settled, vclock), gaps, first.replaced_spaces
    )


def apply_generation(
    known: ReplicasetState,
    generation: SnapshotGeneration | None,
    rows: Iterable[ControlRow],
    snapshot_segments: frozenset[int],
) -> ControlChanges:
    """Apply a replicaset's control rows; a generation among them replaces the spaces and instances before it.

    A space that the generation defines as before gets the event `RENEWED`. Any other space that it replaces gets
    `DROPPED`, and the generation's rows may define it again. Instances that are not in the generation's `_cluster` are
    expelled. A generation that replaces only some spaces leaves the others as they are, and expels no instance. If
    `generation` is None, the rows are applied as by `pipeline.plan.spaces.system_rows.apply_control_rows`.
    """
    if generation is None:
        return apply_control_rows(
            known.spaces, known.cluster, rows, snapshot_segments, known.described_spaces
        )
    all_rows = list(rows)
    chosen = generation.replaced_spaces
    if chosen is not None:
        all_rows = [
            row for row in all_rows if _defines_one_of(row, chosen) or row.space_id == SystemSpace.CLUSTER
        ]
    own = [row for row in all_rows if row.position.segment == generation.segment]
    alone = apply_control_rows({}, {}, own, snapshot_segments)
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
        rest = apply_control_rows(lasting, known.cluster, all_rows, snapshot_segments, known.described_spaces)
        return replace(rest, changes=(*begun, *rest.changes))
    members = {registration.replica_id for registration in alone.registrations}
    gone = [ReplicaIdChange(generation.position, i, None) for i in known.cluster if i not in members]
    cluster = {i: uuid for i, uuid in known.cluster.items() if i in members}
    rest = apply_control_rows(lasting, cluster, all_rows, snapshot_segments)
    return replace(rest, registrations=(*gone, *rest.registrations), changes=(*begun, *rest.changes))


def _defines_one_of(row: ControlRow, space_ids: frozenset[int]) -> bool:
    return (
        row.space_id in (SystemSpace.SPACE, SystemSpace.INDEX)
        and row_space_id(row.key, row.tuple) in space_ids
    )


def _is_same_definition(old: SpaceDefinition, new: SpaceDefinition | None) -> bool:
    return new is not None and old.decoded() == new.decoded()
