"""Decides where the waiting rows of a batch are stored in `_pending`. Pure.

`_pending` may be large, and a hole in a log may stay open for long. So the rows that wait on stay as they are stored,
and a batch only adds its own: to the part before them if that has earlier rows of the same file, or as a part with a
number between those before and after it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pipeline.pending.parts import PendingPart, RowPlace
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
    """Where the waiting rows of a batch are stored."""

    numbers: Mapping[int, int] = field(default_factory=dict)
    """By the segment's number in the batch, the number of its part (`_pending.segment`)."""
    unchanged: frozenset[int] = frozenset()
    """Numbers of the segments whose rows are in `_pending`, and stay there as they are."""


def pending_places(plan: BatchPlan, pending: Iterable[PendingRows]) -> PendingPlaces:
    """Return where the waiting rows of a planned batch are stored; `pending` are the waiting rows that it reads."""
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
    """Return the places of one replicaset's waiting rows."""
    if settlement.waits_from is None:
        return PendingPlaces()
    runs_by_segment: dict[int, list[LsnRun]] = {}
    for run in runs:
        runs_by_segment.setdefault(run.start.segment, []).append(run)
    rows: dict[int, int] = {}
    for (segment, _, _), count in row_counts.items():
        rows[segment] = rows.get(segment, 0) + count
    waiting = sorted(
        (one for one in segments if one.number >= settlement.waits_from.segment), key=lambda one: one.number
    )
    known: list[int | None] = []
    place_of: dict[int, int] = {}
    last: tuple[LogSegment, RowPlace] | None = None
    for one in waiting:
        own, part = runs_by_segment.get(one.number, []), parts.get(one.number)
        repeated = sum(run.last_lsn - run.first_lsn + 1 for run in own if _was_read_before(run, settlement))
        if part is None and repeated == rows.get(one.number, 0):
            continue
        if part is None and last is not None and own and _continues(one, own, *last):
            place_of[one.number] = len(known) - 1
        else:
            place_of[one.number] = len(known)
            known.append(None if part is None else part.number)
        last = (one, part.last if part is not None else _last_start(own))
    found = ascending_numbers(known)
    is_renumbered = found is None
    if found is None:
        found = [number * NUMBER_STEP for number in range(len(known))]
    return PendingPlaces(
        {segment: found[place] for segment, place in place_of.items()},
        frozenset(
            one.number
            for one in waiting
            if not is_renumbered
            and (part := parts.get(one.number)) is not None
            and _waits_as_before(one.number, part, settlement, runs_by_segment.get(one.number, []))
        ),
    )


def _was_read_before(run: LsnRun, settlement: Settlement) -> bool:
    return run.last_lsn <= settlement.low_watermarks.get((run.start.segment, run.replica_id), -1)


def _last_start(runs: Iterable[LsnRun]) -> RowPlace:
    return max((RowPlace(*run.start[1:]) for run in runs), default=RowPlace(0, 0))


def _continues(segment: LogSegment, runs: Sequence[LsnRun], before: LogSegment, last: RowPlace) -> bool:
    """Return whether a segment has later rows of the file of the waiting rows before it."""
    same = all(
        getattr(segment, name) == getattr(before, name)
        for name in ("source", "file", "instance_uuid", "vclock_before", "is_snapshot")
    )
    return same and before.has_waited and min(RowPlace(*run.start[1:]) for run in runs) > last


def _waits_as_before(number: int, part: PendingPart, settlement: Settlement, runs: Iterable[LsnRun]) -> bool:
    """Return whether all rows of a part wait on, for the same reason."""
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
    found: list[int] = []
    for count, next_number in _unknown_ranges(known):
        before = found[-1] if found else None
        if next_number is None:
            begin = 0 if before is None else before + NUMBER_STEP
            found += range(begin, begin + count * NUMBER_STEP, NUMBER_STEP)
        elif before is None:
            found += range(next_number - count * NUMBER_STEP, next_number, NUMBER_STEP)
        else:
            step = (next_number - before) // (count + 1)
            found += (before + (i + 1) * step for i in range(count))
        if next_number is not None:
            found.append(next_number)
    is_ascending = all(a < b for a, b in pairwise(found))
    return found if is_ascending and all(abs(one) <= MAX_NUMBER for one in found) else None


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
