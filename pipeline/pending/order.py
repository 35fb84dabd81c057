"""Inserts the waiting rows of a batch's replicasets among its log segments: before the segments with later lsns.

Members of a replicaset may lack different files of its log, so waiting rows can belong between two segments of another
member. The numbers of the segments leave room for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from pipeline.pending.parts import InstanceLsnRange, PendingPart, PendingParts, waiting_segment
from pipeline.pending.rows import PendingRows
from pipeline.plan.ids.members import IdTranslation, translate_vclock
from pipeline.plan.ids.view import ReplicasetView
from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import LOCAL_ID, Summary
from pipeline.state import ReplicasetState, State
from sources.xlog.format.vclock import vclock_maximum


def ordered_pending_rows(
    pending: PendingParts, state: State, segments: Sequence[LogSegment], summaries: Mapping[str, Summary]
) -> list[PendingRows]:
    """Return the waiting rows of a batch's replicasets as segments whose numbers sort them among the log segments."""
    waiting = [
        state.replicasets[u]
        for u in summaries
        if u in state.replicasets and state.replicasets[u].has_waiting_rows
    ]
    if not waiting:
        return []
    stored = pending.of_replicasets(one.id for one in waiting)
    first: list[PendingRows] = []
    between: list[PendingRows] = []
    for one in waiting:
        own = [segment for segment in segments if segment.replicaset_uuid == one.uuid]
        parts = [part for part in stored if part.replicaset_id == one.id]
        counts: Counter[int] = Counter()
        for passed, index in _order_of_replicaset(state, one, own, summaries[one.uuid], parts):
            part = parts[index]
            counts[passed] += 1
            number = own[passed - 1].number + counts[passed] if passed else 0
            segment = waiting_segment(number, one.uuid, part.origin, part.server_version, part.vclock_before)
            rows = PendingRows(segment, partial(pending.rows, part), part)
            (between if passed else first).append(rows)
    return [
        *(replace(one, segment=replace(one.segment, number=i - len(first))) for i, one in enumerate(first)),
        *between,
    ]


def _order_of_replicaset(
    state: State,
    replicaset: ReplicasetState,
    segments: Sequence[LogSegment],
    summary: Summary,
    parts: Sequence[PendingPart],
) -> list[tuple[int, int]]:
    """Return where a replicaset's waiting rows come among its log segments, in the form that `order_waiting` returns.

    A generation (a snapshot that replaces the state) already contains the effect of waiting rows from before it. So it
    comes before these rows.
    """
    view = ReplicasetView.of(replicaset.uuid, replicaset, segments, summary, state.instance_uuids)
    runs: dict[int, list[InstanceLsnRange]] = {segment.number: [] for segment in segments}
    for run in view.summary.runs:
        if run.replica_id != LOCAL_ID and run.start.segment not in view.snapshots:
            runs[run.start.segment].append(InstanceLsnRange(run.replica_id, run.first_lsn, run.last_lsn))
    logs = [
        LogPart(translate_vclock(segment.vclock_before, view.ids[segment.number]), runs[segment.number])
        for segment in segments
    ]
    translations = view.source_ids.translations
    waiting = [_waiting_part(part, translations.get(part.origin.source, {})) for part in parts]
    if view.generation is None:
        return order_waiting(view.known.settled, waiting, logs)
    leading = sum(1 for _ in takewhile(lambda segment: segment.is_snapshot, segments))
    return order_waiting(view.known.settled, waiting, logs, leading)


def _waiting_part(part: PendingPart, ids: IdTranslation) -> LogPart:
    """Return a part with the replicaset's replica ids; `ids` translates the source's."""
    ranges = [one._replace(replica_id=ids.get(one.replica_id, one.replica_id)) for one in part.lsn_ranges]
    return LogPart(translate_vclock(part.vclock_before, ids), ranges)


class LogPart(NamedTuple):
    """The lsns in a part of a log file, and the vclock of the rows before that file (`LogSegment.vclock_before`).

    Replica ids are the replicaset's, not the source's.
    """

    vclock_before: Mapping[int, int]
    lsn_ranges: Sequence[InstanceLsnRange]


def order_waiting(
    settled: Mapping[int, int],
    waiting: Sequence[LogPart],
    logs: Sequence[LogPart],
    leading_logs: int = 0,
) -> list[tuple[int, int]]:
    """Return where waiting parts come among log segments, and in which order.

    The log segments keep their order. Waiting parts come as early as possible, and in the given order. But if lsns are
    missing before a waiting part, and a log segment or another waiting part has them, then that one comes first.

    Args:
        leading_logs: The number of log segments that come before all waiting parts.

    Returns:
        For each waiting part, in their order: (number of log segments before the part, index of the part in `waiting`).
    """
    read, left, found = dict(settled), list(range(len(waiting))), []
    passed = leading_logs
    for one in logs[:passed]:
        _advance_vclock(read, one)
    while left:
        missing = _missing_lsns_before(waiting[left[0]], read)
        if any(_has_lsns(one, missing) for one in logs[passed:]):
            _advance_vclock(read, logs[passed])
            passed += 1
            continue
        chosen = left[0] if not missing else _first_part_with_lsns(waiting, left, read, missing)
        _advance_vclock(read, waiting[chosen])
        found.append((passed, chosen))
        left.remove(chosen)
    return found


def _first_part_with_lsns(
    waiting: Sequence[LogPart],
    remaining: Sequence[int],
    read: Mapping[int, int],
    missing: Sequence[InstanceLsnRange],
) -> int:
    """Return the first index in `remaining` of a part that has `missing` lsns, and before which no lsns are missing.

    If there is no such part, return the first index.
    """
    found = (
        i for i in remaining if not _missing_lsns_before(waiting[i], read) and _has_lsns(waiting[i], missing)
    )
    return next(found, remaining[0])


def _missing_lsns_before(part: LogPart, read: Mapping[int, int]) -> list[InstanceLsnRange]:
    """Return the lsns that are missing between the vclock `read` and a part's first row of each instance."""
    before: dict[int, int] = {}
    for one in part.lsn_ranges:
        before[one.replica_id] = min(one.first - 1, before.get(one.replica_id, one.first))
    before = vclock_maximum(before, part.vclock_before)
    return [InstanceLsnRange(i, read.get(i, 0) + 1, lsn) for i, lsn in before.items() if lsn > read.get(i, 0)]


def _has_lsns(part: LogPart, missing: Sequence[InstanceLsnRange]) -> bool:
    return any(
        one.replica_id == gap.replica_id and one.first <= gap.last and one.last >= gap.first
        for one in part.lsn_ranges
        for gap in missing
    )


def _advance_vclock(read: dict[int, int], part: LogPart) -> None:
    """Advance the vclock `read` by a part: by the lsns before the part's file, and by those in the part."""
    for i, lsn in part.vclock_before.items():
        read[i] = max(lsn, read.get(i, 0))
    for one in part.lsn_ranges:
        read[one.replica_id] = max(one.last, read.get(one.replica_id, 0))
