"""Every step of a spool fails once, in every way: no acknowledged row is lost, and none comes twice.

The test feeds the spool as the daemon does: it fetches rows above the spool's vclock again, begins again after an
error, and acknowledges durable rows.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import SpoolBrokenError, SpoolError, SpoolFullError
from sources.spool import state as spool_state
from sources.spool.acks import read_acks, write_ack
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.spool.state import read_state
from sources.xlog.format.writer import Fsync
from sources.xlog.options import parse_options
from sources.xlog.reader import reader
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.follow import Follower
from tests.sources.spool.disk import Disk, Fault, Stop, fresh
from tests.sources.spool.test_spool import UUID, names, read_all, rows

REPLICASET = "bbbbbbbb-0000-4000-8000-000000000001"
START, END, STEP = 20, 80, 10
"""Of the lsns: the snapshot's, the last one, a block's."""

STRIDE = int(os.environ.get("FAULT_STRIDE", "3"))
"""From one step that fails to the next one; 1 takes all."""


class Life:
    """One spool's life: a snapshot, logs with rotation, acknowledgements, a restart."""

    def __init__(self, directory: Path, fsync: Fsync) -> None:
        self.directory = directory
        self.spool = Spool(directory, SpoolOptions(rotate_bytes=1500, fsync=fsync, compress=False))
        self.acked: dict[int, int] = {}
        """What a master was told: it may have removed its logs up to there."""

    def lead(self) -> None:
        """Run to the end, whichever step fails."""
        for _ in range(20):
            with contextlib.suppress(SpoolError, OSError), self.spool:
                self._enter()
                if self._fill(END - 20):
                    break
        for _ in range(20):
            with contextlib.suppress(SpoolError, OSError), self.spool:
                if self._fill(END):
                    return
        raise AssertionError("it never came to the end")

    def _enter(self) -> None:
        self.spool.instance_uuid, self.spool.replicaset_uuid = UUID, REPLICASET
        if self.spool.vclock is None:
            self.spool.snapshot({1: START}).close()
            self.spool.continue_from({1: START})
        self._acknowledge()

    def _fill(self, end: int) -> bool:
        for number in range(200):
            have = (self.spool.vclock or {})[1]
            if have >= end:
                break
            try:
                if self.spool.is_full:
                    self.spool.retry()
                else:
                    self.spool.append(rows(1, have + 1, STEP), {1: have + STEP})
            except SpoolFullError:
                continue
            if number % 2:
                self._force()
            self._acknowledge()
        return (self.spool.vclock or {})[1] >= end and not self.spool.is_full

    def _force(self) -> None:
        point = self.spool.flush_point()
        if point is not None:
            try:
                point.flush()
            except OSError as error:
                raise self.spool.record_flush_failure(error) from error
            self.spool.record_flush(point)

    def _acknowledge(self) -> None:
        if self.spool.durable is not None:
            self.acked = dict(self.spool.durable)
        with contextlib.suppress(OSError):
            write_ack(self.directory, "reader", self.acked)


def check(life: Life) -> None:
    """In every case: logs continue each other without a gap, each row once, nothing after an end marker."""
    found = read_all(life.directory)
    first = min((int(name[:20]) for name in names(life.directory)), default=START)
    assert first == START
    assert len(found) % rows(1, START + 1, STEP).size == 0
    count = len(found) // rows(1, START + 1, 1).size
    assert found == rows(1, START + 1, count).tobytes()
    state = read_state(life.directory)
    reached = (state.vclock or {}).get(1, 0)
    assert reached in (0, START + count)
    assert reached >= life.acked.get(1, 0), "rows were lost that a master may have removed"
    for ack in read_acks(life.directory).values():
        assert ack.error is None
        assert ack.vclock.get(1, 0) <= max(reached, START)
    for file in spool_state.spool_files(life.directory, ".xlog"):
        for _ in reader.read_headers(spool_state._FILES, str(file.path)):
            pass


def steps_of(directory: Path, fsync: Fsync) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(fresh(directory), patch)
        Life(directory, fsync).lead()
    return disk.steps


@pytest.mark.parametrize("fsync", [Fsync.CLOSE, Fsync.BLOCK])
@pytest.mark.parametrize("fault", list(Fault))
def test_every_step_fails_once(tmp_path: Path, fault: Fault, fsync: Fsync) -> None:
    directory = tmp_path / "spool"
    for step in range(0, steps_of(directory, fsync), STRIDE):
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(fresh(directory), patch, fault, step, 2 if fault is Fault.SHORT else 1)
            life = Life(directory, fsync)
            try:
                life.lead()
            except Stop:
                patch.undo()
                life.spool.abandon()
                if fault is not Fault.KILL:
                    disk.cut_power()
        again = Life(directory, fsync)
        again.acked = life.acked
        check_after_cut(again)
        again.lead()
        check(again)
        assert (read_state(directory).vclock or {})[1] == END


def check_after_cut(life: Life) -> None:
    with life.spool:
        assert (life.spool.vclock or {}).get(1, 0) >= life.acked.get(1, 0)
    if life.spool.vclock is not None:
        check(life)


@pytest.mark.parametrize("fsync", [Fsync.CLOSE, Fsync.BLOCK])
def test_a_disk_that_fails_for_a_while_loses_nothing(tmp_path: Path, fsync: Fsync) -> None:
    directory = tmp_path / "spool"
    for step in range(0, steps_of(directory, fsync), 5 * STRIDE):
        with pytest.MonkeyPatch.context() as patch:
            Disk(fresh(directory), patch, Fault.EIO, step, 8)
            life = Life(directory, fsync)
            life.lead()
        check(life)


@pytest.mark.parametrize("rotate", [1, 1500])
@pytest.mark.parametrize("fsync", [Fsync.CLOSE, Fsync.BLOCK])
@pytest.mark.parametrize("number", range(6))
def test_nothing_is_written_after_a_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fsync: Fsync, rotate: int
) -> None:
    """For a header, a folder, a block, a rotation: nothing after the end marker, and nothing twice."""
    real, left = os.fsync, [number]

    def failing(file: int) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    spool = Spool(tmp_path, SpoolOptions(rotate_bytes=rotate, fsync=fsync, compress=False))
    for _ in range(2):  # the fsync that fails may be that of the last file
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
        assert (spool.vclock, spool.durable) == ({1: 5}, {})
        point = spool.flush_point()
        assert point is not None
        spool.append(rows(1, 6, 5), {1: 10})
        point.flush()
        spool.record_flush(point)
        assert (spool.vclock, spool.durable) == ({1: 10}, {1: 5})
    assert spool.durable == {1: 10}


@pytest.mark.parametrize("left", [b"", b"XLOG\n0.13\nInst"])
def test_a_log_without_its_header_is_removed(tmp_path: Path, left: bytes) -> None:
    """A power failure leaves such a file if nothing is ever flushed."""
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
def test_a_tarantools_own_directory_is_refused_untouched(tmp_path: Path, extra: list[str]) -> None:
    log = b"XLOG\n0.13\nVersion: 2.6.0\nInstance: " + UUID.encode() + b"\nVClock: {}\n\nhalf a block"
    (tmp_path / "00000000000000000000.xlog").write_bytes(log)
    for name in extra:
        (tmp_path / name).write_bytes(b"precious")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SpoolError, match="is not a spool"), Spool(tmp_path):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_copy_of_a_spool_is_one(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.instance_uuid, spool.replicaset_uuid = UUID, REPLICASET
        spool.begin_at({})
        spool.append(np.asarray(rows(1, 1, 5)), {1: 5})
    (tmp_path / "lock").unlink()
    with Spool(tmp_path) as spool:
        assert spool.vclock == {1: 5}


def test_a_snapshot_replaces_one_of_the_same_state_only_when_it_is_whole(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.instance_uuid = UUID
        spool.snapshot({1: 5}).close()
        spool.continue_from({1: 5})
        old = (tmp_path / "00000000000000000005.snap").read_bytes()
        writer = spool.snapshot({1: 5})
        assert (tmp_path / "00000000000000000005.snap").read_bytes() == old
        writer.abandon()
    with Spool(tmp_path) as spool:
        assert spool.vclock == {1: 5}


def test_a_reader_of_removed_rows_reads_that_log_again(tmp_path: Path) -> None:
    """Its offset is beyond the log's end now: the rows come again in the next log, and the reader must not stop."""
    directory = tmp_path / "spool"
    sources = f'[{{"name": "a", "path": "{directory}"}}]'
    with Spool(directory, SpoolOptions(compress=False)) as spool:
        spool.instance_uuid, spool.replicaset_uuid = UUID, REPLICASET
        spool.begin_at({})
        spool.append(rows(1, 1, 10), {1: 10})
        point = spool.flush_point()
        assert point is not None
        point.flush()
        spool.record_flush(point)
        spool.append(rows(1, 11, 10), {1: 20})
        follower = Follower(parse_options({"sources": sources, "gaps": "report", "start": "history"}))
        read = follower.latest(follower.latest({}))
        spool.record_flush_failure(OSError(errno.EIO, "Input/output error"))
        for again in (follower, Follower(follower.options)):
            found = again.latest(read)[REPLICASET]
            assert (found.file, found.position, found.restart) == ("00000000000000000000.xlog", 0, True)
        spool.append(rows(1, 11, 20), {1: 30})
        begun = follower.latest(read)
        end = follower.latest(begun)
        assert end[REPLICASET].file == "00000000000000000010.xlog"
        assert [one.file for one in segments_between(follower, begun, end)] == names(directory)
