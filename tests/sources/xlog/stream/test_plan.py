"""Plans: each byte of a batch is in one task, limits are shared fairly, pruning leaves out only what it may."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import XlogTruncatedError
from sources.xlog.directory.listing import FileEnd, LogFile
from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.directory.source import Source
from sources.xlog.format.vclock import Vclock, is_at_most
from sources.xlog.stream.plan import (
    MIN_RANGE_BYTES,
    ReplicasetFiles,
    budget_end,
    fair_shares,
    logs_within,
    range_bytes,
    segments_of,
    share_tasks,
    split_segment,
    with_segment_numbers,
)
from sources.xlog.stream.segment import ByteRange, LogGap, Segment

HEADER = 100


def log(number_: int, size: int = 1000, suffix: str = "xlog") -> LogFile:
    name = f"{number_:020d}.{suffix}"
    return LogFile(name, f"/a1/{name}", size, None, HEADER, {1: number_} if number_ else {}, None, "uuid")


def files_read(
    files: list[LogFile], start: int, end: int, gaps: list[LogGap | None] | None = None
) -> ReplicasetFiles:
    first = OffsetEntry("a1", files[0].name, start, {})
    last = OffsetEntry("a1", files[-1].name, end, {})
    ends = tuple(FileEnd(file.size - 4, has_marker=True) for file in files[:-1])
    return ReplicasetFiles(
        "r", Source("a1", "/a1"), tuple(files), ends, tuple(gaps or [None] * len(files)), first, last
    )


def spans(planned: ReplicasetFiles) -> list[tuple[str, int, int]]:
    return [(segment.file[17:], segment.begin, segment.end) for segment in segments_of(planned)]


def test_each_file_is_read_from_its_first_block_to_its_last() -> None:
    planned = files_read([log(0), log(1), log(2)], 300, 700)
    assert spans(planned) == [("000.xlog", 300, 996), ("001.xlog", 100, 996), ("002.xlog", 100, 700)]


def test_files_without_blocks_have_no_segment() -> None:
    assert spans(files_read([log(0), log(1, HEADER + 4), log(2)], 996, 0)) == []
    assert spans(files_read([log(0)], 0, 0)) == []
    assert spans(files_read([log(0)], 0, 101)) == [("000.xlog", 100, 101)]


def test_a_file_that_shrank_is_an_error() -> None:
    with pytest.raises(XlogTruncatedError, match="shorter"):
        spans(files_read([log(0), log(1)], 1001, 500))


def test_a_gap_marks_the_next_segment_that_has_rows() -> None:
    gap = LogGap({1: 1}, {1: 5})
    empty = log(5, HEADER + 4)
    planned = files_read([log(0), empty, log(6)], 0, 500, [None, gap, None])
    assert [segment.gap for segment in segments_of(planned)] == [None, gap]
    later = LogGap({1: 6}, {1: 9})
    planned = files_read([log(0), empty, log(9)], 0, 500, [None, gap, later])
    assert [segment.gap for segment in segments_of(planned)] == [None, LogGap({1: 1}, {1: 9})]


def test_the_logs_after_a_snapshot_leave_out_what_it_holds() -> None:
    snapshot = log(5, suffix="snap")
    planned = files_read([snapshot, log(3), log(5), log(7)], 0, 500)
    assert [segment.snapshot_vclock for segment in segments_of(planned)] == [None, {1: 5}, None, None]
    assert [segment.is_snapshot for segment in segments_of(planned)] == [True, False, False, False]


def segment(begin: int, end: int, index: int = 0) -> Segment:
    return Segment(
        "r",
        "a1",
        "/x",
        "x.xlog",
        index,
        begin,
        end,
        is_snapshot=False,
        is_closed=False,
        vclock={},
        instance_uuid=None,
    )


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(10, 400))
def test_every_byte_is_in_exactly_one_task_in_order(sizes: list[int], size: int) -> None:
    segments = with_segment_numbers(segment(HEADER, HEADER + size) for size in sizes)
    ranges = [
        piece
        for each in segments
        for piece in split_segment(each, [each.begin, *range(each.begin + size, each.end, size)])
    ]
    tasks = share_tasks(ranges, size)
    assert [piece for task in tasks for piece in task] == ranges
    assert all(task for task in tasks)
    assert max(sum(piece.end - piece.begin for piece in task) for task in tasks) <= size
    for each in segments:
        own = [piece for piece in ranges if piece.segment.number == each.number]
        assert own[0].begin == each.begin
        assert own[-1].end == each.end
        assert all(one.end == next_.begin for one, next_ in pairwise(own))


@given(st.integers(1, 1000), st.sets(st.integers(0, 1200), max_size=8))
def test_any_split_yields_each_byte_once(length: int, cuts: set[int]) -> None:
    whole = segment(HEADER, HEADER + length)
    starts = sorted(HEADER + cut for cut in cuts if cut < length)
    found = split_segment(whole, starts)
    assert [byte for piece in found for byte in range(piece.begin, piece.end)] == list(
        range(whole.begin, whole.end)
    )


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    ranges = [ByteRange(segment(0, size), 0, size) for size in (10, 20, 100, 5, 5)]
    assert [[r.end for r in task] for task in share_tasks(ranges, 100)] == [[10, 20], [100], [5, 5]]
    assert share_tasks([], 100) == []


def test_min_partitions_makes_smaller_tasks_but_not_tiny_ones() -> None:
    assert range_bytes(8 * MIN_RANGE_BYTES, 32 * MIN_RANGE_BYTES, 4) == 2 * MIN_RANGE_BYTES
    assert range_bytes(8 * MIN_RANGE_BYTES, 32 * MIN_RANGE_BYTES, 100) == MIN_RANGE_BYTES
    assert range_bytes(100 * MIN_RANGE_BYTES, 32 * MIN_RANGE_BYTES, 2) == 32 * MIN_RANGE_BYTES
    assert range_bytes(10, 5, 1) == 5


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=8), st.integers(1, 3000))
def test_a_limit_is_shared_fairly(wants: dict[str, int], limit: int) -> None:
    given_ = fair_shares(wants, limit)
    assert set(given_) == set(wants)
    assert all(min(want, 1) <= given_[name] <= want for name, want in wants.items())
    assert sum(given_.values()) <= max(limit, sum(1 for want in wants.values() if want))
    unmet = [name for name in wants if given_[name] < wants[name]]
    if unmet:
        least = min(given_[name] for name in unmet)
        assert all(given_[name] <= least + 1 for name in wants), "nobody has more than one who wants more"
        if limit >= len(wants):
            assert sum(given_.values()) >= limit - len(wants), "nothing worth a byte each is left"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), st.integers(0, 400))
def test_a_budget_reaches_as_far_as_it_goes(sizes: list[int], budget: int) -> None:
    index, taken = budget_end(sizes, budget)
    passed = sum(sizes[:index]) + taken
    assert passed == min(max(budget, 1), sum(sizes))
    assert 0 <= taken <= sizes[index]


def vclock(number_: int) -> Vclock:
    return {1: number_}


@pytest.mark.parametrize(
    ("after", "upto", "expected"),
    [
        (None, None, (0, 3)),
        ({1: 0}, None, (0, 3)),
        ({1: 4}, None, (0, 3)),
        ({1: 5}, None, (1, 3)),
        ({1: 99}, None, (2, 3)),
        (None, {1: 0}, (0, 0)),
        (None, {1: 1}, (0, 1)),
        (None, {1: 5}, (0, 1)),
        (None, {1: 6}, (0, 2)),
        ({1: 5}, {1: 9}, (1, 2)),
        ({1: 5}, {2: 9}, (1, 3)),
        ({1: 5}, {1: 4}, (1, 1)),
    ],
)
def test_logs_that_cannot_hold_wanted_rows_are_left_out(
    after: Vclock | None, upto: Vclock | None, expected: tuple[int, int]
) -> None:
    assert logs_within([{}, {1: 5}, {1: 9}], after, upto) == expected


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=8),
    st.none() | st.dictionaries(st.integers(0, 2), st.integers(0, 9)),
    st.none() | st.dictionaries(st.integers(0, 2), st.integers(0, 9)),
)
def test_pruning_never_loses_a_row(
    written: list[tuple[int, int]], after: dict[int, int] | None, upto: dict[int, int] | None
) -> None:
    """Each log holds `count` rows of one replica id; a row is wanted if after < lsn <= upto."""
    reached: dict[int, int] = {}
    headers, rows = [], []
    for id_, count in written:
        headers.append(dict(reached))
        begin = reached.get(id_, 0)
        rows.append([(id_, lsn) for lsn in range(begin + 1, begin + count + 1)])
        reached[id_] = begin + count
    first, last = logs_within(headers, after, upto)
    for index, held in enumerate(rows):
        for id_, lsn in held:
            wanted = (after is None or lsn > after.get(id_, 0)) and (upto is None or lsn <= upto.get(id_, 0))
            assert not wanted or first <= index < last
    if upto is not None and first < last:
        assert not is_at_most(upto, headers[last - 1])
