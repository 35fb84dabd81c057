"""Every writing call of a spool fails once, in every way: no acknowledged row is lost, no row is written twice.

The test feeds the spool as the daemon does: it fetches rows above the spool's vclock again, begins again after an
error, and acknowledges durable rows.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import SpoolBrokenError, SpoolError, SpoolFullError
from sources.spool import state as spool_state
from sources.spool.acks import read_acks, write_ack
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.spool.state import read_state
from sources.xlog.directory.offset import Offset
from sources.xlog.format.writer import Fsync
from sources.xlog.options import XlogOptions, parse_options
from sources.xlog.reader import reader
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from tests.sources.spool.disk import Disk, Fault, Stop, fresh
from tests.sources.spool.test_spool import UUID, names, read_all, rows
from tests.sources.xlog.logs import rows_between

REPLICASET = "bbbbbbbb-0000-4000-8000-000000000001"
START, END, STEP = 20, 80, 10
"""Lsns of the snapshot and of the last row, and the number of lsns in a block."""

STRIDE = int(os.environ.get("FAULT_STRIDE", "3"))
"""Distance between two steps at which a fault is tested; 1 tests all."""


class SpoolScenario:
    """Writes a spool: a snapshot, logs with rotation, acknowledgements, a restart."""

    def __init__(self, directory: Path, fsync: Fsync) -> None:
        self.directory = directory
        self.spool = Spool(directory, SpoolOptions(rotate_bytes=1500, fsync=fsync, compress=False))
        self.acked: dict[int, int] = {}
        """The vclock that was acknowledged to the master, which may have removed its logs up to there."""

    def run_to_end(self) -> None:
        """Run to the end, with a restart after each failed step."""
        for _ in range(20):
            with contextlib.suppress(SpoolError, OSError), self.spool:
                self._open_spool()
                if self._write_up_to(END - 20):
                    break
        for _ in range(20):
            with contextlib.suppress(SpoolError, OSError), self.spool:
                if self._write_up_to(END):
                    return
        raise AssertionError("the scenario did not reach its end")

    def _open_spool(self) -> None:
        self.spool.instance_uuid, self.spool.replicaset_uuid = UUID, REPLICASET
        if self.spool.vclock is None:
            self.spool.create_snapshot({1: START}).close()
            self.spool.continue_from({1: START})
        self._acknowledge()

    def _write_up_to(self, end: int) -> bool:
        for number in range(200):
            have = (self.spool.vclock or {})[1]
            if have >= end:
                break
            try:
                if self.spool.is_full:
                    self.spool.write_waiting_rows()
                else:
                    self.spool.append(rows(1, have + 1, STEP), {1: have + STEP})
            except SpoolFullError:
                continue
            if number % 2:
                self._flush()
            self._acknowledge()
        return (self.spool.vclock or {})[1] >= end and not self.spool.is_full

    def _flush(self) -> None:
        point = self.spool.flush_point()
        if point is not None:
            try:
                point.flush()
            except OSError as error:
                raise self.spool.record_flush_failure(error) from error
            self.spool.record_flush(point)

    def _acknowledge(self) -> None:
        if self.spool.durable_vclock is not None:
            self.acked = dict(self.spool.durable_vclock)
        with contextlib.suppress(OSError):
            write_ack(self.directory, "reader", self.acked)


def options_of(directory: Path) -> XlogOptions:
    sources = f'[{{"name": "a", "path": "{directory}"}}]'
    return parse_options({"sources": sources, "gaps": "report", "start": "history"})


def check(scenario: SpoolScenario) -> None:
    """Check that the logs have each row once, without a gap, and nothing after an end marker."""
    found = read_all(scenario.directory)
    first = min((int(name[:20]) for name in names(scenario.directory)), default=START)
    assert first == START
    assert len(found) % rows(1, START + 1, STEP).size == 0
    count = len(found) // rows(1, START + 1, 1).size
    assert found == rows(1, START + 1, count).tobytes()
    state = read_state(scenario.directory)
    reached = (state.vclock or {}).get(1, 0)
    assert reached in (0, START + count)
    assert reached >= scenario.acked.get(1, 0), "rows were lost that a master may have removed"
    for ack in read_acks(scenario.directory).values():
        assert ack.error is None
        assert ack.vclock.get(1, 0) <= max(reached, START)
    for file in spool_state.spool_files(scenario.directory, ".xlog"):
        for _ in reader.read_headers(spool_state._LOCAL_FS, str(file.path)):
            pass


def count_steps(directory: Path, fsync: Fsync) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(fresh(directory), patch)
        SpoolScenario(directory, fsync).run_to_end()
    return disk.steps


@pytest.mark.parametrize("fsync", [Fsync.CLOSE, Fsync.BLOCK])
@pytest.mark.parametrize("fault", list(Fault))
def test_every_step_fails_once(tmp_path: Path, fault: Fault, fsync: Fsync) -> None:
    directory = tmp_path / "spool"
    for step in range(0, count_steps(directory, fsync), STRIDE):
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(fresh(directory), patch, fault, step, 2 if fault is Fault.SHORT else 1)
            scenario = SpoolScenario(directory, fsync)
            try:
                scenario.run_to_end()
            except Stop:
                patch.undo()
                scenario.spool.abandon()
                if fault is not Fault.KILL:
                    disk.cut_power()
        again = SpoolScenario(directory, fsync)
        again.acked = scenario.acked
        check_after_cut(again)
        again.run_to_end()
        check(again)
        assert (read_state(directory).vclock or {})[1] == END


def check_after_cut(scenario: SpoolScenario) -> None:
    with scenario.spool:
        assert (scenario.spool.vclock or {}).get(1, 0) >= scenario.acked.get(1, 0)
    if scenario.spool.vclock is not None:
        check(scenario)


@pytest.mark.parametrize("fsync", [Fsync.CLOSE, Fsync.BLOCK])
def test_a_disk_that_fails_for_a_while_loses_nothing(tmp_path: Path, fsync: Fsync) -> None:
    directory = tmp_path / "spool"
    for step in range(0, count_steps(directory, fsync), 5 * STRIDE):
        with pytest.MonkeyPatch.context() as patch:
            Disk(fresh(directory), patch, Fault.EIO, step, 8)
            scenario = SpoolScenario(directory, fsync)
            scenario.run_to_end()
        check(scenario)


@pytest.mark.parametrize("rotate", [1, 1500])
@pytest.mark.parametrize("fsync", [Fsync.CLOSE, Fsync.BLOCK])
@pytest.mark.parametrize("number", range(6))
def test_nothing_is_written_after_a_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fsync: Fsync, rotate: int
) -> None:
    """The fsync of a header, folder, block or rotation fails: nothing is written after the end marker or twice."""
    real, left = os.fsync, [number]

    def failing(file: int) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    spool = Spool(tmp_path, SpoolOptions(rotate_bytes=rotate, fsync=fsync, compress=False))
    for _ in range(2):  # the fsync that fails may be of the last file
        with spool:
            spool.instance_uuid = UUID
            if spool.vclock is None:
                spool.begin_at({})
            monkeypatch.setattr(os, "fsync", failing)
            while (have := (spool.vclock or {}).get(1, 0)) < 30:
                try:
                    spool.append(rows(1, have + 1, 3), {1: have + 3})
                except SpoolBrokenError:
                    assert not spool.is_full
    assert read_all(tmp_path) == rows(1, 1, 30).tobytes()
    assert read_state(tmp_path).vclock == {1: 30}


def test_only_flushed_rows_are_durable(tmp_path: Path) -> None:
    with Spool(tmp_path, SpoolOptions(compress=False)) as spool:
        spool.instance_uuid = UUID
        spool.begin_at({})
        spool.append(rows(1, 1, 5), {1: 5})
        assert (spool.vclock, spool.durable_vclock) == ({1: 5}, {})
        point = spool.flush_point()
        assert point is not None
        spool.append(rows(1, 6, 5), {1: 10})
        point.flush()
        spool.record_flush(point)
        assert (spool.vclock, spool.durable_vclock) == ({1: 10}, {1: 5})
    assert spool.durable_vclock == {1: 10}


@pytest.mark.parametrize("left", [b"", b"XLOG\n0.13\nInst"])
def test_a_log_without_its_header_is_removed(tmp_path: Path, left: bytes) -> None:
    """A power failure may leave such a file if no file is flushed."""
    with Spool(tmp_path, SpoolOptions(compress=False)) as spool:
        spool.instance_uuid = UUID
        spool.begin_at({})
        spool.append(rows(1, 1, 5), {1: 5})
    (tmp_path / "00000000000000000005.xlog").write_bytes(left)
    with Spool(tmp_path, SpoolOptions(compress=False)) as spool:
        assert spool.vclock == {1: 5}
        spool.append(rows(1, 6, 5), {1: 10})
    assert read_all(tmp_path) == rows(1, 1, 10).tobytes()


@pytest.mark.parametrize(
    "extra", [[], ["00000000000000000000.vylog"], ["00000000000000000009.snap.inprogress"]]
)
def test_a_log_directory_of_tarantool_is_refused_unchanged(tmp_path: Path, extra: list[str]) -> None:
    log = b"XLOG\n0.13\nVersion: 2.6.0\nInstance: " + UUID.encode() + b"\nVClock: {}\n\nhalf a block"
    (tmp_path / "00000000000000000000.xlog").write_bytes(log)
    for name in extra:
        (tmp_path / name).write_bytes(b"precious")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SpoolError, match="is not a spool"), Spool(tmp_path):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_copy_of_a_spool_is_accepted(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.instance_uuid, spool.replicaset_uuid = UUID, REPLICASET
        spool.begin_at({})
        spool.append(np.asarray(rows(1, 1, 5)), {1: 5})
    (tmp_path / "lock").unlink()
    with Spool(tmp_path) as spool:
        assert spool.vclock == {1: 5}


def test_a_snapshot_replaces_one_of_the_same_vclock_only_when_complete(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.instance_uuid = UUID
        spool.create_snapshot({1: 5}).close()
        spool.continue_from({1: 5})
        old = (tmp_path / "00000000000000000005.snap").read_bytes()
        writer = spool.create_snapshot({1: 5})
        assert (tmp_path / "00000000000000000005.snap").read_bytes() == old
        writer.abandon()
    with Spool(tmp_path) as spool:
        assert spool.vclock == {1: 5}


def test_a_reader_continues_after_rows_that_it_read_were_truncated(tmp_path: Path) -> None:
    """The reader's offset is beyond the log's new end: the rows follow again in the next log."""
    directory = tmp_path / "spool"
    with Spool(directory, SpoolOptions(compress=False)) as spool:
        spool.instance_uuid, spool.replicaset_uuid = UUID, REPLICASET
        spool.begin_at({})
        spool.append(rows(1, 1, 10), {1: 10})
        point = spool.flush_point()
        assert point is not None
        point.flush()
        spool.record_flush(point)
        spool.append(rows(1, 11, 10), {1: 20})
        log_stream = LogStream(options_of(directory))
        read = log_stream.latest(log_stream.latest({}))
        spool.record_flush_failure(OSError(errno.EIO, "Input/output error"))
        for again in (log_stream, LogStream(log_stream.options)):
            found = again.latest(read)[REPLICASET]
            assert (found.file, found.position, found.is_restart) == ("00000000000000000000.xlog", 0, True)
        spool.append(rows(1, 11, 20), {1: 30})
        begun = log_stream.latest(read)
        end = log_stream.latest(begun)
        assert end[REPLICASET].file == "00000000000000000010.xlog"
        assert [one.file for one in segments_between(log_stream, begun, end)] == names(directory)


@contextlib.contextmanager
def spool_of_two_blocks(directory: Path) -> Iterator[Spool]:
    with Spool(directory, SpoolOptions(compress=False)) as spool:
        spool.instance_uuid, spool.replicaset_uuid = UUID, REPLICASET
        spool.begin_at({})
        for first in (1, 2):
            spool.append(rows(1, first, 1), {1: first})
        yield spool


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_seen", [False, True])
@pytest.mark.parametrize("again", [1, 2, 5])
def test_a_reader_continues_in_a_truncated_log_that_is_written_again(
    tmp_path: Path, again: int, is_seen: bool, is_restarted: bool
) -> None:
    """No row of the log was on the disk, so it is continued: its blocks end elsewhere than those that were read."""
    directory = tmp_path / "spool"
    options = options_of(directory)
    with spool_of_two_blocks(directory) as spool:
        log_stream = LogStream(options)
        found, at = lsns_up_to_now(log_stream, {})
        spool.record_flush_failure(OSError(errno.EIO, "Input/output error"))
        if is_seen:
            _, at = lsns_up_to_now(log_stream, at)
        log_stream = LogStream(options) if is_restarted else log_stream
        for count in (again, 1, 10):
            first = (spool.vclock or {}).get(1, 0) + 1
            spool.append(rows(1, first, count), {1: first + count - 1})
            more, at = lsns_up_to_now(log_stream, at)
            found += more
        assert names(directory) == ["00000000000000000000.xlog"]
        assert sorted(set(found)) == list(range(1, again + 12))


@pytest.mark.parametrize("is_once", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_reader_that_starts_later_continues_in_such_a_log(
    tmp_path: Path, is_closed: bool, is_once: bool
) -> None:
    directory = tmp_path / "spool"
    options = options_of(directory)
    with spool_of_two_blocks(directory) as spool:
        found, at = lsns_up_to_now(LogStream(options), {})
        spool.record_flush_failure(OSError(errno.EIO, "Input/output error"))
        spool.append(rows(1, 1, 30), {1: 30})
        if is_closed:
            spool.close()
            spool.append(rows(1, 31, 1), {1: 31})
        log_stream = LogStream(options)
        if is_once:
            log_stream.fix_end()
        more, _ = lsns_up_to_now(log_stream, at)
    assert sorted(set(found + more)) == list(range(1, 32 if is_closed else 31))


@pytest.mark.parametrize("is_written_on", [False, True])
def test_a_reader_notices_a_log_that_is_written_again_up_to_its_old_size(
    tmp_path: Path, is_written_on: bool
) -> None:
    """Another peer may send the rows in another order: here the first one is of another instance."""
    directory = tmp_path / "spool"
    sources = f'[{{"name": "a", "path": "{directory}"}}]'
    log_stream = LogStream(parse_options({"sources": sources, "gaps": "report", "start": "history"}))
    with Spool(directory, SpoolOptions(compress=False)) as spool:
        spool.instance_uuid, spool.replicaset_uuid = UUID, REPLICASET
        spool.begin_at({})
        spool.append(rows(1, 1, 1), {1: 1})
        at = log_stream.latest({})
        end = log_stream.latest(at)
        assert rows_between(log_stream, at, end) == [(f"{0:020}.xlog", 1, 1)]
        size = (directory / f"{0:020}.xlog").stat().st_size
        spool.record_flush_failure(OSError(errno.EIO, "Input/output error"))
        spool.append(rows(2, 1, 1), {2: 1})
        assert (directory / f"{0:020}.xlog").stat().st_size == size
        if is_written_on:
            spool.append(rows(1, 1, 1), {1: 1})
        begun = log_stream.latest(end)
        found = rows_between(log_stream, begun, log_stream.latest(begun))
    assert found == [(f"{0:020}.xlog", id_, 1) for id_ in ((2, 1) if is_written_on else (2,))]


def lsns_up_to_now(log_stream: LogStream, at: Offset) -> tuple[list[int], Offset]:
    """Return the lsns that a stream reads from an offset on, and where it is then; a log is read twice at most."""
    found: list[int] = []
    for _ in range(4):
        if (end := log_stream.latest(at)) != at:
            found += [lsn for _, _, lsn in rows_between(log_stream, at, end)]
            at = end
    assert log_stream.latest(at) == at or not found
    return found, at
