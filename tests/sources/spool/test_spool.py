"""A spool: what is appended is there, after a kill too; files go when all have passed; a full disk loses nothing."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from schemas.errors import SpoolError, SpoolFullError
from sources.spool import state as spool_state
from sources.spool.acks import Ack, read_acks, write_ack
from sources.spool.blocks import BlockReader
from sources.spool.keep import Keep
from sources.spool.removal import removable
from sources.spool.spool import Spool, SpoolOptions
from sources.spool.state import read_state
from sources.xlog.arrays import Bytes
from sources.xlog.encode import encode_body, encode_row

UUID = "00000000-0000-4000-8000-0000000000ff"
TUPLE = msgpack.packb([1, "x" * 40])


def rows(replica: int, first: int, count: int) -> Bytes:
    body = encode_body(space_id=512, tuple_=TUPLE)
    encoded = [encode_row(3, body, timestamp=1.5, replica_id=replica, lsn=first + k) for k in range(count)]
    return np.frombuffer(b"".join(encoded), np.uint8)


def opened(directory: Path, **options: Any) -> Spool:
    spool = Spool(directory, SpoolOptions(**options))
    spool.instance_uuid = UUID
    return spool


def fill(directory: Path, blocks: int, **options: Any) -> None:
    with opened(directory, **options) as spool:
        spool.instance_uuid = UUID
        if spool.vclock is None:
            spool.begin({})
        first = (spool.vclock or {}).get(1, 0) + 1
        for k in range(blocks):
            spool.append(rows(1, first + 10 * k, 10), {1: first + 10 * k + 9})


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.xlog"))


def read_all(directory: Path) -> bytes:
    found = b""
    for name in names(directory):
        with BlockReader(directory / name) as reader:
            while blocks := reader.read():
                found += b"".join(block.tobytes() for block in blocks)
    return found


def test_an_empty_directory_is_an_empty_spool(tmp_path: Path) -> None:
    assert read_state(tmp_path).vclock is None


def test_logs_are_closed_by_size_and_go_on(tmp_path: Path) -> None:
    fill(tmp_path, 20, rotate_bytes=2000, compress=False)
    state = read_state(tmp_path)
    assert state.vclock == {1: 200}
    assert len(names(tmp_path)) > 3
    assert read_all(tmp_path) == rows(1, 1, 200).tobytes()
    metas = [file.meta for file in spool_state.files_of(tmp_path, ".xlog")]
    assert all(after.prev_vclock == before.vclock for before, after in pairwise(metas))


def test_a_log_cut_at_every_byte_goes_on_from_its_last_whole_block(tmp_path: Path) -> None:
    fill(tmp_path / "whole", 3, compress=False)
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
        fill(directory, 1, compress=False)
        assert read_all(directory) == rows(1, 1, before + 10).tobytes()


def test_a_damaged_end_is_cut_off(tmp_path: Path) -> None:
    fill(tmp_path, 3, compress=False)
    path = tmp_path / names(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data[:-4])
    assert read_state(tmp_path).vclock == {1: 20}
    fill(tmp_path, 1, compress=False)
    assert read_all(tmp_path) == rows(1, 1, 30).tobytes()


def test_two_daemons_do_not_write_one_spool(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(SpoolError, match="another process"), opened(tmp_path):
        pass


def test_a_full_disk_loses_nothing_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, room = os.write, [10**9]

    def write(file: int, data: Any) -> int:
        size = min(len(data), room[0])
        if size == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= size
        return real(file, bytes(data[:size]))

    monkeypatch.setattr(os, "write", write)
    with opened(tmp_path, compress=False) as spool:
        spool.instance_uuid = UUID
        spool.begin({})
        spool.append(rows(1, 1, 10), {1: 10})
        room[0] = 100
        with pytest.raises(SpoolFullError):
            spool.append(rows(1, 11, 10), {1: 20})
        assert (spool.is_full, spool.vclock) == (True, {1: 10})
        assert read_state(tmp_path).vclock == {1: 10}
        with pytest.raises(SpoolFullError):
            spool.retry()
        room[0] = 10**9
        spool.retry()
        assert (spool.is_full, spool.vclock) == (False, {1: 20})
    assert read_all(tmp_path) == rows(1, 1, 20).tobytes()


def test_a_hole_shows_in_the_headers(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with opened(tmp_path) as spool:
        spool.snapshot({1: 50}).close()
        spool.adopt({1: 50})
        spool.append(rows(1, 51, 5), {1: 55})
    metas = [file.meta for file in spool_state.files_of(tmp_path, ".xlog")]
    assert [(dict(m.vclock), m.prev_vclock) for m in metas] == [({}, None), ({1: 50}, {1: 50})]
    assert read_state(tmp_path).vclock == {1: 55}


def test_an_unfinished_snapshot_never_was(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.instance_uuid = UUID
        spool.snapshot({1: 50}).abandon()
    with opened(tmp_path) as spool:
        assert spool.vclock is None
    assert list(tmp_path.glob("*inprogress")) == []


def test_a_snapshot_behind_the_spool_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    with opened(tmp_path) as spool, pytest.raises(SpoolError, match="behind"):
        spool.adopt({1: 5})


def gone(directory: Path, keep: Keep, now: float = 0.0) -> list[str]:
    snapshots, logs = spool_state.files_of(directory, ".snap"), spool_state.files_of(directory, ".xlog")
    return [path.name for path in removable(snapshots, logs, read_acks(directory), keep, now)]


def test_files_go_when_every_reader_has_passed_them(tmp_path: Path) -> None:
    fill(tmp_path, 6, rotate_bytes=1, compress=False)
    logs = names(tmp_path)
    assert len(logs) == 6
    wanted = Keep(readers=frozenset({"aggregator"}))
    assert gone(tmp_path, wanted) == []
    write_ack(tmp_path, "aggregator", {1: 35})
    assert gone(tmp_path, wanted) == logs[:3]
    write_ack(tmp_path, "relay-1", {1: 10})
    now = read_acks(tmp_path)["relay-1"].modified
    assert gone(tmp_path, wanted, now) == logs[:1]
    assert gone(tmp_path, wanted, now + wanted.forget + 1) == logs[:3]
    write_ack(tmp_path, "aggregator", {1: 10**6})
    assert gone(tmp_path, wanted, now + wanted.forget + 1) == logs[:-1], "the last log always stays"


def test_limits_hold_only_where_nobody_reads(tmp_path: Path) -> None:
    fill(tmp_path, 6, rotate_bytes=1, compress=False)
    logs = names(tmp_path)
    sizes = [(tmp_path / name).stat().st_size for name in logs]
    assert gone(tmp_path, Keep()) == []
    assert gone(tmp_path, Keep(size=sum(sizes[2:]))) == logs[:2]
    assert gone(tmp_path, Keep(size=sum(sizes[2:]) - 1)) == logs[:3]
    assert gone(tmp_path, Keep(age=10.0), now=2e10) == logs[:-1]
    write_ack(tmp_path, "slow", {})
    now = read_acks(tmp_path)["slow"].modified
    assert gone(tmp_path, Keep(size=1, age=10.0), now) == []


def test_a_snapshot_goes_with_the_logs_that_go_on_from_it(tmp_path: Path) -> None:
    with opened(tmp_path, rotate_bytes=1, compress=False) as spool:
        spool.instance_uuid = UUID
        spool.snapshot({1: 10}).close()
        spool.adopt({1: 10})
        for k in range(3):
            spool.append(rows(1, 11 + 10 * k, 10), {1: 20 + 10 * k})
    write_ack(tmp_path, "r", {1: 30})
    keep = Keep(readers=frozenset({"r"}))
    assert gone(tmp_path, keep) == ["00000000000000000010.snap", *names(tmp_path)[:2]]
    assert gone(tmp_path, Keep(readers=frozenset({"r"}), snapshot=True)) == []


def test_acknowledgements_are_checked(tmp_path: Path) -> None:
    write_ack(tmp_path, "a", {0: 7, 2: 5})
    assert read_acks(tmp_path) == {"a": Ack("a", {2: 5}, read_acks(tmp_path)["a"].modified)}
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
def test_a_bad_acknowledgement_is_named_and_holds_files_for_a_while(tmp_path: Path, text: bytes) -> None:
    fill(tmp_path, 6, rotate_bytes=1, compress=False)
    logs = names(tmp_path)
    write_ack(tmp_path, "aggregator", {1: 35})
    (tmp_path / "acks" / "bad.json").write_bytes(text)
    acks = read_acks(tmp_path)
    assert acks["aggregator"].error is None
    assert "acknowledgement" in (acks["bad"].error or "")
    now, keep = acks["bad"].modified, Keep()
    assert gone(tmp_path, keep, now) == []
    assert (
        gone(tmp_path, keep, now + keep.forget + 1) == []
    )  # nobody counts any more, and there are no limits
    named = Keep(readers=frozenset({"aggregator"}))
    assert gone(tmp_path, named, now + named.forget + 1) == logs[:3]
