"""Decides where the pending rows of a batch are stored in `_pending`. Pure.

`_pending` may be large, and a hole in a log may stay open for long. So rows that stay pending are not written again. A
batch adds only its own rows: to the part before them if that part has earlier rows of the same file, else as a new part
with a number between those of its neighbours.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pipeline.pending.parts import PendingOrigin, PendingPart, RowPlace
from pipeline.pending.rows import PendingRows
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.ids.settle import Settlement
from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.plan.rows.summary import LsnRun

NUMBER_STEP = 1 << 10
"""Parts that come one after another get numbers in steps of this size, so that later parts fit between them."""

MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class PendingPlaces:
    """Where the pending rows of a batch are stored."""

    numbers: Mapping[int, int] = field(default_factory=dict)
    """By the segment's number in the batch, the number of its part (`_pending.segment`)."""
    unchanged: frozenset[int] = frozenset()
    """Numbers of the segments whose rows are in `_pending`, and stay there as they are."""


def pending_places(plan: BatchPlan, pending: Iterable[PendingRows]) -> PendingPlaces:
    """Return where the pending rows of a planned batch are stored; `pending` are those that it reads."""
    parts = {one.segment.number: one.part for one in pending if one.part is not None}
    numbers: dict[int, int] = {}
    unchanged: set[int] = set()
    for uuid, settlement in plan.settlements.items():
        segments = [one for one in plan.segments if one.replicaset_uuid == uuid and not one.is_released]
        own = _places(segments, settlement, plan.summaries[uuid].runs, plan.summaries[uuid].row_counts, parts)
        numbers |= own.numbers
        unchanged |= own.unchanged
    return PendingPlaces(numbers, frozenset(unchanged))


def _places(
    segments: Sequence[LogSegment],
    settlement: Settlement,
    runs: Iterable[LsnRun],
    row_counts: Mapping[tuple[int, int, str], int],
    parts: Mapping[int, PendingPart],
) -> PendingPlaces:
    if settlement.waits_from is None:
        return PendingPlaces()
    runs_by_segment: dict[int, list[LsnRun]] = {}
    for run in runs:
        runs_by_segment.setdefault(run.start.segment, []).append(run)
    rows_by_segment: Counter[int] = Counter()
    for (segment_number, _, _), count in row_counts.items():
        rows_by_segment[segment_number] += count
    stored_numbers: list[int | None] = []
    place_by_segment: dict[int, int] = {}
    unchanged: set[int] = set()
    last_part: PendingPart | None = None
    for segment in sorted(segments, key=lambda one: one.number):
        number, own_runs = segment.number, runs_by_segment.get(segment.number, [])
        if number < settlement.waits_from.segment:
            continue
        part = parts.get(number)
        if part is None and _repeated_rows(own_runs, settlement) == rows_by_segment[number]:
            continue
        if part is not None or last_part is None or not _continues(segment, own_runs, last_part):
            stored_numbers.append(None if part is None else part.number)
        place_by_segment[number] = len(stored_numbers) - 1
        last_part = part
        if part is not None and _waits_as_before(number, part, settlement, own_runs):
            unchanged.add(number)
    numbers = ascending_numbers(stored_numbers)
    if numbers is None:
        numbers = [place * NUMBER_STEP for place in range(len(stored_numbers))]
        unchanged.clear()
    return PendingPlaces(
        {segment: numbers[place] for segment, place in place_by_segment.items()}, frozenset(unchanged)
    )


def _repeated_rows(runs: Iterable[LsnRun], settlement: Settlement) -> int:
    """Return how many rows of a segment's runs were read before."""
    low = settlement.low_watermarks
    return sum(
        run.last_lsn - run.first_lsn + 1
        for run in runs
        if run.last_lsn <= low.get((run.start.segment, run.replica_id), -1)
    )


def _continues(segment: LogSegment, runs: Sequence[LsnRun], part: PendingPart) -> bool:
    """Return whether a segment of a log has later rows of the file that a part is from."""
    return (
        PendingOrigin(segment.source, segment.file, segment.instance_uuid) == part.origin
        and segment.vclock_before == part.vclock_before
        and not segment.is_snapshot
        and min((RowPlace(*run.start[1:]) for run in runs), default=part.last) > part.last
    )


def _waits_as_before(number: int, part: PendingPart, settlement: Settlement, runs: Iterable[LsnRun]) -> bool:
    """Return whether all rows of a part stay pending for the same reason."""
    waits_from, low = settlement.waits_from, settlement.low_watermarks
    return (
        waits_from is not None
        and waits_from <= LogPosition(number, *part.first)
        and part.reasons == {settlement.wait_reason}
        and all(run.first_lsn > low.get((number, run.replica_id), -1) for run in runs)
    )


def ascending_numbers(known: Sequence[int | None]) -> list[int] | None:
    """Return ascending numbers that keep the known ones; None if there are none.

    Args:
        known: The numbers in order; None where one is needed.
    """
    numbers: list[int] = []
    for count, next_number in _unknown_ranges(known):
        before = numbers[-1] if numbers else None
        if next_number is None:
            begin = 0 if before is None else before + NUMBER_STEP
            numbers += range(begin, begin + count * NUMBER_STEP, NUMBER_STEP)
        elif before is None:
            numbers += range(next_number - count * NUMBER_STEP, next_number, NUMBER_STEP)
        else:
            step = (next_number - before) // (count + 1)
            numbers += (before + (i + 1) * step for i in range(count))
        if next_number is not None:
            numbers.append(next_number)
    is_ascending = all(a < b for a, b in pairwise(numbers))
    return numbers if is_ascending and all(abs(number) <= MAX_NUMBER for number in numbers) else None


def _unknown_ranges(known: Sequence[int | None]) -> Iterator[tuple[int, int | None]]:
    """Yield (how many unknown numbers come next, the known one after them), and None after the last."""
    count = 0
    for one in known:
        if one is None:
            count += 1
        else:
            yield count, one
            count = 0
    yield count, None
