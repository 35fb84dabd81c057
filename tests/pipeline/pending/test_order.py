"""Where waiting rows belong among the segments of a batch."""

from collections.abc import Sequence

import pytest

from pipeline.pending.order import LogPart, order_waiting
from pipeline.pending.parts import InstanceLsnRange


def lsns(first: int, last: int, replica_id: int = 1) -> InstanceLsnRange:
    return InstanceLsnRange(replica_id, first, last)


@pytest.mark.parametrize(
    ("waiting", "logs", "order"),
    [
        ([[lsns(21, 30)]], [], [(0, 0)]),
        ([[lsns(21, 30)]], [[lsns(31, 40)]], [(0, 0)]),
        ([[lsns(21, 30)]], [[lsns(11, 20)], [lsns(31, 40)]], [(1, 0)]),
        ([[lsns(21, 30)]], [[lsns(11, 25)], [lsns(36, 50)]], [(1, 0)]),
        ([[lsns(21, 30)], [lsns(41, 50)]], [[lsns(11, 20)], [lsns(31, 40)]], [(1, 0), (2, 1)]),
        ([[lsns(41, 50)]], [[lsns(21, 30)]], [(1, 0)]),
        ([[lsns(21, 30)]], [[lsns(1, 10)], [lsns(31, 40)]], [(0, 0)]),
        ([[lsns(11, 20)]], [[lsns(11, 30)]], [(0, 0)]),
        ([[lsns(21, 30)]], [[lsns(1, 5, 2)], [lsns(11, 20)], [lsns(6, 9, 2)]], [(2, 0)]),
        ([[lsns(5, 9, 2)]], [[lsns(11, 20)], [lsns(1, 4, 2)]], [(2, 0)]),
        ([[lsns(31, 40)], [lsns(11, 40)]], [], [(0, 1), (0, 0)]),
        ([[lsns(31, 40)], [lsns(21, 25)]], [], [(0, 0), (0, 1)]),
    ],
    ids=[
        "alone",
        "nothing new before them",
        "between two files",
        "files of other sizes",
        "several files alternate",
        "a hole remains",
        "only rows that were read",
        "a copy of them",
        "behind all that precedes what is missing",
        "of another master",
        "waiting rows fill a hole of waiting rows",
        "but not behind another hole",
    ],
)
def test_waiting_rows_come_where_their_lsns_follow(
    waiting: Sequence[Sequence[InstanceLsnRange]],
    logs: Sequence[Sequence[InstanceLsnRange]],
    order: list[tuple[int, int]],
) -> None:
    assert order_waiting({1: 10}, parts(waiting), parts(logs)) == order


def parts(ranges: Sequence[Sequence[InstanceLsnRange]]) -> list[LogPart]:
    return [LogPart({}, one) for one in ranges]


@pytest.mark.parametrize(
    ("waiting", "logs", "order"),
    [
        ([LogPart({1: 20}, [lsns(5, 9, 2)])], [], [(0, 0)]),
        ([LogPart({1: 20}, [lsns(5, 9, 2)])], [LogPart({1: 10}, [lsns(11, 20)])], [(1, 0)]),
        ([LogPart({1: 10}, [lsns(5, 9, 2)])], [LogPart({1: 10}, [lsns(11, 20)])], [(0, 0)]),
        ([LogPart({1: 10}, [lsns(21, 30)])], [LogPart({1: 10}, [lsns(11, 20)])], [(1, 0)]),
        ([LogPart({1: 30}, [lsns(31, 40)]), LogPart({1: 10}, [lsns(11, 30)])], [], [(0, 1), (0, 0)]),
    ],
    ids=[
        "the missing file does not come",
        "it comes",
        "nothing is missing before the file",
        "rows are missing before these rows of the file",
        "waiting rows fill a hole of waiting rows",
    ],
)
def test_waiting_rows_come_after_all_rows_before_their_file(
    waiting: Sequence[LogPart], logs: Sequence[LogPart], order: list[tuple[int, int]]
) -> None:
    assert order_waiting({1: 10, 2: 4}, waiting, logs) == order


def test_waiting_rows_come_after_a_generation() -> None:
    waiting, logs = [[lsns(11, 20)], [lsns(31, 40)]], [[], [lsns(21, 30)], [lsns(41, 50)]]
    assert order_waiting({1: 20}, parts(waiting), parts(logs), leading_logs=1) == [(1, 0), (2, 1)]
