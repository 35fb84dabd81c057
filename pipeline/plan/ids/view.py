"""What a batch reads of one replicaset, in the replicaset's own replica ids. Pure.

Both the order of pending rows among the log segments and the decision which rows count start from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.plan.ids.generation import SnapshotGeneration, apply_generation, find_generation
from pipeline.plan.ids.members import IdTranslation, SourceIds, assign_source_ids, translate_summary
from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import Summary
from pipeline.plan.spaces.system_rows import ControlChanges
from pipeline.state import ReplicasetState
from sources.xlog.format.vclock import vclock_maximum


@dataclass(frozen=True)
class ReplicasetView:
    """The segments and rows of a replicaset in a batch, before it is decided which rows count."""

    known: ReplicasetState
    """Before the batch; `settled` includes what sources that are new have settled, and a generation."""
    generation: SnapshotGeneration | None
    """The snapshot with which the batch begins, if it replaces the replicaset's state."""
    snapshots: frozenset[int]
    control: ControlChanges
    """The changes by all control rows, also those that may not count."""
    source_ids: SourceIds
    """How the sources assign replica ids."""
    ids: Mapping[int, IdTranslation]
    """By segment number, the translation of the source's replica ids."""
    summary: Summary
    """Of the rows, in translated replica ids."""

    @classmethod
    def of(
        cls,
        uuid: str,
        before: ReplicasetState | None,
        segments: Sequence[LogSegment],
        summary: Summary,
        instance_uuids: Mapping[int, str],
    ) -> ReplicasetView:
        """Read the segments of a replicaset, whose replica ids are those of their sources."""
        known = before or _new_replicaset(uuid, segments[0])
        generation = find_generation(before, segments)
        snapshots = frozenset(part.number for part in segments if part.is_snapshot)
        control = apply_generation(known, generation, summary.control, snapshots)
        number = None if generation is None else generation.segment
        source_ids = assign_source_ids(known, segments, control.registrations, instance_uuids, number)
        ids = {part.number: source_ids.translations.get(part.source, {}) for part in segments}
        # The batch reads the pending rows again, so it starts from the settled vclock, before them.
        settled: Mapping[int, int] = {**source_ids.base_lsns, **known.settled}
        if generation is not None:
            settled = vclock_maximum(settled, generation.settled_vclock)
        known = replace(known, settled=settled)
        return cls(known, generation, snapshots, control, source_ids, ids, translate_summary(summary, ids))


def _new_replicaset(uuid: str, first: LogSegment) -> ReplicasetState:
    begin = dict(first.vclock)
    return ReplicasetState(0, uuid, settled=begin, read=begin)
