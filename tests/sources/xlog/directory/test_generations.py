"""A spool with a hole that a snapshot bridges: the stream goes through the snapshot, as a batch of its own."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgpack
import numpy as np
import pytest

from schemas.errors import XlogGapError
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.xlog.directory.offset import OffsetEntry, from_text, to_text
from sources.xlog.format.encode import encode_row
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from tests.bodies import encode_body

UUID, REPLICASET = "00000000-0000-4000-8000-0000000000ff", "aaaaaaaa-0000-4000-8000-000000000000"
BODY = encode_body(space_id=512, tuple_=msgpack.packb([1, "x" * 40]))
FIRST, SECOND, THIRD = "00000000000000000005", "00000000000000000050", "00000000000000000090"


def row(kind: int, lsn: int, replica: int | None = None) -> bytes:
    return encode_row(kind, BODY, timestamp=1.5, replica_id=replica, lsn=lsn)


def append(spool: Spool, lsns: range) -> None:
    for lsn in lsns:
        spool.append(np.frombuffer(row(3, lsn, 1), np.uint8), {1: lsn})


def snapshot(spool: Spool, lsn: int) -> None:
    writer = spool.create_snapshot({1: lsn})
    for number in range(1, 21):
        writer.write_block(row(2, number))
    writer.close()
    spool.continue_from({1: lsn})


@contextmanager
def opened(path: Path) -> Iterator[Spool]:
    with Spool(path, SpoolOptions(rotate_bytes=600, compress=False)) as spool:
        spool.instance_uuid, spool.replicaset_uuid = UUID, REPLICASET
        yield spool


def made(path: Path, *, ends: bool = False) -> None:
    """Make a spool: a snapshot at 5, rows to 20, a hole, a snapshot at 50, rows to 60."""
    with opened(path) as spool:
        snapshot(spool, 5)
        append(spool, range(6, 21))
        snapshot(spool, 50)
        if not ends:
            append(spool, range(51, 61))


def log_stream(path: Path, **options: str) -> LogStream:
    sources = json.dumps([{"name": "a", "path": str(path)}])
    return LogStream(parse_options({"sources": sources, "gaps": "report", "start": "snapshot", **options}))


def steps(asked: LogStream, max_bytes: int | None = None) -> list[list[tuple[str, int]]]:
    """Return what each batch reads: files with their bytes; offsets survive their text."""
    found, at = [], asked.initial()
    while (end := asked.latest(at, max_bytes)) != at:
        segments = segments_between(asked, at, from_text(to_text(end)))
        found.append([(s.file, s.end - s.begin) for s in segments])
        at = end
    return found


def files(asked: LogStream, max_bytes: int | None = None) -> list[list[str]]:
    return [[file for file, _ in step] for step in steps(asked, max_bytes)]


def logs(path: Path, first: str, last: str) -> list[str]:
    return [f.name for f in sorted(path.glob("*.xlog")) if first <= f.name < last]


def test_a_generation_begins_a_batch_behind_all_that_is_before_it(tmp_path: Path) -> None:
    made(tmp_path)
    # The newest snapshot is the start of a new stream; reading from the older logs finds the gap.
    begun = log_stream(tmp_path, start="history")
    before, after = logs(tmp_path, FIRST, SECOND), logs(tmp_path, SECOND, "9")
    assert files(begun) == [[f"{FIRST}.snap", *before], [f"{SECOND}.snap", *after]]
    assert files(log_stream(tmp_path)) == [[f"{SECOND}.snap", *after]]


def test_a_generation_behind_a_snapshot_without_any_log(tmp_path: Path) -> None:
    """A daemon that got no row after its snapshot takes another one: a stream that is in the first one goes there."""
    with opened(tmp_path) as spool:
        snapshot(spool, 5)
    asked = log_stream(tmp_path)
    at = asked.latest(asked.initial())
    with opened(tmp_path) as spool:
        snapshot(spool, 50)
    alone = asked.latest(at)
    assert (alone[REPLICASET].file, alone[REPLICASET].is_snapshot) == (f"{SECOND}.snap", True)
    with opened(tmp_path) as spool:
        append(spool, range(51, 61))
    assert asked.latest(at) == alone
    names = [Path(one.path).name for one in segments_between(asked, alone, asked.latest(alone))]
    assert names == [f"{SECOND}.snap", *logs(tmp_path, SECOND, "9")]


@pytest.mark.parametrize("max_bytes", [1, 100, 1000])
def test_a_limit_does_not_split_a_generation(tmp_path: Path, max_bytes: int) -> None:
    made(tmp_path)
    whole = (tmp_path / f"{SECOND}.snap").stat().st_size
    found = steps(log_stream(tmp_path, start="history"), max_bytes)
    own = [length for step in found for file, length in step if file == f"{SECOND}.snap"]
    assert len(own) == 1
    assert whole - 300 < own[0] < whole
    first = [length for step in found for file, length in step if file == f"{FIRST}.snap"]
    assert len(first) > 1 or max_bytes == 1000


def test_a_generation_is_read_before_rows_follow_and_continues_with_them(tmp_path: Path) -> None:
    made(tmp_path, ends=True)
    asked = log_stream(tmp_path, start="history")
    assert files(asked)[-1] == [f"{SECOND}.snap"]
    at = asked.latest(asked.latest(asked.latest({})))
    assert at[REPLICASET].is_snapshot
    with opened(tmp_path) as spool:
        append(spool, range(51, 53))
    end = asked.latest(at)
    assert [s.file for s in segments_between(asked, at, end)] == [f"{SECOND}.xlog"]
    assert all(segment.gap is None for segment in segments_between(asked, at, end))
    with opened(tmp_path) as spool:
        snapshot(spool, 90)
    then = asked.latest(end)
    assert then[REPLICASET] == OffsetEntry("a", f"{THIRD}.snap", 0, {1: 90}, {1: 90})


def test_a_fixed_end_includes_the_generation(tmp_path: Path) -> None:
    """`Trigger.AvailableNow`: what is written later is left to the next run."""
    made(tmp_path, ends=True)
    asked = log_stream(tmp_path, start="history")
    asked.fix_end()
    with opened(tmp_path) as spool:
        append(spool, range(51, 53))
    assert files(asked)[-1] == [f"{SECOND}.snap"]


def test_a_killed_daemons_log_needs_no_end_marker(tmp_path: Path) -> None:
    made(tmp_path)
    last = tmp_path / logs(tmp_path, FIRST, SECOND)[-1]
    last.write_bytes(last.read_bytes()[:-4])
    found = files(log_stream(tmp_path, start="history"))
    assert [step[0] for step in found] == [f"{FIRST}.snap", f"{SECOND}.snap"]


def test_a_gap_is_an_error_unless_gaps_are_reported(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(XlogGapError):
        steps(log_stream(tmp_path, start="history", gaps="fail"))


def vclock(lsns: Mapping[int, int]) -> str:
    return json.dumps({REPLICASET: {str(i): lsn for i, lsn in lsns.items()}})


def test_a_spool_that_restarted_after_a_gap_begins_with_the_snapshot(tmp_path: Path) -> None:
    made(tmp_path)
    for path in tmp_path.glob("*"):
        if path.name < SECOND:
            path.unlink()
    ahead = log_stream(tmp_path, startVclock=vclock({1: 20}))
    assert ahead.initial() == {REPLICASET: OffsetEntry("a", f"{SECOND}.snap", 0, {1: 50}, {1: 50})}
    goes_on = log_stream(tmp_path, startVclock=vclock({1: 50}))
    assert goes_on.initial() == {REPLICASET: OffsetEntry("a", f"{SECOND}.xlog", 0, {1: 50})}
    with pytest.raises(XlogGapError):  # the stream is ahead of the snapshot, which would undo changes
        log_stream(tmp_path, startVclock=vclock({1: 20, 2: 3})).initial()


def test_a_servers_own_snapshots_are_passed_by(tmp_path: Path) -> None:
    made(tmp_path)
    for path in tmp_path.glob("0*"):
        path.write_bytes(path.read_bytes().replace(f"Replicaset: {REPLICASET}\n".encode(), b""))
    asked = log_stream(tmp_path, start="history")
    (tmp_path / "lock").unlink()
    sources = [{"name": "a", "path": str(tmp_path), "replicaset": REPLICASET}]
    asked = log_stream(tmp_path, start="history", sources=json.dumps(sources))
    assert f"{SECOND}.snap" not in [file for step in files(asked) for file in step]
