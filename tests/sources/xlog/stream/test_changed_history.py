"""Logs whose history changed under their names: a stream notices it by its offset alone, and reads them again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import SourceError, XlogRewrittenError, XlogTruncatedError
from sources.xlog.directory.offset import Offset, from_text, to_text
from sources.xlog.options import parse_options
from sources.xlog.reader.fingerprint import CHECKED_BYTES, checksum_before
from sources.xlog.reader.reader import open_fs
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from tests.jobs.written import Node
from tests.sources.xlog.logs import A, B, Server, lsns, rows_between

NAME = "00000000000000000003.xlog"


def stream_of(path: Path, **more: str) -> LogStream:
    """Return the stream of a deployment with one source."""
    source = json.dumps([{"name": "a1", "path": str(path), "replicaset": A}])
    return LogStream(parse_options({"sources": source, "gaps": "report", **more}))


def server_at(path: Path, filler: str, *rows: int) -> Server:
    """Write a log of each number of rows; the filler makes the histories differ where they are as long."""
    server = Server(path)
    for number, count in enumerate(rows):
        if number:
            server.rotate()
        if number == len(rows) - 1:
            server.filler = filler
        for _ in range(count):
            server.write(rows=1)
    return server


def read_all(stream: LogStream, at: Offset) -> tuple[list[int], Offset]:
    found: list[int] = []
    while (end := stream.latest(at)) != at:
        found += lsns(rows_between(stream, at, end))
        at = from_text(to_text(end))
    return found, at


def replace(path: Path, other: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(other, path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "equal sizes": lambda path: server_at(path, "b", 3, 4),
    "longer": lambda path: server_at(path, "b", 3, 7),
    "truncated and continued": lambda path: server_at(path, "bb", 3, 2, 5),
    "shorter": lambda path: server_at(path, "a", 3, 2),
    "an older state": lambda path: server_at(path, "a", 2),
    "an older state, continued": lambda path: server_at(path, "b", 2, 5),
    "other logs": lambda path: server_at(path, "b", 1, 2, 4),
}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_history_is_read_again_from_the_oldest_log(
    tmp_path: Path, change: str, is_restarted: bool
) -> None:
    server_at(tmp_path / "s", "a", 3, 4)
    stream = stream_of(tmp_path / "s")
    found, at = read_all(stream, {})
    assert found == [1, 2, 3, 4, 5, 6, 7]
    CHANGES[change](tmp_path / "other")
    replace(tmp_path / "s", tmp_path / "other")
    stream = stream_of(tmp_path / "s") if is_restarted else stream
    again = stream.latest(at)
    assert again[A].is_restart
    assert (again[A].file, again[A].position) == ("00000000000000000000.xlog", 0)
    assert segments_between(stream, at, again) == (), "the batch of a restart reads nothing"
    found, at = read_all(stream, again)
    assert found == list(range(1, len(found) + 1))
    assert stream.latest(at) == at, "it is read again once"


def test_growth_is_no_change(tmp_path: Path) -> None:
    server = server_at(tmp_path / "s", "a", 3, 4)
    stream = stream_of(tmp_path / "s")
    _, at = read_all(stream, {})
    for rows in (1, 3):
        server.write(rows=rows)
        found, at = read_all(stream_of(tmp_path / "s"), at)
        assert len(found) == rows
    shutil.copytree(tmp_path / "s", tmp_path / "copy", copy_function=shutil.copy)
    replace(tmp_path / "s", tmp_path / "copy")
    assert read_all(stream, at) == ([], at), "a copy is the same log"


def test_a_file_of_another_instance(tmp_path: Path) -> None:
    server_at(tmp_path / "s", "a", 3, 4)
    stream = stream_of(tmp_path / "s")
    _, at = read_all(stream, {})
    Server(tmp_path / "other", "a2", {1: 2, 2: 1}).write(replica_id=2, rows=4)
    shutil.copy(tmp_path / "other" / NAME, tmp_path / "s" / NAME)
    again = stream_of(tmp_path / "s").latest(at)
    assert again[A].is_restart


def test_the_files_of_another_replicaset_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    source = json.dumps([{"name": "a1", "path": str(tmp_path / "s")}])
    stream = LogStream(parse_options({"sources": source, "gaps": "report"}))
    for name in ("a1", "b1"):
        server = Server(tmp_path / name, name)
        server.snapshot()
        server.write(rows=3)
    replace(tmp_path / "s", tmp_path / "a1")
    _, at = read_all(stream, {})
    replace(tmp_path / "s", tmp_path / "b1")
    for asked in (stream, LogStream(stream.options)):
        if asked is stream:
            with pytest.raises(SourceError, match=f"were of replicaset {A}, and are of {B}"):
                asked.latest(at)
        else:
            assert asked.latest(at)[A] == at[A]


@pytest.mark.parametrize("gaps", ["report", "fail"])
def test_a_planned_batch_of_a_history_that_is_gone(tmp_path: Path, gaps: str) -> None:
    """After a kill Spark asks for the same batch again: it reads nothing rather than rows of another history."""
    server_at(tmp_path / "s", "a", 3, 4)
    stream = stream_of(tmp_path / "s", gaps=gaps)
    start = stream.latest({})
    end = stream.latest(start)
    for other, error in (("b", XlogRewrittenError), ("", XlogTruncatedError)):
        shutil.rmtree(tmp_path / "s")
        server_at(tmp_path / "s", other, 3, 4 if other else 1)
        again = stream_of(tmp_path / "s", gaps=gaps)
        if gaps == "fail":
            with pytest.raises(error):
                segments_between(again, start, end)
        else:
            assert segments_between(again, start, end) == ()
            assert again.latest(end)[A].is_restart


def test_a_plain_stream_says_why_it_stops(tmp_path: Path) -> None:
    server_at(tmp_path / "s", "a", 3, 4)
    stream = LogStream(parse_options({"path": str(tmp_path / "s")}))
    _, at = read_all(stream, {})
    shutil.rmtree(tmp_path / "s")
    server_at(tmp_path / "s", "b", 3, 4)
    with pytest.raises(XlogRewrittenError, match=r"another history.*start again from a snapshot"):
        LogStream(stream.options).latest(at)


def test_a_snapshot_that_was_replaced_is_a_generation(tmp_path: Path) -> None:
    """The tables may have rows of the old snapshot, so all are replaced."""
    node = Node(tmp_path, "a1").define(600, "s").put(600, 1, "a", 1, 1)
    node.close()
    snapshot = node.snapshot({600: [(key, "old", 1, 1) for key in range(12_000)]})
    stream = stream_of(node.path, start="snapshot")
    at = stream.latest(stream.latest({}), 1)
    assert at[A].is_snapshot
    assert at[A].position > 0
    snapshot.unlink()
    node.snapshot({600: [(key, "new", 1, 1) for key in range(12_000)]})
    again = stream_of(node.path, start="snapshot").latest(at)
    assert again[A].is_restart
    assert (again[A].position, again[A].snapshot_vclock) == (0, {1: 4})


def test_lost_rows_are_told_while_none_of_them_is_written_again(tmp_path: Path) -> None:
    server_at(tmp_path / "s", "a", 3, 4)
    _, at = read_all(stream_of(tmp_path / "s"), {})
    shutil.rmtree(tmp_path / "s")
    server = server_at(tmp_path / "s", "a", 3, 2)
    stream = stream_of(tmp_path / "s", startVclock=json.dumps({A: {"1": 7}}))
    _, at = read_all(stream, at)
    assert "its logs end at {1: 5}, rows up to {1: 7} are in the tables" in stream.unreadable_sources["a1"]
    server.write(rows=2)
    _, at = read_all(stream, at)
    assert not stream.unreadable_sources


@pytest.mark.parametrize("size", [10, CHECKED_BYTES, 20 * CHECKED_BYTES])
def test_any_change_of_the_last_block_changes_the_checksum(tmp_path: Path, size: int) -> None:
    """A long block is checked whole: two servers may write one large tuple at different times."""
    server = Server(tmp_path).write(rows=2)
    begin = server.open().stat().st_size
    server.filler = "x" * size
    server.write(rows=1)
    log = server.open()
    content = log.read_bytes()
    before = checksum_before(*open_fs(str(log)), len(content))
    for position in (begin + 4, begin + 25, len(content) - 1):
        log.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert checksum_before(*open_fs(str(log)), len(content)) != before
    log.write_bytes(content + b"more")
    assert checksum_before(*open_fs(str(log)), len(content)) == before
    log.write_bytes(content[:-1])
    with pytest.raises(XlogTruncatedError):
        checksum_before(*open_fs(str(log)), len(content))


@pytest.mark.parametrize("is_equal", [True, False])
def test_the_directory_of_one_instance_twice(tmp_path: Path, is_equal: bool) -> None:
    """A copy may stand by; a copy that was written to on its own is named, as its rows are in no table."""
    server_at(tmp_path / "s", "a", 3, 4)
    server_at(tmp_path / "t", "a" if is_equal else "b", 3, 2)
    names = [{"name": name, "path": str(tmp_path / name), "replicaset": A} for name in ("s", "t")]
    stream = LogStream(parse_options({"sources": json.dumps(names), "gaps": "report"}))
    found, at = read_all(stream, {})
    assert found == [1, 2, 3, 4, 5, 6, 7]
    assert at[A].leader == "s"
    if is_equal:
        assert not stream.unreadable_sources
    else:
        assert f"other rows in {NAME} than the source s" in stream.unreadable_sources["t"]
