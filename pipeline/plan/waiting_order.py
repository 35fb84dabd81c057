"""Finds where rows of `_pending` belong among the log segments of a batch: in front of those that follow their lsns.

Members of a replicaset may lack different files of its log, so waiting rows can belong between two segments of another
member. Pure. `pipeline.inputs` numbers the segments of the waiting rows accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sources.xlog.format.vclock import joined


class LsnRange(NamedTuple):
    """The lsns `first`..`last` of the instance `replica_id`, in the replicaset's ids."""

    replica_id: int
    first: int
    last: int


class LogPart(NamedTuple):
    """The lsns in a part of a log file, and the vclock of the rows before the file (`LogSegment.earlier`)."""

    earlier: Mapping[int, int]
    ranges: Sequence[LsnRange]


def order_waiting(
    settled: Mapping[int, int],
    waiting: Sequence[LogPart],
    logs: Sequence[LogPart],
    passed: int = 0,
) -> list[tuple[int, int]]:
    """Return the order of waiting parts among log segments.

    The order of the log segments stays. Waiting parts come as early as possible, and in the order given, except where
    other rows have lsns that are missing before them.

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
        Waiting parts in their order: the number of log segments before the part, and the part's index.

    """
    read, left, found = dict(settled), list(range(len(waiting))), []
    for one in logs[:passed]:
        _read(read, one)
    while left:
        holes = _holes_before(waiting[left[0]], read)
        if any(_fills(one, holes) for one in logs[passed:]):
            _read(read, logs[passed])
            passed += 1
            continue
        chosen = left[0] if not holes else _first_filling(waiting, left, read, holes)
        _read(read, waiting[chosen])
        found.append((passed, chosen))
        left.remove(chosen)
    return found


def _first_filling(
    waiting: Sequence[LogPart],
    left: Sequence[int],
    read: Mapping[int, int],
    holes: Sequence[LsnRange],
) -> int:
    """Return the first of some waiting parts that nothing is missing before and that has lsns in `holes`.

    If there is none, return the first one of all.
    """
    found = (i for i in left if not _holes_before(waiting[i], read) and _fills(waiting[i], holes))
    return next(found, left[0])


def _holes_before(part: LogPart, read: Mapping[int, int]) -> list[LsnRange]:
    """Return the lsns that are missing between what was read and a part's first row of each instance."""
    before: dict[int, int] = {}
    for one in part.ranges:
        before[one.replica_id] = min(one.first - 1, before.get(one.replica_id, one.first))
    before = joined(before, part.earlier)
    return [LsnRange(i, read.get(i, 0) + 1, lsn) for i, lsn in before.items() if lsn > read.get(i, 0)]


def _fills(part: LogPart, holes: Sequence[LsnRange]) -> bool:
    """Return whether any lsn of a part is in one of the holes."""
    return any(
        one.replica_id == hole.replica_id and one.first <= hole.last and one.last >= hole.first
        for one in part.ranges
        for hole in holes
    )


def _read(read: dict[int, int], part: LogPart) -> None:
    for i, lsn in part.earlier.items():
        read[i] = max(lsn, read.get(i, 0))
    for one in part.ranges:
        read[one.replica_id] = max(one.last, read.get(one.replica_id, 0))
