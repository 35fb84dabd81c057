"""Following directories: every row once, in order, whatever the servers do between two questions."""

import json
import shutil
import tempfile
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import OffsetError, SourceError, XlogMagicError, XlogMissingError, XlogTruncatedError
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.offset import Offset, OffsetEntry, from_text, to_text
from sources.xlog.format.block import EOF_MARKER, encode_block
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from tests.soaked import examples
from tests.sources.xlog.logs import BLOCK, A, B, Server, lsns, rows_between

NIL = "00000000-0000-0000-0000-000000000000"


def log_stream(path: Path, **given_: str) -> LogStream:
    return LogStream(parse_options({"path": str(path)} | given_))


def sources(*paths: Path, **given_: str) -> dict[str, str]:
    """Return options that name sources after their directories."""
    return {"sources": json.dumps([{"name": path.name, "path": str(path)} for path in paths])} | given_


def drain(
    asked: LogStream, at: Offset, max_bytes: int | None = None
) -> tuple[list[tuple[str, int, int]], Offset]:
    """Read batch after batch until nothing is left; return the rows and where that was."""
    rows = []
    while (end := asked.latest(at, max_bytes)) != at:
        rows += rows_between(asked, at, end)
        at = end
    return rows, at


def test_an_initial_offset_has_no_rows_and_the_next_has_all(tmp_path: Path) -> None:
    Server(tmp_path).write(rows=5)
    asked = log_stream(tmp_path)
    start = asked.initial()
    assert start == {NIL: OffsetEntry(str(tmp_path), "00000000000000000000.xlog", 0, {})}
    assert rows_between(asked, start, start) == []
    assert lsns(rows_between(asked, start, asked.latest(start))) == [1, 2, 3, 4, 5]


def test_the_end_of_a_file_is_the_start_of_the_next_one(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=3)
    asked = log_stream(tmp_path)
    before = asked.latest(asked.initial())
    server.rotate()
    assert asked.latest(before) == before, "the marker alone is nothing new"
    server.open()
    after = asked.latest(before)
    assert after[NIL] == OffsetEntry(str(tmp_path), "00000000000000000003.xlog", 0, {1: 3})
    (tmp_path / "00000000000000000000.xlog").unlink()
    server.write(rows=1)
    assert lsns(rows_between(asked, after, asked.latest(after))) == [4], "a collected file is not missed"


@pytest.mark.parametrize("max_bytes", [1, 60, 150, 1000])
def test_a_limit_ends_at_whole_blocks_and_loses_nothing(tmp_path: Path, max_bytes: int) -> None:
    server = Server(tmp_path)
    for _ in range(4):
        server.write(rows=10).rotate()
    asked = log_stream(tmp_path)
    start = asked.initial()
    one = asked.latest(start, max_bytes)
    assert len(rows_between(asked, start, one)) == max(1, -(-max_bytes // BLOCK)), "rounded up to a block"
    rows, end = drain(asked, start, max_bytes)
    assert lsns(rows) == list(range(1, 41))
    assert to_text(end) == to_text(asked.latest(start))


def test_a_stream_that_begins_behind_a_tuple_that_ends_like_the_end_marker_reads_on(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.append(encode_block(server.row(1, fields=[1, EOF_MARKER]), compress=False))
    start = log_stream(tmp_path).initial()
    rows, at = drain(log_stream(tmp_path), start)
    server.write()
    more, at = drain(log_stream(tmp_path), at)
    server.append(encode_block(server.row(1, fields=[3, EOF_MARKER]), compress=False))
    last, at = drain(log_stream(tmp_path), at)
    server.crash().write()
    after, _ = drain(log_stream(tmp_path), at)
    assert lsns(rows + more + last + after) == [1, 2, 3, 4]


def test_a_torn_tail_waits(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=2)
    path = tmp_path / "00000000000000000000.xlog"
    before = path.read_bytes()
    server.write()
    whole = path.read_bytes()
    asked = log_stream(tmp_path)
    path.write_bytes(before)
    at = asked.latest(asked.initial())
    for size in range(len(before), len(whole)):
        path.write_bytes(whole[:size])
        assert asked.latest(at) == at
    path.write_bytes(whole)
    assert lsns(rows_between(asked, at, asked.latest(at))) == [3]


def test_a_snapshot_comes_first_then_the_rows_after_it(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=5)
    server.snapshot(rows=4)
    asked = log_stream(tmp_path, includeSnapshot="true")
    start = asked.initial()
    rows, at = drain(asked, start)
    assert [file[17:] for file, _, _ in rows] == ["005.snap"] * 4, (
        "rows that the snapshot holds are not repeated"
    )
    server.write(rows=2)
    more, at = drain(asked, at)
    assert lsns(more) == [6, 7]
    assert at[NIL].snapshot_vclock is None
    files = [segment.file[17:] for segment in segments_between(asked, start, at)]
    assert files == ["005.snap", "005.xlog"], "a log that the snapshot covers is not read at all"


def test_logs_that_a_snapshot_did_not_rotate_are_read_from_its_vclock(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=5)
    other = Server(tmp_path / "elsewhere", vclock=dict(server.vclock))
    shutil.move(other.snapshot(), tmp_path)  # as 1.6 did: the log continues
    server.write(rows=3)
    asked = log_stream(tmp_path, start="snapshot")
    rows, at = drain(asked, asked.initial(), max_bytes=100)
    assert lsns(rows) == [6, 7, 8]
    assert at[NIL].snapshot_vclock == {1: 5}
    server.rotate().write(rows=1)
    more, at = drain(asked, at)
    assert lsns(more) == [9]
    assert at[NIL].snapshot_vclock is None


def test_history_begins_with_the_oldest_snapshot_that_the_logs_continue(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.snapshot(rows=1)
    server.write(rows=5)
    server.snapshot(rows=2)
    server.write(rows=5)
    server.snapshot(rows=3)
    server.write(rows=1)
    asked = log_stream(tmp_path, start="history")
    rows, _ = drain(asked, asked.initial())
    assert [file[17:] for file, _, _ in rows] == ["000.snap"] + ["000.xlog"] * 5 + ["005.xlog"] * 5 + [
        "010.xlog"
    ]
    (tmp_path / "00000000000000000000.xlog").unlink()
    assert asked.initial()[NIL].file == "00000000000000000005.snap"
    for snapshot in tmp_path.glob("*.snap"):
        snapshot.unlink()
    assert asked.initial()[NIL].file == "00000000000000000005.xlog", "without snapshots: the first log"


def test_an_incomplete_snapshot_is_not_begun_with(tmp_path: Path) -> None:
    server = Server(tmp_path)
    snap = server.snapshot()
    whole = snap.read_bytes()
    server.write()
    snap.write_bytes(whole[:-4])
    with pytest.raises(SourceError, match="no complete snapshot"):
        log_stream(tmp_path, start="snapshot").initial()
    snap.write_bytes(whole)
    assert log_stream(tmp_path, start="snapshot").initial()[NIL].file == snap.name


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=2)
    asked = log_stream(tmp_path)
    at = asked.latest(asked.initial())
    server.rotate().write(rows=2)
    (tmp_path / "00000000000000000000.xlog").unlink()
    with pytest.raises(XlogMissingError, match=r"00000000000000000000\.xlog"):
        asked.latest(at)


def test_a_file_that_vanished_before_a_replay_is_named(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=2)
    asked = log_stream(tmp_path)
    start = asked.initial()
    end = asked.latest(start)
    server.rotate().write()
    (tmp_path / "00000000000000000000.xlog").unlink()
    with pytest.raises(XlogMissingError, match=r"00000000000000000000\.xlog"):
        segments_between(log_stream(tmp_path), start, end)


def test_a_file_that_shrank_is_named(tmp_path: Path) -> None:
    Server(tmp_path).write(rows=3)
    at = log_stream(tmp_path).latest(log_stream(tmp_path).initial())
    path = tmp_path / "00000000000000000000.xlog"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(XlogTruncatedError, match="shorter"):
        log_stream(tmp_path).latest(at)


def test_damage_in_the_growing_file_is_an_error_and_a_lenient_mode_continues(tmp_path: Path) -> None:
    Server(tmp_path).write(rows=6)
    path = tmp_path / "00000000000000000000.xlog"
    data = bytearray(path.read_bytes())
    data[-3 * BLOCK] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(XlogMagicError, match=r"00000000000000000000\.xlog"):
        log_stream(tmp_path).latest(log_stream(tmp_path).initial())
    asked = log_stream(tmp_path, mode="DROPMALFORMED")
    rows, _ = drain(asked, asked.initial())
    assert lsns(rows) == [1, 2, 3, 5, 6]
    asked = log_stream(tmp_path, mode="DROPMALFORMED", splitBytes="50")
    rows, _ = drain(asked, asked.initial(), max_bytes=70)
    assert lsns(rows) == [1, 2, 3, 5, 6]


def test_offsets_out_of_order_are_refused(tmp_path: Path) -> None:
    Server(tmp_path).write().rotate().write()
    asked = log_stream(tmp_path)
    start = asked.initial()
    end = asked.latest(start)
    with pytest.raises(OffsetError):
        segments_between(asked, end, start)
    with pytest.raises(OffsetError):
        segments_between(asked, {}, end)
    moved = {NIL: OffsetEntry("other", end[NIL].file, end[NIL].position, {})}
    with pytest.raises(OffsetError):
        segments_between(asked, start, moved)


def test_one_file_is_followed(tmp_path: Path) -> None:
    Server(tmp_path).write(rows=2).rotate().write(rows=2)
    asked = log_stream(tmp_path / "00000000000000000000.xlog")
    rows, _ = drain(asked, asked.initial())
    assert lsns(rows) == [1, 2]


def test_a_planned_batch_is_the_same_later_and_for_another_log_stream(tmp_path: Path) -> None:
    server = Server(tmp_path / "a1")
    server.snapshot()
    server.write(rows=4)
    given_ = sources(tmp_path / "a1", start="snapshot")
    asked = LogStream(parse_options(given_))
    start = asked.initial()
    end = asked.latest(start)
    planned = segments_between(asked, start, end)
    assert [(s.number, s.replicaset_uuid, s.source) for s in planned] == [(0, A, "a1"), (1, A, "a1")]
    server.write(rows=4).rotate().write(rows=4)
    server.snapshot()
    other = LogStream(parse_options(given_))
    assert segments_between(other, from_text(to_text(start)), from_text(to_text(end))) == planned


def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=3)
    asked = log_stream(tmp_path)
    asked.fix_end()
    server.write(rows=3)
    later = log_stream(tmp_path).latest(asked.initial())
    assert asked.latest(later) == later, "an end that was passed stays passed"
    server.rotate().write(rows=3)
    rows, at = drain(asked, asked.initial(), max_bytes=50)
    assert lsns(rows) == [1, 2, 3]
    more, _ = drain(log_stream(tmp_path), at)
    assert lsns(more) == [4, 5, 6, 7, 8, 9]


def test_replicasets_share_a_limit_and_number_their_segments(tmp_path: Path) -> None:
    for name, files in (("a1", 1), ("b1", 3)):
        server = Server(tmp_path / name, name)
        server.snapshot()
        for _ in range(files):
            server.write(rows=20).rotate()
    asked = LogStream(parse_options(sources(tmp_path / "a1", tmp_path / "b1")))
    start = asked.initial()
    assert set(start) == {A, B}
    end = asked.latest(start, 20 * BLOCK)
    counts = [s.replicaset_uuid for s in segments_between(asked, start, end)]
    assert counts == [A, B]
    rows = rows_between(asked, start, end)
    assert len(rows) == 20, "ten blocks each"
    everything = segments_between(asked, start, asked.latest(start))
    assert [(s.number, s.source, s.file[17:20]) for s in everything] == [
        (0, "a1", "000"),
        (1, "b1", "000"),
        (2, "b1", "020"),
        (3, "b1", "040"),
    ]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("rotate"), st.just(0)),
        st.tuples(st.just("snapshot"), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 30)),
        st.tuples(st.just("read"), st.integers(0, 200)),
        st.tuples(st.just("collect"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(actions)
def test_every_row_comes_once_whatever_happens(todo: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        server.open()
        asked = log_stream(Path(folder))
        at: Offset = asked.initial()
        seen: list[int] = []
        for action, number in [*todo, ("read", 0)]:
            if action == "write":
                server.write(rows=number)
            elif action == "rotate":
                server.rotate()
            elif action == "snapshot" and not server.file("snap").exists():
                server.snapshot()
            elif action == "crash":
                server.crash(torn=number)
            elif action == "restart":
                asked = log_stream(Path(folder))
            elif action == "read":
                end = asked.latest(at, number or None)
                seen += lsns(rows_between(asked, at, end))
                at = end
            elif action == "collect":  # Tarantool removes logs that are passed
                for log in sorted(Path(folder).glob("*.xlog")):
                    if log.name < at[NIL].file:
                        log.unlink()
        assert seen == list(range(1, server.vclock.get(1, 0) + 1))


@pytest.mark.parametrize("start", ["logs", "snapshot"])
def test_headers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    server = Server(tmp_path)
    server.snapshot()
    for _ in range(3):
        server.write(rows=2).rotate()
    asked = log_stream(tmp_path)
    at = asked.latest(asked.initial())
    opened: list[str] = []
    really = Directory.locate

    def opening(self: Directory, name: str) -> tuple[pafs.FileSystem, str]:
        opened.append(name)
        return really(self, name)

    monkeypatch.setattr(Directory, "locate", opening)
    again = log_stream(tmp_path, start=start)
    assert again.latest(at) == at
    assert opened, "the first question reads headers"
    opened.clear()
    assert again.latest(at) == at
    assert opened == [], "an idle question lists the directory and opens nothing"
    server.write()
    newest = again.latest(at)
    assert newest[NIL].file == "00000000000000000006.xlog"
    assert set(opened) == {"00000000000000000006.xlog"}, "and a later one only what is new"
    for log in sorted(tmp_path.glob("*.xlog"))[:-1]:
        log.unlink()
    assert again.latest(newest) == newest
    assert len(again.directory(str(tmp_path))._meta_by_file) <= 2, "what is gone is forgotten"
