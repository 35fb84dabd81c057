"""Inserts the waiting rows of a batch's replicasets among its log segments: before the segments with later lsns.

Members of a replicaset may lack different files of its log, so waiting rows can belong between two segments of another
member. The numbers of the segments leave room for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.plan.generation import apply_generation, find_generation
from pipeline.plan.members import IdTranslation, assign_source_ids, translate_summary, translate_vclock
from pipeline.plan.position import LogSegment
from pipeline.plan.summary import LOCAL_ID, Summary
from pipeline.state import ReplicasetState, State
from pipeline.waiting import PendingPart, PendingRows, pending_by_segment, vclock_before_file, waiting_segment
from sources.xlog.format.vclock import vclock_maximum
from sources.xlog.stream.segment import Segment
from warehouse.commits import OpenTables

SEGMENT_STEP = 1 << 20
"""Log segments are numbered in steps of this size, so that segments of waiting rows get numbers between them."""

NUMBER_MAX = 2**31 - 1
"""The highest number of a segment."""


def with_spaced_numbers(segments: Sequence[Segment], state: State) -> tuple[Segment, ...]:
    """Return a batch's segments, numbered so that segments of waiting rows fit between them.

    Parameters
    ----------
    segments : sequence of Segment
        Numbered from 0 on.
    state : State
        Before the batch.

    """
    known = (state.replicasets.get(segment.replicaset_uuid) for segment in segments)
    if not any(one is not None and one.has_waiting_rows for one in known):
        return tuple(segments)
    step = min(SEGMENT_STEP, NUMBER_MAX // (len(segments) + 1))
    return tuple(replace(segment, number=segment.number * step) for segment in segments)


def ordered_pending_rows(
    tables: OpenTables, state: State, segments: Sequence[LogSegment], summaries: Mapping[str, Summary]
) -> list[PendingRows]:
    """Return the waiting rows of a batch's replicasets, numbered to come where they belong among its segments.

    Parameters
    ----------
    tables : OpenTables
    state : State
        Before the batch.
    segments : sequence of LogSegment
        The batch's segments, with numbers that leave room (`with_spaced_numbers`).
    summaries : mapping of str to Summary
        The summaries of these segments, by replicaset uuid.

    """
    waiting = [
        state.replicasets[u]
        for u in summaries
        if u in state.replicasets and state.replicasets[u].has_waiting_rows
    ]
    if not waiting:
        return []
    stored = pending_by_segment(tables, {one.id: one for one in waiting})
    first: list[PendingRows] = []
    between: list[PendingRows] = []
    for one in waiting:
        own = [segment for segment in segments if segment.replicaset_uuid == one.uuid]
        parts = [part for part in stored if part[0] is one]
        counts: Counter[int] = Counter()
        for passed, index in _order_of_replicaset(state, one, own, summaries[one.uuid], parts):
            _, source, file, instance, rows = parts[index]
            counts[passed] += 1
            number = own[passed - 1].number + counts[passed] if passed else 0
            segment = waiting_segment(number, one.uuid, (source, file, instance), rows)
            (between if passed else first).append(PendingRows(segment, rows))
    return [
        *(replace(one, segment=replace(one.segment, number=i - len(first))) for i, one in enumerate(first)),
        *between,
    ]


def _order_of_replicaset(
    state: State,
    one: ReplicasetState,
    segments: Sequence[LogSegment],
    summary: Summary,
    parts: Sequence[PendingPart],
) -> list[tuple[int, int]]:
    """Return the order of a replicaset's waiting rows among its log segments, as `order_waiting` does.

    A generation (a snapshot that replaces the state) already contains the effect of the waiting rows from before it.
    So the generation comes first, and these rows come after it.
    """
    generation = find_generation(one, segments)
    snapshots = frozenset(segment.number for segment in segments if segment.is_snapshot)
    control = apply_generation(one, generation, summary.control, snapshots)
    number = None if generation is None else generation.segment
    found = assign_source_ids(one, segments, control.registrations, state.instance_uuids, number)
    ids = {segment.number: found.translations.get(segment.source, {}) for segment in segments}
    runs: dict[int, list[InstanceLsns]] = {segment.number: [] for segment in segments}
    for run in translate_summary(summary, ids).runs:
        if run.replica_id != LOCAL_ID and run.start.segment not in snapshots:
            runs[run.start.segment].append(InstanceLsns(run.replica_id, run.first_lsn, run.last_lsn))
    logs = [
        LogPart(translate_vclock(segment.vclock_before, ids[segment.number]), runs[segment.number])
        for segment in segments
    ]
    waiting = [_waiting_part(rows, found.translations.get(source, {})) for _, source, _, _, rows in parts]
    settled = {**found.base_lsns, **one.settled}
    if generation is None:
        return order_waiting(settled, waiting, logs)
    passed = sum(1 for _ in takewhile(lambda segment: segment.is_snapshot, segments))
    return order_waiting(vclock_maximum(settled, generation.settled_vclock), waiting, logs, passed)


def _waiting_part(rows: pa.RecordBatch, ids: IdTranslation) -> LogPart:
    """Return the lsns of waiting rows of one file, and the vclock before the file; `ids` translates replica ids."""
    named = pa.Table.from_batches([rows]).select(["replica_id", "lsn"])
    named = named.filter(pc.greater(named["replica_id"], LOCAL_ID))
    bounds = named.group_by("replica_id").aggregate([("lsn", "min"), ("lsn", "max")]).to_pylist()
    ranges = [
        InstanceLsns(ids.get(row["replica_id"], row["replica_id"]), row["lsn_min"], row["lsn_max"])
        for row in bounds
    ]
    return LogPart(translate_vclock(vclock_before_file(rows), ids), ranges)


class InstanceLsns(NamedTuple):
    """The lsns `first`..`last` of a replica id; it is the replicaset's id, not the source's."""

    replica_id: int
    first: int
    last: int


class LogPart(NamedTuple):
    """The lsns in a part of a log file, and the vclock of the rows before the file (`LogSegment.vclock_before`)."""

    earlier: Mapping[int, int]
    ranges: Sequence[InstanceLsns]


def order_waiting(
    settled: Mapping[int, int],
    waiting: Sequence[LogPart],
    logs: Sequence[LogPart],
    passed: int = 0,
) -> list[tuple[int, int]]:
    """Return the order of waiting parts among log segments.

    The log segments keep their order. Waiting parts come as early as possible, and in the order given. But if lsns are
    missing before a waiting part, and a log segment or another waiting part has them, this one comes first.

    Parameters
    ----------
    settled : mapping of int to int
        The vclock before all of these rows.
    waiting, logs : sequence of LogPart
        The waiting parts, and the log segments.
    passed : int
        The number of log segments that come before all waiting parts.

    Returns
    -------
    list of (int, int)
        For each waiting part, in their order: (number of log segments before the part, index of the part in `waiting`).

    """
    read, left, found = dict(settled), list(range(len(waiting))), []
    for one in logs[:passed]:
        _advance(read, one)
    while left:
        holes = _holes_before(waiting[left[0]], read)
        if any(_fills(one, holes) for one in logs[passed:]):
            _advance(read, logs[passed])
            passed += 1
            continue
        chosen = left[0] if not holes else _first_filling(waiting, left, read, holes)
        _advance(read, waiting[chosen])
        found.append((passed, chosen))
        left.remove(chosen)
    return found


def _first_filling(
    waiting: Sequence[LogPart],
    left: Sequence[int],
    read: Mapping[int, int],
    holes: Sequence[InstanceLsns],
) -> int:
    """Return the first waiting part that has lsns in `holes` and has no missing lsns before it.

    If there is none, return the first one of all.
    """
    found = (i for i in left if not _holes_before(waiting[i], read) and _fills(waiting[i], holes))
    return next(found, left[0])


def _holes_before(part: LogPart, read: Mapping[int, int]) -> list[InstanceLsns]:
    """Return the lsns that are missing between what was read and a part's first row of each instance."""
    before: dict[int, int] = {}
    for one in part.ranges:
        before[one.replica_id] = min(one.first - 1, before.get(one.replica_id, one.first))
    before = vclock_maximum(before, part.earlier)
    return [InstanceLsns(i, read.get(i, 0) + 1, lsn) for i, lsn in before.items() if lsn > read.get(i, 0)]


def _fills(part: LogPart, holes: Sequence[InstanceLsns]) -> bool:
    """Return whether any lsn of a part is in one of the holes."""
    return any(
        one.replica_id == hole.replica_id and one.first <= hole.last and one.last >= hole.first
        for one in part.ranges
        for hole in holes
    )


def _advance(read: dict[int, int], part: LogPart) -> None:
    """Advance the vclock `read` to a part: to the lsns before the part's file, and to those in the part."""
    for i, lsn in part.earlier.items():
        read[i] = max(lsn, read.get(i, 0))
    for one in part.ranges:
        read[one.replica_id] = max(one.last, read.get(one.replica_id, 0))
