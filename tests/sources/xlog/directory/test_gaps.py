"""Gaps between files: found by headers and, if a file was not closed, by its rows; never skipped silently."""

from pathlib import Path

import pytest

from schemas.errors import XlogGapError
from schemas.iproto import RequestType
from sources.xlog.directory.offset import Offset
from sources.xlog.format.block import encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.segment import LogGap, Segment
from tests.sources.xlog.logs import BLOCK, Server, lsns, rows_between

NIL = "00000000-0000-0000-0000-000000000000"


def log_stream(path: Path, **given: str) -> LogStream:
    return LogStream(parse_options({"path": str(path)} | given))


def files(path: Path, count: int, rows: int = 5) -> Server:
    """Return a server that has written `count` files of `rows` rows, the last one growing."""
    server = Server(path)
    for index in range(count):
        server.write(rows=rows)
        if index < count - 1:
            server.rotate()
    return server


def log(path: Path, signature: int) -> Path:
    return path / f"{signature:020d}.xlog"


def whole(asked: LogStream) -> tuple[Offset, Offset]:
    start = asked.initial()
    return start, asked.latest(start)


def gaps(segments: tuple[Segment, ...]) -> dict[str, LogGap | None]:
    return {segment.file[17:20]: segment.gap for segment in segments}


def test_a_missing_middle_file_is_an_error_that_says_what_is_missing(tmp_path: Path) -> None:
    files(tmp_path, 4)
    log(tmp_path, 5).unlink()
    asked = log_stream(tmp_path)
    with pytest.raises(XlogGapError, match=r"reaches \{1: 5\}, it begins at \{1: 10\}") as caught:
        segments_between(asked, *whole(asked))
    assert caught.value.fields["file"] == log(tmp_path, 10).name


def test_a_missing_middle_file_can_be_reported_instead(tmp_path: Path) -> None:
    files(tmp_path, 4)
    log(tmp_path, 5).unlink()
    asked = log_stream(tmp_path, gaps="report")
    start, end = whole(asked)
    marked = gaps(segments_between(asked, start, end))
    assert marked == {"000": None, "010": LogGap({1: 5}, {1: 10}), "015": None}
    assert lsns(rows_between(asked, start, end)) == [*range(1, 6), *range(11, 21)]


def test_two_missing_files_are_one_gap(tmp_path: Path) -> None:
    files(tmp_path, 4)
    log(tmp_path, 5).unlink()
    log(tmp_path, 10).unlink()
    asked = log_stream(tmp_path, gaps="report")
    assert gaps(segments_between(asked, *whole(asked))) == {"000": None, "015": LogGap({1: 5}, {1: 15})}


def test_a_file_that_was_brought_back_fills_the_gap(tmp_path: Path) -> None:
    files(tmp_path, 3)
    asked = log_stream(tmp_path)
    away = log(tmp_path, 5).rename(tmp_path / "away")
    start, end = whole(asked)
    with pytest.raises(XlogGapError):
        segments_between(asked, start, end)
    away.rename(log(tmp_path, 5))
    assert lsns(rows_between(asked, start, end)) == list(range(1, 16))


def test_the_batch_after_a_gap_reports_it(tmp_path: Path) -> None:
    """The stream waits before the hole until there is a row behind it, so no batch begins just after one."""
    server = files(tmp_path, 2)
    server.rotate()
    server.open()
    log(tmp_path, 5).unlink()
    asked = log_stream(tmp_path, gaps="report")
    start, end = whole(asked)
    assert end[NIL].file == log(tmp_path, 0).name
    assert gaps(segments_between(asked, start, end)) == {"000": None}
    server.write(rows=2)
    later = asked.latest(end)
    assert gaps(segments_between(asked, end, later)) == {"010": LogGap({1: 5}, {1: 10})}
    one_by_one = end
    found = []
    while (next_ := asked.latest(one_by_one, 1)) != one_by_one:
        found += [segment.gap for segment in segments_between(asked, one_by_one, next_)]
        one_by_one = next_
    assert found == [LogGap({1: 5}, {1: 10}), None]


@pytest.mark.parametrize("torn", [0, 1, 10, 30])
def test_a_crash_is_no_gap(tmp_path: Path, torn: int) -> None:
    server = files(tmp_path, 1)
    server.crash(torn).write(rows=3)
    asked = log_stream(tmp_path)
    start, end = whole(asked)
    assert set(gaps(segments_between(asked, start, end)).values()) == {None}
    assert lsns(rows_between(asked, start, end)) == list(range(1, 9))


@pytest.mark.parametrize("cut", [3, 4, 5, BLOCK, BLOCK + 3, BLOCK + 4, BLOCK + 5, 2 * BLOCK])
def test_a_closed_file_that_lost_its_end_is_a_gap_unless_only_the_marker_went(
    tmp_path: Path, cut: int
) -> None:
    files(tmp_path, 2)
    path = log(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-cut])
    kept = 5 - max(0, -(-(cut - 4) // BLOCK))
    asked = log_stream(tmp_path, gaps="report")
    start, end = whole(asked)
    expected = None if kept == 5 else LogGap({1: kept}, {1: 5})
    assert gaps(segments_between(asked, start, end)) == {"000": None, "005": expected}
    assert lsns(rows_between(asked, start, end)) == [*range(1, kept + 1), *range(6, 11)]


def test_local_rows_take_part(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=2).write(replica_id=0, rows=3).crash()
    server.write(rows=1)
    asked = log_stream(tmp_path)
    assert gaps(segments_between(asked, *whole(asked))) == {"000": None, "005": None}
    data = log(tmp_path, 0).read_bytes()
    log(tmp_path, 0).write_bytes(data[: -((len(data) - data.index(b"\n\n") - 2) // 5)])
    asked = log_stream(tmp_path, gaps="report")
    assert gaps(segments_between(asked, *whole(asked)))["005"] == LogGap({0: 2, 1: 2}, {0: 3, 1: 2})


def test_a_local_row_counts_for_component_0_even_if_it_names_its_instance(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=2)
    row = encode_row(RequestType.NOP, timestamp=1.0, lsn=1, replica_id=1, group_id=1)
    server.append(encode_block(row))
    server.vclock[0] = 1
    server.crash().write(rows=1)
    asked = log_stream(tmp_path)
    assert gaps(segments_between(asked, *whole(asked))) == {"000": None, "003": None}


def test_a_header_that_names_another_predecessor_is_no_gap_where_no_row_is_missing(tmp_path: Path) -> None:
    """Tarantool removes empty logs when it starts; the log after one names it, and nothing is missing."""
    server = Server(tmp_path).write(rows=3).rotate()
    server.previous = {1: 2, 2: 9}
    server.write(rows=1)
    assert b"PrevVClock: {1: 2, 2: 9}" in log(tmp_path, 3).read_bytes()
    asked = log_stream(tmp_path)
    assert set(gaps(segments_between(asked, *whole(asked))).values()) == {None}


def test_logs_that_begin_beyond_a_snapshot_leave_a_gap(tmp_path: Path) -> None:
    server = files(tmp_path, 1)
    server.snapshot()
    server.write(rows=2).rotate().write(rows=2)
    log(tmp_path, 5).unlink()
    log(tmp_path, 0).unlink()
    asked = log_stream(tmp_path, start="snapshot", gaps="report")
    assert gaps(segments_between(asked, *whole(asked))) == {"005": None, "007": LogGap({1: 5}, {1: 7})}
    asked = log_stream(tmp_path, start="snapshot")
    start, end = whole(asked)
    with pytest.raises(XlogGapError):
        segments_between(asked, start, end)


def test_files_before_the_wanted_rows_may_be_missing(tmp_path: Path) -> None:
    files(tmp_path, 4)
    log(tmp_path, 5).unlink()
    asked = log_stream(tmp_path, fromVclock='{"1": 10}')
    start, end = whole(asked)
    assert lsns(rows_between(asked, start, end)) == list(range(11, 21))
