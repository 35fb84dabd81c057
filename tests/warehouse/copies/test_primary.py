"""Guarded writing without Spark: who may write, what a killed writer leaves, when a generation begins."""

from pathlib import Path

import pytest

from schemas.errors import LockError, RidStateError
from tests.udfs.rid.rids import node, ulid
from tests.warehouse.copies.standby import guarded
from tests.warehouse.warehouses import Made
from udfs.rid import operations
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID, FileLock
from warehouse.copies.primary import PrimaryLock, require_primary
from warehouse.copies.rid import RidTable
from warehouse.lock.lock import WriterLock


def now(made: Made) -> Node:
    return RidTable(made.location).last().node


def test_a_fresh_warehouse_promotes_itself_on_its_first_run(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with guarded(made):
        rid = now(made).rid
        assert rid.head == rid.base != EMPTY_ULID
        assert (rid.primary, rid.consistency, rid.file_lock) == (True, True, FileLock.ALLOW_READ)
        assert now(made).next_head is None
    assert now(made).rid.file_lock is FileLock.UNLOCKED
    with guarded(made):
        assert now(made).rid.head == rid.head


def test_a_warehouse_from_before_its_rid_promotes_itself_too(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.create()
    made.batch("x")
    with guarded(made):
        assert RidTable(made.location).last().epoch == 0
        assert now(made).rid.primary


@pytest.mark.parametrize("drawing", ["0000:0001:0000:0000:0001", "0001:0000:0000:0000:0001"])
def test_a_secondary_is_refused_and_nothing_is_written(tmp_path: Path, drawing: str) -> None:
    made = Made(tmp_path)
    RidTable(made.location).update("made", -1, lambda _: node(drawing))
    with pytest.raises(RidStateError, match="is not primary; nothing was written") as caught, guarded(made):
        pytest.fail("a secondary was written")
    with pytest.raises(RidStateError, match="is not primary; nothing was written"):
        require_primary(made.location)
    assert "aggregator rid promote" in caught.value.fields["advice"]
    assert [change.event for change in RidTable(made.location).history()] == ["made"]
    with WriterLock(made.location, "the lock was let go"):
        pass


def test_a_second_writer_is_refused_before_the_rid_is_touched(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with guarded(made):
        events = [change.event for change in RidTable(made.location).history()]
        with pytest.raises(LockError, match="a test"), guarded(made):
            pytest.fail("two writers")
        assert [change.event for change in RidTable(made.location).history()] == events


def test_the_lock_of_a_killed_writer_is_taken_over_as_a_crashed_primary(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with guarded(made):
        pass
    # As a killed writer leaves it: its file lock ended with it. Real kills: tests/jobs/test_rid_jobs.py.
    RidTable(made.location).update("lock", -1, operations.lock)
    assert now(made).rid.file_lock is FileLock.ALLOW_READ
    with guarded(made):
        assert now(made).rid.crashed_primary
    assert now(made).rid.crashed_primary
    with guarded(made):
        assert now(made).rid.crashed_primary


def test_an_error_that_unwinds_lets_the_lock_go_and_is_no_crash(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with pytest.raises(ZeroDivisionError), guarded(made):
        1 / 0  # noqa: B018
    with guarded(made):
        assert not now(made).rid.crashed_primary


def test_the_first_batch_after_a_copy_begins_a_generation_and_the_second_does_not(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.create()
    with guarded(made) as held:
        first = now(made).rid.head
        held.check()
        made.batch("0")
        assert now(made).rid.head == first
        RidTable(made.location).update("mark", 0, lambda n: operations.mark_unconnected_copy(n, ulid(1)))
        held.check()
        renewed = now(made).next_head
        held.check()
        assert now(made).next_head == renewed
        assert renewed is not None
        assert renewed > first
        assert now(made).rid.head == first
        epoch = made.batch("1")
        begun = RidTable(made.location).last().at(epoch).node
        assert (begun.rid.head, begun.rid.old1, begun.next_head) == (renewed, first, None)
        held.check()
        assert now(made) == begun
        made.batch("2")
        assert now(made) == begun


def copied_from(made: Made, held: PrimaryLock) -> None:
    """Do a batch, then what a copy does to its source, then begin a batch."""
    made.batch("0")
    RidTable(made.location).update("mark", 0, lambda n: operations.mark_unconnected_copy(n, ulid(1)))
    held.check()


def test_a_batch_that_died_before_its_epoch_begins_no_generation(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.create()
    with guarded(made) as held:
        copied_from(made, held)
        made.write("_changelog", "lost")
    assert now(made).next_head is not None
    assert now(made).rid.old1 == EMPTY_ULID


def test_a_generation_that_nobody_settled_is_found_at_the_next_start(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.create()
    with guarded(made) as held:
        copied_from(made, held)
        mark = now(made).next_head
        made.batch("1")
    assert now(made).rid.head == mark


def test_where_no_rid_can_be_kept_the_lock_alone_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made(tmp_path)
    monkeypatch.setattr("warehouse.copies.primary.has_known_scheme", lambda _root: False)
    with guarded(made) as held:
        held.check()
    assert "a warehouse there has no RID" in caplog.text
    assert RidTable(made.location).last().number == 0
