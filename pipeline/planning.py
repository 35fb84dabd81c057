"""Plans a batch: summarizes its rows and the waiting rows, again if the plan finds more spaces whose rows affect it.

Writes nothing: the function that allocates ids is passed in, so `aggregator plan` and the writer (`pipeline.batch`)
share this code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from config.deployment import Config
from pipeline.pending.log_segments import log_segments, with_members
from pipeline.pending.order import ordered_pending_rows
from pipeline.pending.parts import PendingParts
from pipeline.pending.rows import PendingRows, released_rows, spaces_awaiting_definition, with_released_counts
from pipeline.plan.batch_plan import Allocator, BatchPlan, bucket_spaces, plan_batch, sync_spaces
from pipeline.plan.healing import Healing
from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import Summary, in_segment, interleave_summaries
from pipeline.plan.spaces.router import Router
from pipeline.state import State
from pipeline.work import SyncSpaces, WatchedSpaces
from sources.xlog.reader import reader
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.segment import Segment
from warehouse.delta.commits import OpenTables


class Summarizer(Protocol):
    """Summarizes the rows of a batch; implemented by both executors."""

    def summaries(self, sync: SyncSpaces, watched: WatchedSpaces) -> dict[str, Summary]:
        """Return the summary of each replicaset's rows, by replicaset uuid."""


@dataclass(frozen=True)
class Planner:
    """Plans batches of one configuration."""

    config: Config
    tables: OpenTables
    state: State
    """Before the batch."""
    allocate_ids: Allocator
    """Assigns global ids to the instances that a batch names."""
    router: Router
    pending: PendingParts
    read_to_end_at: datetime | None = None
    """A time at which the logs were read to their end, if it is known."""

    def plan(
        self,
        summarizer: Summarizer,
        segments: Sequence[Segment],
        log_stream: LogStream,
        healing: Healing | None = None,
    ) -> tuple[BatchPlan, list[PendingRows]]:
        """Return the plan of a batch, and the waiting rows that the batch reads."""
        numbered = {segment.number: segment for segment in segments}
        sources = len(self.config.sources)
        limits = reader.Limits(max_block_bytes=self.config.max_block_bytes)
        parts_read = log_segments(segments, self.state, limits)
        own = with_members(parts_read, numbered, log_stream, self.state, sources)
        known, watched = sync_spaces(self.state), bucket_spaces(self.state)
        released: list[PendingRows] = []
        while True:
            summaries = {
                **self._empty_summaries_of_waiting(not segments),
                **summarizer.summaries(known, watched),
            }
            pending = ordered_pending_rows(self.pending, self.state, own, summaries)
            parts, whole = self._with_pending(own, summaries, pending, known, watched)
            parts, whole = [*(one.segment for one in released), *parts], with_released_counts(whole, released)
            if healing is not None:
                parts, whole = healing.as_healing_segments(parts), healing.add_counts(whole)
            plan = plan_batch(
                *(self.config, self.state, parts, whole, self.allocate_ids, self.router), self.read_to_end_at
            )
            found = sync_spaces(self.state, plan.controls)
            more = _union_of_space_ids(
                bucket_spaces(self.state, plan.controls), _spaces_to_watch(plan), watched
            )
            if _are_known(found, known) and _are_known(more, watched):
                spaces = plan.previously_unknown_spaces(("applied",)) & spaces_awaiting_definition(self.state)
                if released or not spaces:
                    return plan, [*released, *pending]
                # The batch also applies the rows that have waited for a definition in it.
                first = min((one.number for one in plan.segments), default=0)
                released = released_rows(self.tables, self.state, spaces, min(first, 0))
                if not released:
                    return plan, pending
            # A space became synchronous, or must be watched, from this batch on: its rows must be summarized again.
            known, watched = found, more

    def _empty_summaries_of_waiting(self, all_waiting: bool) -> dict[str, Summary]:
        """Return an empty summary, by uuid, for the replicasets that the batch processes without new log rows."""
        known = self.state.replicasets.items()
        return {
            uuid: Summary() for uuid, one in known if one.has_waiting_rows and (all_waiting or one.buckets)
        }

    def _with_pending(
        self,
        segments: Sequence[LogSegment],
        summaries: Mapping[str, Summary],
        pending: Sequence[PendingRows],
        sync: SyncSpaces,
        watched: WatchedSpaces,
    ) -> tuple[list[LogSegment], dict[str, Summary]]:
        found: dict[str, Summary] = {}
        for uuid, summary in summaries.items():
            spaces = (sync.get(uuid, frozenset()), watched.get(uuid, frozenset()))
            parts = [
                in_segment(self.pending.summary(one.part, *spaces), one.segment.number)
                for one in pending
                if one.part is not None and one.segment.replicaset_uuid == uuid
            ]
            found[uuid] = interleave_summaries([summary, *parts]) if parts else summary
        whole = [*segments, *(one.segment for one in pending)]
        return sorted(whole, key=lambda segment: segment.number), found


def _spaces_to_watch(plan: BatchPlan) -> dict[str, frozenset[int]]:
    """Return, by replicaset uuid, the ids of spaces whose summaries must report all rows that cannot be applied.

    Usually a summary has only the first such row of a space. After a healing this row may be one that was read before.
    It then has no effect, and a summary without the later rows would miss those that are new.
    """
    found = {}
    for uuid, settlement in plan.settlements.items():
        known = plan.before.replicasets.get(uuid)
        renewed = any(one.is_snapshot and one.replicaset_uuid == uuid for one in plan.segments)
        refused = {} if known is None or renewed else known.refused
        found[uuid] = frozenset(
            row.space_id
            for row in plan.summaries[uuid].control
            if row.held_reason is not None and row.space_id is not None and row.space_id not in refused
            if settlement.was_read_before(row)
        )
    return found


def _union_of_space_ids(*parts: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    uuids = {uuid for part in parts for uuid in part}
    return {uuid: frozenset().union(*(part.get(uuid, frozenset()) for part in parts)) for uuid in uuids}


def _are_known(spaces: Mapping[str, frozenset[int]], known_spaces: Mapping[str, frozenset[int]]) -> bool:
    return all(ids <= known_spaces.get(uuid, frozenset()) for uuid, ids in spaces.items())
