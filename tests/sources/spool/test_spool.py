"""A spool: appended rows survive a kill, a full disk loses no rows, acknowledged files are removed."""

import contextlib
import errno
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem

from schemas.errors import SpoolError, SpoolFullError, TransactionLimitError, XlogError, XlogMetaError
from sources.relay.row_packets import BlockReader
from sources.spool import state as spool_state
from sources.spool.acks import ReaderAck, read_acks, write_ack
from sources.spool.disk_space import removable_files
from sources.spool.options import SpoolOptions, SpoolRetention
from sources.spool.spool import ServerVersions, Spool
from sources.spool.state import read_state, read_tail
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.source import Source
from sources.xlog.format.arrays import Bytes
from sources.xlog.format.block import EOF_MARKER
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import PEER_VERSIONS_KEY, Meta
from sources.xlog.reader.reader import Limits, read_rows
from tests.bodies import encode_body

UUID = "00000000-0000-4000-8000-0000000000ff"
TUPLE = msgpack.packb([1, "x" * 40])


def rows(replica: int, first: int, count: int) -> Bytes:
    body = encode_body(space_id=512, tuple_=TUPLE)
    encoded = [encode_row(3, body, timestamp=1.5, replica_id=replica, lsn=first + k) for k in range(count)]
    return np.frombuffer(b"".join(encoded), np.uint8)


@contextlib.contextmanager
def open_spool(directory: Path, **options: Any) -> Iterator[Spool]:
    with Spool(directory, SpoolOptions(**options)) as spool:
        spool.instance_uuid = UUID
        yield spool


def append_blocks(directory: Path, blocks: int, **options: Any) -> None:
    with open_spool(directory, **options) as spool:
        if spool.vclock is None:
            spool.begin_at({})
        first = (spool.vclock or {}).get(1, 0) + 1
        for k in range(blocks):
            spool.append(rows(1, first + 10 * k, 10), {1: first + 10 * k + 9})


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.xlog"))


def read_all(directory: Path) -> bytes:
    found = b""
    for name in names(directory):
        with BlockReader(directory / name) as reader:
            while blocks := reader.read_blocks():
                found += b"".join(block.tobytes() for block in blocks)
    return found


def test_an_empty_directory_is_an_empty_spool(tmp_path: Path) -> None:
    assert read_state(tmp_path).vclock is None


def test_logs_are_closed_by_size_and_continued(tmp_path: Path) -> None:
    append_blocks(tmp_path, 20, rotate_bytes=2000, compress=False)
    state = read_state(tmp_path)
    assert state.vclock == {1: 200}
    assert len(names(tmp_path)) > 3
    assert read_all(tmp_path) == rows(1, 1, 200).tobytes()
    metas = [file.meta for file in spool_state.spool_files(tmp_path, ".xlog")]
    assert all(after.prev_vclock == before.vclock for before, after in pairwise(metas))


def test_a_log_truncated_at_any_byte_continues_after_its_last_complete_block(tmp_path: Path) -> None:
    append_blocks(tmp_path / "whole", 3, compress=False)
    name = names(tmp_path / "whole")[0]
    whole = (tmp_path / "whole" / name).read_bytes()
    header = whole.index(b"\n\n") + 2
    for cut in range(header, len(whole) + 1, 7):
        directory = tmp_path / "cut"
        directory.mkdir(exist_ok=True)
        for old in directory.glob("0*"):
            old.unlink()
        (directory / "lock").touch()
        (directory / name).write_bytes(whole[:cut])
        before = (read_state(directory).vclock or {}).get(1, 0)
        assert before in (0, 10, 20, 30)
        append_blocks(directory, 1, compress=False)
        assert read_all(directory) == rows(1, 1, before + 10).tobytes()


def test_a_damaged_end_is_cut_off(tmp_path: Path) -> None:
    append_blocks(tmp_path, 3, compress=False)
    path = tmp_path / names(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data[:-4])
    assert read_state(tmp_path).vclock == {1: 20}
    append_blocks(tmp_path, 1, compress=False)
    assert read_all(tmp_path) == rows(1, 1, 30).tobytes()


def test_a_killed_daemon_continues_a_log_that_ends_like_the_end_marker(tmp_path: Path) -> None:
    append_blocks(tmp_path, 1)
    body = encode_body(space_id=512, tuple_=msgpack.packb([1, EOF_MARKER]))
    spool = Spool(tmp_path, SpoolOptions(compress=False))
    spool.__enter__()
    spool.append(np.frombuffer(encode_row(3, body, timestamp=1.5, replica_id=1, lsn=11), np.uint8), {1: 11})
    spool.abandon()
    tail = read_state(tmp_path).tail
    assert tail is not None
    assert (tail.end, tail.is_closed) == (tail.path.stat().st_size, False)
    append_blocks(tmp_path, 1)
    assert len(names(tmp_path)) == 2, "the log was continued, not followed by another one"


def test_two_daemons_do_not_write_one_spool(tmp_path: Path) -> None:
    with open_spool(tmp_path), pytest.raises(SpoolError, match="another process"), open_spool(tmp_path):
        pass


def test_a_full_disk_loses_nothing_and_the_spool_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.write, [10**9]

    def write(file: int, data: Any) -> int:
        size = min(len(data), room[0])
        if size == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= size
        return real(file, bytes(data[:size]))

    monkeypatch.setattr(os, "write", write)
    with open_spool(tmp_path, compress=False) as spool:
        spool.begin_at({})
        spool.append(rows(1, 1, 10), {1: 10})
        room[0] = 100
        with pytest.raises(SpoolFullError):
            spool.append(rows(1, 11, 10), {1: 20})
        assert (spool.is_full, spool.vclock) == (True, {1: 10})
        assert read_state(tmp_path).vclock == {1: 10}
        with pytest.raises(SpoolFullError):
            spool.write_waiting_rows()
        room[0] = 10**9
        spool.write_waiting_rows()
        assert (spool.is_full, spool.vclock) == (False, {1: 20})
    assert read_all(tmp_path) == rows(1, 1, 20).tobytes()


def test_a_gap_shows_in_the_headers(tmp_path: Path) -> None:
    append_blocks(tmp_path, 1)
    with open_spool(tmp_path) as spool:
        spool.create_snapshot({1: 50}).close()
        spool.continue_from({1: 50})
        spool.append(rows(1, 51, 5), {1: 55})
    metas = [file.meta for file in spool_state.spool_files(tmp_path, ".xlog")]
    assert [(dict(m.vclock), m.prev_vclock) for m in metas] == [({}, None), ({1: 50}, {1: 50})]
    assert read_state(tmp_path).vclock == {1: 55}


OLD, NEW = ServerVersions("2.6.0"), ServerVersions("3.9.0")


def version_headers(directory: Path) -> list[dict[str, str]]:
    return [dict(file.meta.other) for file in spool_state.spool_files(directory, ".xlog")]


def append_as(spool: Spool, versions: ServerVersions, blocks: int = 1) -> None:
    spool.versions = versions
    for _ in range(blocks):
        first = (spool.vclock or {}).get(1, 0) + 1
        spool.append(rows(1, first, 10), {1: first + 9})


def test_a_log_has_rows_of_one_version_of_the_server(tmp_path: Path) -> None:
    both = ServerVersions("3.9.0", {1: "2.6.0", 2: "2.11.8"})
    with open_spool(tmp_path) as spool:
        spool.begin_at({})
        for versions in (OLD, OLD, NEW, both, both, NEW):
            append_as(spool, versions)
    assert version_headers(tmp_path) == [
        {"Version": "2.6.0"},
        {"Version": "3.9.0"},
        {"Version": "3.9.0", PEER_VERSIONS_KEY: "{1: 2.6.0, 2: 2.11.8}"},
        {"Version": "3.9.0"},
    ]
    files = spool_state.spool_files(tmp_path, ".xlog")
    assert [dict(file.meta.vclock) for file in files] == [{}, {1: 20}, {1: 30}, {1: 50}]
    assert all(after.meta.prev_vclock == before.meta.vclock for before, after in pairwise(files))
    assert all(read_tail(file.path, file.meta)[0].is_closed for file in files)
    assert ServerVersions.from_meta(files[2].meta, "f") == both
    assert read_all(tmp_path) == rows(1, 1, 60).tobytes()


@pytest.mark.parametrize("versions", [OLD, NEW])
def test_a_log_is_continued_after_a_kill_with_rows_of_its_version_only(
    tmp_path: Path, versions: ServerVersions
) -> None:
    with open_spool(tmp_path) as spool:
        spool.begin_at({})
        append_as(spool, OLD)
        spool._writer = None
    with open_spool(tmp_path) as spool:
        append_as(spool, versions)
    files = spool_state.spool_files(tmp_path, ".xlog")
    found = [(dict(file.meta.vclock), file.meta.other["Version"]) for file in files]
    assert found == [({}, "2.6.0"), *([({1: 10}, "3.9.0")] if versions == NEW else [])]
    assert all(read_tail(file.path, file.meta)[0].is_closed for file in files)
    assert read_all(tmp_path) == rows(1, 1, 20).tobytes()


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("at_first", [True, False])
def test_a_log_without_rows_is_replaced_for_another_version(
    tmp_path: Path, is_closed: bool, at_first: bool
) -> None:
    with open_spool(tmp_path) as spool:
        spool.begin_at({})
        if not at_first:
            append_as(spool, OLD)
            spool.close()
        spool.instance_uuid = UUID
        spool._open_log(OLD)
        if not is_closed:
            spool._writer = None
    directory, known = Directory(Source("a1", str(tmp_path))), dict[Path, Meta]()
    before = [file.meta.length for file in spool_state.spool_files(tmp_path, ".xlog", known)]
    assert [
        file.header_bytes for file in directory.listing().logs
    ] == before  # what subscribers and relays remember
    with open_spool(tmp_path) as spool:
        if spool.vclock is None:
            spool.begin_at({})
        append_as(spool, ServerVersions("3.9.0", {2: "2.11.8"}))
    assert [one["Version"] for one in version_headers(tmp_path)] == ["2.6.0"] * (not at_first) + ["3.9.0"]
    assert read_all(tmp_path) == rows(1, 1, 10 if at_first else 20).tobytes()
    assert list(tmp_path.glob("*.inprogress")) == []
    metas = [file.meta for file in spool_state.spool_files(tmp_path, ".xlog", known)]
    assert [file.header_bytes for file in directory.listing().logs] == [meta.length for meta in metas]
    assert metas[-1].prev_vclock == (None if at_first else {})


def test_rows_that_wait_for_disk_space_keep_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_full = os.write, [False]

    def write(file: int, data: Any) -> int:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    with open_spool(tmp_path) as spool:
        spool.begin_at({})
        append_as(spool, OLD)
        is_full[0] = True
        with pytest.raises(SpoolFullError):
            append_as(spool, NEW)
        spool.versions = OLD
        is_full[0] = False
        spool.write_waiting_rows()
        assert spool.vclock == {1: 20}
    assert [one["Version"] for one in version_headers(tmp_path)] == ["2.6.0", "3.9.0"]
    assert read_all(tmp_path) == rows(1, 1, 20).tobytes()


@pytest.mark.parametrize("text", ["{", "{1: 2.6}", "{x: 2.6.0}", "1: 2.6.0", "{1: 2.6.0; 2: 3.9.0}"])
def test_malformed_versions_of_peers_are_an_error(text: str) -> None:
    meta = Meta("XLOG", "0.13", UUID, {}, None, {"Version": "3.9.0", PEER_VERSIONS_KEY: text})
    with pytest.raises(XlogMetaError, match="not versions of peers"):
        ServerVersions.from_meta(meta, "f")


@pytest.mark.parametrize("compress", [None, False])
def test_writing_and_reading_have_the_same_block_limit(tmp_path: Path, compress: bool | None) -> None:
    """Incompressible bytes are stored uncompressed."""
    noise = np.random.default_rng(16).integers(0, 256, 20_000, np.uint8).tobytes()
    body = encode_body(space_id=512, tuple_=msgpack.packb([1, noise]))
    row = np.frombuffer(encode_row(3, body, timestamp=1.5, replica_id=1, lsn=1), np.uint8)
    with open_spool(tmp_path, compress=compress, max_block_bytes=row.size - 1) as spool:
        spool.begin_at({})
        with pytest.raises(TransactionLimitError, match="max_block_bytes"):
            spool.append(row, {1: 1})
        assert (spool.vclock, spool.is_full, names(tmp_path)) == ({}, False, [])
    with open_spool(tmp_path, compress=compress, max_block_bytes=row.size) as spool:
        spool.begin_at({})
        spool.append(row, {1: 1})
    assert read_state(tmp_path, row.size).vclock == {1: 1}
    (path,) = (tmp_path / name for name in names(tmp_path))
    with BlockReader(path, row.size) as reader:
        assert [block.tobytes() for block in reader.read_blocks()] == [row.tobytes()]
    found = read_rows(LocalFileSystem(), str(path), limits=Limits(max_block_bytes=row.size))
    assert sum(batch.num_rows for batch in found) == 1


def test_a_block_beyond_the_limit_is_refused_by_writer_and_reader(tmp_path: Path) -> None:
    append_blocks(tmp_path, 1, compress=True)
    (path,) = (tmp_path / name for name in names(tmp_path))
    with (
        BlockReader(path, rows(1, 1, 10).size - 1) as reader,
        pytest.raises(XlogError, match="max_block_bytes"),
    ):
        reader.read_blocks()


def test_an_unfinished_snapshot_is_removed(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        spool.create_snapshot({1: 50}).abandon()
    with open_spool(tmp_path) as spool:
        assert spool.vclock is None
    assert list(tmp_path.glob("*inprogress")) == []


def test_a_snapshot_behind_the_spool_is_refused(tmp_path: Path) -> None:
    append_blocks(tmp_path, 2)
    with open_spool(tmp_path) as spool, pytest.raises(SpoolError, match="older"):
        spool.continue_from({1: 5})


def removable_names(directory: Path, keep: SpoolRetention, now: float = 0.0) -> list[str]:
    snapshots, logs = spool_state.spool_files(directory, ".snap"), spool_state.spool_files(directory, ".xlog")
    return [path.name for path in removable_files(snapshots, logs, read_acks(directory), keep, now)]


def test_files_are_removed_when_every_reader_has_acknowledged_them(tmp_path: Path) -> None:
    append_blocks(tmp_path, 6, rotate_bytes=1, compress=False)
    logs = names(tmp_path)
    assert len(logs) == 6
    wanted = SpoolRetention(required_readers=frozenset({"aggregator"}))
    assert removable_names(tmp_path, wanted) == []
    write_ack(tmp_path, "aggregator", {1: 35})
    assert removable_names(tmp_path, wanted) == logs[:3]
    write_ack(tmp_path, "relay-1", {1: 10})
    now = read_acks(tmp_path)["relay-1"].modified_at
    assert removable_names(tmp_path, wanted, now) == logs[:1]
    assert removable_names(tmp_path, wanted, now + wanted.reader_expiry_seconds + 1) == logs[:3]
    write_ack(tmp_path, "aggregator", {1: 10**6})
    assert removable_names(tmp_path, wanted, now + wanted.reader_expiry_seconds + 1) == logs[:-1], (
        "the last log always stays"
    )


def test_acknowledgements_of_a_spool_that_was_set_aside_remove_no_file_of_the_new_one(tmp_path: Path) -> None:
    append_blocks(tmp_path, 40, rotate_bytes=2000, compress=False)
    write_ack(tmp_path, "job", {1: 400})
    with open_spool(tmp_path) as spool:
        spool.move_files_to("rewound-1")
    assert read_acks(tmp_path / "rewound-1")["job"].vclock == {1: 400}
    append_blocks(tmp_path, 20, rotate_bytes=2000, compress=False)
    assert removable_names(tmp_path, SpoolRetention(required_readers=frozenset({"job"}))) == []
    write_ack(tmp_path, "job", {1: 200})
    assert removable_names(tmp_path, SpoolRetention(required_readers=frozenset({"job"}))) != []


def test_a_daemon_that_is_killed_while_it_sets_a_spool_aside_sets_aside_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    for killed_at in range(5):
        directory, calls = tmp_path / str(killed_at), iter(range(100))
        with open_spool(directory) as spool:
            spool.create_snapshot({1: 7}).close()
            spool.continue_from({1: 7})
            for first in (8, 18):
                spool.append(rows(1, first, 10), {1: first + 9})
                spool.close()
        write_ack(directory, "job", {1: 27})

        def killed(path: Path, target: Path, calls: Any = calls, last: int = killed_at) -> Path:
            if next(calls) >= last:
                raise KeyboardInterrupt
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", killed)
        with contextlib.suppress(KeyboardInterrupt), open_spool(directory) as spool:
            spool.move_files_to("rewound-1")
        monkeypatch.undo()
        with open_spool(directory) as spool:
            assert spool.vclock == ({1: 27} if killed_at < 4 else None)
            assert spool.vclock is not None or read_acks(directory) == {}


def test_limits_apply_only_without_readers(tmp_path: Path) -> None:
    append_blocks(tmp_path, 6, rotate_bytes=1, compress=False)
    logs = names(tmp_path)
    sizes = [(tmp_path / name).stat().st_size for name in logs]
    assert removable_names(tmp_path, SpoolRetention()) == []
    assert removable_names(tmp_path, SpoolRetention(max_bytes=sum(sizes[2:]))) == logs[:2]
    assert removable_names(tmp_path, SpoolRetention(max_bytes=sum(sizes[2:]) - 1)) == logs[:3]
    assert removable_names(tmp_path, SpoolRetention(max_age_seconds=10.0), now=2e10) == logs[:-1]
    write_ack(tmp_path, "slow", {})
    now = read_acks(tmp_path)["slow"].modified_at
    assert removable_names(tmp_path, SpoolRetention(max_bytes=1, max_age_seconds=10.0), now) == []


def test_a_snapshot_is_removed_with_the_logs_that_continue_it(tmp_path: Path) -> None:
    with open_spool(tmp_path, rotate_bytes=1, compress=False) as spool:
        spool.create_snapshot({1: 10}).close()
        spool.continue_from({1: 10})
        for k in range(3):
            spool.append(rows(1, 11 + 10 * k, 10), {1: 20 + 10 * k})
    write_ack(tmp_path, "r", {1: 30})
    keep = SpoolRetention(required_readers=frozenset({"r"}))
    assert removable_names(tmp_path, keep) == ["00000000000000000010.snap", *names(tmp_path)[:2]]
    assert (
        removable_names(tmp_path, SpoolRetention(required_readers=frozenset({"r"}), keeps_snapshot=True))
        == []
    )


def test_invalid_acknowledgements_are_refused_or_reported(tmp_path: Path) -> None:
    write_ack(tmp_path, "a", {0: 7, 2: 5})
    assert read_acks(tmp_path) == {"a": ReaderAck("a", {2: 5}, read_acks(tmp_path)["a"].modified_at)}
    with pytest.raises(ValueError, match="reader"):
        write_ack(tmp_path, "../a", {})


BAD_ACKS = [
    b"{}",
    b"",
    b"[1]",
    b'{"vclock": 5}',
    b'{"vclock": {"1": 9223372036854775808}}',
    b'{"vclock": {"1": true}}',
    b'{"vclock": {"x": 1}}',
    b'{"vclock": {"1": 5}, "x": "' + b"x" * 20_000 + b'"}',
    b"[" * 10_000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("text", BAD_ACKS, ids=range(len(BAD_ACKS)))
def test_a_bad_acknowledgement_is_reported_and_keeps_files_for_a_while(tmp_path: Path, text: bytes) -> None:
    append_blocks(tmp_path, 6, rotate_bytes=1, compress=False)
    logs = names(tmp_path)
    write_ack(tmp_path, "aggregator", {1: 35})
    (tmp_path / "acks" / "bad.json").write_bytes(text)
    acks = read_acks(tmp_path)
    assert acks["aggregator"].error is None
    assert "acknowledgement" in (acks["bad"].error or "")
    now, keep = acks["bad"].modified_at, SpoolRetention()
    assert removable_names(tmp_path, keep, now) == []
    assert (
        removable_names(tmp_path, keep, now + keep.reader_expiry_seconds + 1) == []
    )  # all acknowledgements have expired, and there are no limits
    named = SpoolRetention(required_readers=frozenset({"aggregator"}))
    assert removable_names(tmp_path, named, now + named.reader_expiry_seconds + 1) == logs[:3]
