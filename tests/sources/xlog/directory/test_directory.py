"""Directories: which files are there, in which order, where each ends."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from schemas.errors import (
    SourceError,
    XlogHeaderError,
    XlogMagicError,
    XlogMetaError,
    XlogMetaIncompleteError,
)
from sources.xlog.directory.directory import Directory, child_path
from sources.xlog.directory.listing import FileEnd
from sources.xlog.directory.source import Source
from sources.xlog.format.block import EOF_MARKER, encode_block
from sources.xlog.format.damage import Mode
from sources.xlog.stream.identity import replicaset_uuid_of
from tests.sources.xlog.logs import A, B, Server, uuid_of
from tests.truth import recordings


def directory(path: Path, mode: Mode = Mode.FAILFAST, replicaset: str | None = None) -> Directory:
    return Directory(Source("a1", str(path), replicaset), mode)


def test_files_are_listed_in_the_order_of_the_log(tmp_path: Path) -> None:
    server = Server(tmp_path)
    for _ in range(12):
        server.write(rows=1).rotate()
    (tmp_path / "00000000000000000099.snap.inprogress").write_bytes(b"SNAP\n")
    (tmp_path / "00000000000000000099.xlog.inprogress").write_bytes(b"XLOG\n")
    (tmp_path / "00000000000000000002.vylog").write_bytes(b"")
    (tmp_path / "512").mkdir()
    (tmp_path / "1.xlog").write_bytes(b"not named by a signature")
    listing = directory(tmp_path).listing()
    assert [log.vclock.get(1, 0) for log in listing.logs] == list(range(12))
    assert [log.prev_vclock for log in listing.logs][:3] == [None, {}, {1: 1}]
    assert listing.snapshots == ()
    assert {log.instance_uuid for log in listing.logs} == {uuid_of("a1")}
    assert all(log.modified_time is not None and log.header_bytes > 50 for log in listing.logs)


def test_a_newest_file_without_its_header_is_not_there_yet(tmp_path: Path) -> None:
    Server(tmp_path).write().rotate().write()
    newest = tmp_path / "00000000000000000001.xlog"
    whole = newest.read_bytes()
    seen = directory(tmp_path)
    for size in (0, 1, 30, whole.index(b"\n\n") + 1):
        newest.write_bytes(whole[:size])
        assert len(seen.listing().logs) == 1
    newest.write_bytes(whole)
    assert len(seen.listing().logs) == 2


def test_an_older_file_with_half_a_header_is_damage(tmp_path: Path) -> None:
    Server(tmp_path).write().rotate().write()
    older = tmp_path / "00000000000000000000.xlog"
    older.write_bytes(older.read_bytes()[:20])
    with pytest.raises(XlogMetaIncompleteError, match=r"00000000000000000000\.xlog"):
        directory(tmp_path).listing()
    older.write_bytes(b"")
    assert len(directory(tmp_path).listing().logs) == 1, "an empty file holds no rows"
    (tmp_path / "00000000000000000001.xlog").write_bytes(b"PNG")
    with pytest.raises(XlogMetaError):
        directory(tmp_path).listing()


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere") as caught:
        directory(tmp_path / "nowhere").listing()
    assert caught.value.fields["source"] == "a1"
    with pytest.raises(SourceError):
        Directory(Source("a1", "nosuchscheme://x/y")).listing()


def test_one_file_is_a_source_too(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=3).rotate()
    snap = server.snapshot()
    alone = tmp_path / "alone.xlog"
    alone.write_bytes((tmp_path / "00000000000000000000.xlog").read_bytes())
    assert [log.name for log in directory(alone).listing().logs] == ["alone.xlog"]
    listing = directory(snap).listing()
    assert ([s.name for s in listing.snapshots], listing.logs, listing.is_file) == ([snap.name], (), True)


def test_a_uri_is_listed(tmp_path: Path) -> None:
    Server(tmp_path).write()
    listing = Directory(Source("a1", tmp_path.as_uri())).listing()
    assert listing.logs[0].path == f"{tmp_path.as_uri()}/00000000000000000000.xlog"
    assert Directory(Source("a1", tmp_path.as_uri())).ends.end_of(listing.logs[0], closed=False).position > 0


def test_the_query_of_a_uri_stays_behind_the_path() -> None:
    assert child_path("s3a://b/d/?region=x", "1.xlog") == "s3a://b/d/1.xlog?region=x"
    assert child_path("/a?b", "1.xlog") == "/a?b/1.xlog"


def test_the_end_of_a_growing_file_follows_whole_blocks(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=2)
    seen = directory(tmp_path)
    path = tmp_path / "00000000000000000000.xlog"
    whole = path.read_bytes()
    server.write()
    longer = path.read_bytes()
    for size in range(len(whole), len(longer)):
        path.write_bytes(longer[:size])
        listing = seen.listing()
        assert seen.ends.end_of(listing.logs[0], closed=False) == FileEnd(len(whole), has_marker=False), size
    path.write_bytes(longer)
    assert seen.ends.end_of(seen.listing().logs[0], closed=False) == FileEnd(len(longer), has_marker=False)
    server.rotate()
    assert seen.ends.end_of(seen.listing().logs[0], closed=False) == FileEnd(len(longer), has_marker=True)


def test_a_closed_file_is_not_walked(tmp_path: Path) -> None:
    Server(tmp_path).write(rows=2).rotate()
    path = tmp_path / "00000000000000000000.xlog"
    data = bytearray(path.read_bytes())
    data[data.index(b"\n\n") + 2] ^= 0xFF
    path.write_bytes(data)
    file = directory(tmp_path).listing().logs[0]
    assert directory(tmp_path).ends.end_of(file, closed=True) == FileEnd(len(data) - 4, has_marker=True)
    assert directory(tmp_path).ends.end_of(file, closed=False) == FileEnd(len(data) - 4, has_marker=True)
    path.write_bytes(data[:-4])
    file = directory(tmp_path).listing().logs[0]
    with pytest.raises(XlogMagicError):
        directory(tmp_path).ends.end_of(file, closed=False)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    ("size", "compress"), [(0, False), (3000, False), (3000, True), (200_000, True), (300_000, False)]
)
def test_a_tuple_that_ends_like_the_end_marker_closes_no_log(
    tmp_path: Path, size: int, compress: bool, closed: bool
) -> None:
    """Bytes that do not become shorter are in a zstd frame as they are, at its end too."""
    server = Server(tmp_path).write(rows=2)
    value = random.Random(1).randbytes(size) + EOF_MARKER
    server.append(encode_block(server.row(1, fields=[3, value]), compress=compress))
    path = tmp_path / f"{0:020}.xlog"
    size = path.stat().st_size
    assert path.read_bytes().endswith(EOF_MARKER)
    seen = directory(tmp_path)
    assert seen.ends.end_of(seen.listing().logs[0], closed=closed) == FileEnd(size, has_marker=False)
    server.rotate()
    assert seen.ends.end_of(seen.listing().logs[0], closed=closed) == FileEnd(size, has_marker=True)
    again = directory(tmp_path)
    assert again.ends.end_of(again.listing().logs[0], closed=closed) == FileEnd(size, has_marker=True)


def test_a_tuple_that_looks_like_a_block_around_the_end_marker_opens_no_log(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.append(encode_block(server.row(1, fields=[1, encode_block(EOF_MARKER)[:-4]]), compress=False))
    server.rotate()
    file = directory(tmp_path).listing().logs[0]
    assert directory(tmp_path).ends.end_of(file, closed=True) == FileEnd(file.size - 4, has_marker=True)


@pytest.mark.parametrize("mode", [Mode.DROPMALFORMED, Mode.PERMISSIVE])
def test_a_lenient_mode_finds_the_end_behind_damage(tmp_path: Path, mode: Mode) -> None:
    Server(tmp_path).write(rows=5)
    path = tmp_path / "00000000000000000000.xlog"
    data = bytearray(path.read_bytes())
    block = (len(data) - data.index(b"\n\n") - 2) // 5
    data[len(data) - 3 * block] ^= 0xFF
    path.write_bytes(data)
    seen = directory(tmp_path, mode)
    assert seen.ends.end_of(seen.listing().logs[0], closed=False).position == len(data)
    path.write_bytes(data + b"garbage")
    assert seen.ends.end_of(seen.listing().logs[0], closed=False).position == len(data), (
        "garbage may be half a block"
    )


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: recording.name)
def test_the_rows_of_each_recorded_log_reach_the_header_of_the_next(recording) -> None:  # type: ignore[no-untyped-def]
    for node in recording.nodes:
        seen = directory(recording.directory(node))
        logs = seen.listing().logs
        for before, after in pairwise(logs):
            assert seen.ends.end_vclock(before) == {i: n for i, n in after.vclock.items() if n}
        reached = {i: n for i, n in seen.ends.end_vclock(logs[-1]).items() if i}
        assert reached == {i: n for i, n in recording.info(node).vclock.items() if i and n}


def test_only_a_complete_snapshot_counts(tmp_path: Path) -> None:
    server = Server(tmp_path)
    first = server.snapshot()
    server.write()
    second = server.snapshot()
    seen = directory(tmp_path)
    newest = seen.newest_complete(seen.listing().snapshots)
    assert newest is not None
    assert newest.name == second.name
    second.write_bytes(second.read_bytes()[:-4])
    newest = seen.newest_complete(seen.listing().snapshots)
    assert newest is not None
    assert newest.name == first.name
    first.write_bytes(first.read_bytes()[:-1])
    assert seen.newest_complete(seen.listing().snapshots) is None


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: recording.name)
def test_every_recorded_snapshot_names_its_replicaset(recording) -> None:  # type: ignore[no-untyped-def]
    for node in recording.nodes:
        seen = directory(recording.directory(node))
        assert replicaset_uuid_of(seen, seen.listing(), None) == recording.info(node).replicaset_uuid


def test_the_replicaset_comes_from_a_log_that_began_before_any_snapshot(tmp_path: Path) -> None:
    Server(tmp_path).system(272, ["replicaset_uuid", A])
    seen = directory(tmp_path)
    assert replicaset_uuid_of(seen, seen.listing(), None) == A


def test_the_error_for_a_source_without_replicaset_names_the_key(tmp_path: Path) -> None:
    Server(tmp_path).write()
    seen = directory(tmp_path)
    with pytest.raises(SourceError, match="replicaset"):
        replicaset_uuid_of(seen, seen.listing(), None)
    named = directory(tmp_path, replicaset=B)
    assert replicaset_uuid_of(named, named.listing(), None) == B


def test_a_wrong_replicaset_is_refused(tmp_path: Path) -> None:
    Server(tmp_path).snapshot()
    seen = directory(tmp_path, replicaset=B)
    with pytest.raises(SourceError, match=f"{A}, not {B}"):
        replicaset_uuid_of(seen, seen.listing(), None)


def test_one_path_needs_no_replicaset(tmp_path: Path) -> None:
    Server(tmp_path).write()
    seen = directory(tmp_path)
    assert replicaset_uuid_of(seen, seen.listing(), A) == A


def test_the_longest_block_is_that_of_the_options_wherever_a_file_is_read(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.snapshot()
    seen = Directory(Source("a1", str(tmp_path)), max_block_bytes=10)
    with pytest.raises(XlogHeaderError, match="raise the option maxBlockBytes"):
        replicaset_uuid_of(seen, seen.listing())


@pytest.mark.parametrize(("kind", "name"), [("SNAP", "xlog"), ("XLOG", "snap"), ("VYLOG", "xlog")])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / f"{0:020}.{name}").write_bytes(f"{kind}\n0.13\nVClock: {{}}\n\n".encode())
    with pytest.raises(XlogMetaError, match=f"file of type {kind}"):
        directory(tmp_path).listing()
    assert directory(tmp_path, Mode.DROPMALFORMED).listing().logs == ()
