"""Copies that a writer keeps connected: when they follow, when they are lost, and what a promoted one leads to."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from schemas.errors import LockError, RidStateError
from tests.soaked import IS_SOAK, partly_soaked
from tests.warehouse.copies.standby import Killed
from tests.warehouse.warehouses import Made
from udfs.rid.comparison import Comparison, Verdict
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID, FileLock
from warehouse.copies import files, switch
from warehouse.copies.generations import common_epoch, compare_warehouses, read_compared_rid
from warehouse.copies.primary import PrimaryLock
from warehouse.copies.rid import RidTable
from warehouse.copies.standbys import Standbys
from warehouse.copies.sync import SyncOptions, lost_epochs_after, sync
from warehouse.delta.newest_epoch import last_epoch
from warehouse.lock.lock import WriterLock
from warehouse.warehouse import Warehouse


class Standby:
    """A primary, the locations of its standbys, and the writer that keeps them connected."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        self.a = Made(folder / "a")
        self.a.create()
        self.others = [Made(folder / name) for name in "bcd"[:count]]
        for other in self.others:
            other.folder.parent.mkdir()
        self.time = 0.0

    @property
    def b(self) -> Made:
        return self.others[0]

    def standbys(self, of: Made | None = None, others: list[Made] | None = None) -> Standbys:
        locations = [other.location for other in (self.others if others is None else others)]
        return Standbys(
            (of or self.a).location, locations, retry_seconds=60, now=lambda: self.time, waits=True
        )

    def lock(self, standbys: Standbys | None, of: Made | None = None) -> PrimaryLock:
        warehouse = Warehouse(cast("SparkSession", None), str((of or self.a).folder.parent))
        return PrimaryLock(warehouse, "a test", standbys)

    def batch(self, lock: PrimaryLock, value: str, *tables: str) -> int:
        """Commit an epoch as the job does; it is not copied yet."""
        lock.check()
        for table in ("_changelog", *tables):
            self.a.versions[table] = self.a.write(table, value)
        lock.before_epoch()
        self.a.commit()
        return self.a.epoch

    def copied_batch(self, lock: PrimaryLock, standbys: Standbys, value: str) -> None:
        """Commit an epoch and copy it."""
        self.batch(lock, value, "accounts")
        standbys.copy_and_reconnect()

    def session(self, *values: str) -> None:
        """Run a writer that commits epochs and ends."""
        standbys = self.standbys()
        with self.lock(standbys) as lock:
            for value in values:
                self.copied_batch(lock, standbys, value)

    def compared(self) -> Comparison:
        return compare_warehouses(read_compared_rid(self.a.location), read_compared_rid(self.b.location))


def now(made: Made) -> Node:
    return RidTable(made.location).last().at(last_epoch(made.location)).node


def connected(standbys: Standbys) -> list[bool]:
    return [state.is_connected for state in standbys.states()]


@pytest.fixture
def standby(tmp_path: Path) -> Standby:
    return Standby(tmp_path)


def test_a_primary_goes_on_under_one_head_while_all_are_connected(standby: Standby) -> None:
    standbys = standby.standbys()
    with standby.lock(standbys) as lock:
        head = now(standby.a).rid.head
        assert connected(standbys) == [True]
        for number in range(5):
            standby.copied_batch(lock, standbys, f"value {number}")
            assert standby.b.read_cut() == standby.a.read_cut()
            assert now(standby.a).rid.head == now(standby.b).rid.head == head
            assert now(standby.a).next_head is None
        assert now(standby.b).rid.file_lock is FileLock.ALLOW_READ
        rows = [len(RidTable(made.location).history()) for made in (standby.a, standby.b)]
        standby.copied_batch(lock, standbys, "more")
        assert [len(RidTable(made.location).history()) for made in (standby.a, standby.b)] == rows
    assert now(standby.a).next_head is not None
    assert now(standby.b).rid.file_lock is FileLock.UNLOCKED
    standby.session("after a restart")
    assert now(standby.a).rid.head == now(standby.b).rid.head == head
    assert standby.b.read_cut() == standby.a.read_cut()


def test_an_epoch_that_was_not_copied_is_copied_before_the_next_is_committed(standby: Standby) -> None:
    standbys = standby.standbys()
    with standby.lock(standbys) as lock:
        first = standby.batch(lock, "first", "accounts")
        assert last_epoch(standby.b.location) == first - 1
        standby.batch(lock, "second", "accounts")
        assert last_epoch(standby.b.location) == first
    assert last_epoch(standby.b.location) == first + 1


def unreachable(standby: Standby) -> Callable[[], object]:
    gone = standby.b.folder.parent.rename(standby.b.folder.parent.with_name("gone"))
    return lambda: gone.rename(standby.b.folder.parent)


def damaged(standby: Standby) -> Callable[[], object]:
    log = standby.b.folder / "_changelog" / "_delta_log"
    kept = log.rename(log.with_name("kept"))
    log.write_text("not a folder")

    def mend() -> None:
        log.unlink()
        kept.rename(log)

    return mend


@pytest.mark.parametrize("break_", [unreachable, damaged], ids=lambda one: one.__name__)
def test_a_lost_peer_stops_nothing_and_begins_one_generation(
    standby: Standby, break_: Callable[[Standby], Callable[[], object]], caplog: pytest.LogCaptureFixture
) -> None:
    standbys = standby.standbys()
    with standby.lock(standbys) as lock:
        standby.copied_batch(lock, standbys, "first")
        head = now(standby.a).rid.head
        mend = break_(standby)
        standby.batch(lock, "in flight", "accounts")
        assert now(standby.a).rid.head == head
        for value in ("lost", "lost again", "lost for long"):
            standby.copied_batch(lock, standbys, value)
            assert now(standby.a).rid.old1 == head
        assert connected(standbys) == [False]
        assert standbys.states()[0].reason
        assert "is not connected" in caplog.text
        mend()
        assert not standbys.has_retry_due()
        standby.time += 61
        assert standbys.has_retry_due()
        standbys.copy_and_reconnect()
        assert connected(standbys) == [True]
        began = now(standby.a).rid.head
        standby.copied_batch(lock, standbys, "found")
        assert now(standby.a).rid.head == now(standby.b).rid.head == began
    assert standby.b.read_cut() == standby.a.read_cut()
    assert now(standby.b).rid.generations == now(standby.a).rid.generations
    assert standby.compared().verdict is Verdict.SAME


def test_the_others_stay_connected_when_one_is_lost(tmp_path: Path) -> None:
    standby = Standby(tmp_path, 2)
    standbys = standby.standbys()
    with standby.lock(standbys) as lock:
        standby.copied_batch(lock, standbys, "first")
        head = now(standby.a).rid.head
        mend = unreachable(standby)
        for value in ("second", "third", "fourth", "fifth"):
            standby.copied_batch(lock, standbys, value)
        assert connected(standbys) == [False, True]
        # "second" was in flight; all after it is one generation, although one standby is away for long.
        assert now(standby.a).rid.generations[:2] == now(standby.others[1]).rid.generations[:2]
        assert now(standby.a).rid.old1 == head
        assert standby.others[1].read_cut() == standby.a.read_cut()
        mend()
        standby.time += 61
        standbys.copy_and_reconnect()
        assert connected(standbys) == [True, True]
        assert now(standby.a).next_head is None
    assert standby.b.read_cut() == standby.a.read_cut()


def test_a_peer_that_is_suddenly_empty_is_not_filled_again(standby: Standby) -> None:
    standby.session("first")
    mend = unreachable(standby)
    standby.b.folder.parent.mkdir()  # as the mount point of a disk
    standbys = standby.standbys()
    with standby.lock(standbys) as lock:
        standby.batch(lock, "second", "accounts")
        assert "is its disk mounted" in str(standbys.states()[0].reason)
    assert standby.b.location.tables() == []
    shutil.rmtree(standby.b.folder.parent)
    mend()
    standby.session()
    assert standby.b.read_cut() == standby.a.read_cut()


def test_nobody_else_writes_a_connected_peer(standby: Standby) -> None:
    standbys = standby.standbys()
    with standby.lock(standbys):
        with pytest.raises(LockError, match="keeps this copy connected"):
            switch.promote(standby.b.location)
        with pytest.raises(LockError, match="keeps this copy connected"):
            sync(standby.a.location, standby.b.location)
    switch.promote(standby.b.location)


def test_a_peer_whose_lock_another_has_is_joined_later(standby: Standby) -> None:
    standbys = standby.standbys()
    with WriterLock(standby.b.location, "an operator"), standby.lock(standbys) as lock:
        assert connected(standbys) == [False]
        assert "an operator" in str(standbys.states()[0].reason)
        standby.batch(lock, "alone", "accounts")
    standby.session("together")
    assert standby.b.read_cut() == standby.a.read_cut()


def test_the_first_epochs_without_a_peer_are_a_generation_that_it_does_not_know(standby: Standby) -> None:
    standby.session("first")
    head = now(standby.a).rid.head
    with standby.lock(None) as lock:
        standby.batch(lock, "without standbys", "accounts")
    assert now(standby.a).rid.old1 == head
    assert standby.compared().verdict is Verdict.SYNC


def test_a_writer_that_was_killed_while_connected_leaves_no_connection(standby: Standby) -> None:
    standby.session("first")
    head = now(standby.a).rid.head
    killed(standby, "commit")
    assert (now(standby.a).rid.head, now(standby.a).next_head) == (head, None)
    with standby.lock(None) as lock:
        assert now(standby.a).rid.crashed_primary
        standby.batch(lock, "alone", "accounts")
    assert now(standby.a).rid.old1 == head
    standby.session()
    assert not now(standby.a).rid.crashed_primary


WRITER = """
import os, sys
from pathlib import Path
from tests.warehouse.copies.test_standbys import Standby
from warehouse.copies import files

standby = Standby.__new__(Standby)
folder, step = Path(sys.argv[1]), sys.argv[2]
from tests.warehouse.warehouses import Made
standby.a, standby.others, standby.time = Made(folder / "a"), [Made(folder / "b")], 0.0
standby.a.resume()
standbys = standby.standbys()
with standby.lock(standbys) as lock:
    assert [one.is_connected for one in standbys.states()] == [True]
    standby.batch(lock, "in flight", "accounts")
    if step == "commit":
        os._exit(9)
    files.log_step_done = lambda now: os._exit(9) if now.startswith(step) else None
    standbys.copy_and_reconnect()
    os._exit(1)
"""


def killed(standby: Standby, step: str) -> None:
    """Commit an epoch on the primary in a process that dies behind the commit, or in the middle of its copy."""
    folder = str(standby.a.folder.parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", WRITER, folder, step], env=environment, check=False, timeout=120
    )
    assert done.returncode == 9
    standby.a.resume()


ARRIVED = ("put _epochs/_delta_log", "end")
STEPS = ["commit", "put _changelog", "put accounts/_delta_log", *ARRIVED]
IN_SUITE = [("commit", False), ("put accounts/_delta_log", True), (ARRIVED[0], True), ("end", False)]
"""Each outcome once: the epoch arrived or did not, and the peer wrote afterwards or did not."""


@pytest.mark.parametrize(
    ("step", "peer_writes"), partly_soaked(IN_SUITE, sorted({*product(STEPS, (True, False))} - {*IN_SUITE}))
)
def test_an_epoch_in_flight_is_never_lost_in_silence(standby: Standby, step: str, peer_writes: bool) -> None:
    standby.session("first", "second")
    killed(standby, step)
    arrived = last_epoch(standby.b.location) == standby.a.epoch
    assert arrived == (step in ARRIVED)
    switch.promote(standby.b.location)
    standby.b.resume()
    if peer_writes:
        with standby.lock(None, standby.b) as lock:
            lock.check()
            # A killed copy may have left files of the epoch in flight; a job rolls them back when it starts.
            standby.b.batch("of the standby", "new_table")
    events = len(RidTable(standby.a.location).history())
    expected = "newer" if peer_writes and arrived else "the standby (was written|is a primary), too"
    with pytest.raises(RidStateError, match=expected), standby.lock(standby.standbys()):
        pytest.fail("the old primary was written")
    assert len(RidTable(standby.a.location).history()) == events
    found = standby.compared()
    if not peer_writes:
        assert (found.verdict, found.source) in ((Verdict.SAME, None), (Verdict.SYNC, "a"))
        return
    switch.demote(standby.a.location)
    if arrived:
        assert (found.verdict, found.source) == (Verdict.SYNC, "b")
        return
    assert found.verdict is Verdict.SPLIT_BRAIN
    with pytest.raises(RidStateError, match="split brain: the target has data of its own"):
        sync(standby.b.location, standby.a.location)
    known = common_epoch(
        read_compared_rid(standby.b.location), read_compared_rid(standby.a.location), found.common
    )
    assert known is not None
    assert lost_epochs_after(standby.a.location, known).epoch_count == 1
    discarded = now(standby.a).rid
    sync(standby.b.location, standby.a.location, SyncOptions(discard_rid=discarded))
    assert standby.compared().verdict is Verdict.SAME
    assert standby.a.read_cut() == standby.b.read_cut()


def test_an_old_primary_that_cannot_reach_its_peer_is_a_split_brain_later(standby: Standby) -> None:
    standby.session("first")
    killed(standby, "commit")
    switch.promote(standby.b.location)
    standby.b.resume()
    with standby.lock(None, standby.b) as lock:
        lock.check()
        standby.b.batch("of the standby")
    mend = unreachable(standby)
    standby.session("of the old primary")
    mend()
    found = standby.compared()
    assert found.verdict is Verdict.SPLIT_BRAIN
    # By the RIDs alone, too.
    assert now(standby.a).rid.old1 == now(standby.b).rid.old1 == found.common


def test_a_peer_that_was_promoted_meanwhile_does_not_stop_the_stream(standby: Standby) -> None:
    standbys = standby.standbys()
    with standby.lock(standbys) as lock:
        standby.copied_batch(lock, standbys, "first")
        mend = unreachable(standby)
        standby.copied_batch(lock, standbys, "in flight")
        mend()
        switch.promote(standby.b.location)
        standby.time += 61
        standbys.copy_and_reconnect()
        assert "primary" in str(standbys.states()[0].reason)
        standby.batch(lock, "second", "accounts")
    assert now(standby.b).rid.primary


def test_an_unrelated_peer_and_a_newer_one_are_refused(standby: Standby, tmp_path: Path) -> None:
    standby.session("first")
    other = Standby(tmp_path / "other")
    other.session("first")
    with (
        pytest.raises(RidStateError, match="the standby is not a copy of this warehouse"),
        standby.lock(standby.standbys(others=[other.a])),
    ):
        pytest.fail("an unrelated standby")
    switch.demote(standby.a.location)
    fresh = Made(tmp_path / "fresh")
    with (
        pytest.raises(RidStateError, match="the standby is newer"),
        standby.lock(standby.standbys(of=fresh), fresh),
    ):
        pytest.fail("an empty primary with a standby that has data")
    assert RidTable(fresh.location).last().number == 0


def test_a_copy_of_this_generation_elsewhere_keeps_the_mark(standby: Standby, tmp_path: Path) -> None:
    standbys = standby.standbys()
    elsewhere = Made(tmp_path / "elsewhere")
    with standby.lock(standbys) as lock:
        standby.copied_batch(lock, standbys, "first")
        head = now(standby.a).rid.head
        sync(standby.a.location, elsewhere.location)
    standby.session()
    assert now(standby.a).next_head is not None
    standby.session("second", "third")
    assert now(standby.a).rid.old1 == head
    began = now(standby.a).rid.head
    standby.session("fourth")
    assert now(standby.a).rid.head == now(standby.b).rid.head == began


def test_a_killed_copy_into_a_peer_is_completed(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copy to an empty standby dies after any step; the next writer completes it."""
    with standby.lock(None) as lock:
        for value in ("first", "second"):
            standby.batch(lock, value, "accounts")
    kept = standby.a.folder.with_name("kept")
    shutil.copytree(standby.a.folder, kept)
    passed: list[str] = []
    limit = 0

    def reached(step: str) -> None:
        passed.append(step)
        if len(passed) == limit:
            raise Killed(step)

    for limit in range(1, 40, 5 if IS_SOAK else 12):
        for made, state in ((standby.a, kept), (standby.b, None)):
            shutil.rmtree(made.folder, ignore_errors=True)
            if state is not None:
                shutil.copytree(state, made.folder)
        passed.clear()
        monkeypatch.setattr(files, "log_step_done", reached)
        with contextlib.suppress(Killed):
            standby.session()
        monkeypatch.setattr(files, "log_step_done", lambda _step: None)
        standby.session("third")
        standby.a.resume()
        assert standby.b.read_cut() == standby.a.read_cut(), limit
        assert now(standby.b).rid.incoming == EMPTY_ULID
        standby.a.resume()
