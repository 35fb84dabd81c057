"""Rows into transactions, and which transactions a ROLLBACK, CONFIRM or PROMOTE leaves standing."""

from pathlib import Path

import pytest

from tests.oracle import mp
from tests.oracle.log import (
    COMMIT_FLAG,
    CONFIRM,
    DEMOTE,
    PROMOTE,
    REPLACE,
    ROLLBACK,
    ROW_MAGIC,
    WAIT_ACK_FLAG,
    WAIT_SYNC_FLAG,
    Row,
    Transaction,
    read_log,
    rolled_back,
    transactions,
    vclock,
    version,
)
from tests.truth import own


def row(lsn: int, *, origin: int = 1, tsn: int | None = None, flags: int = 0, group: int = 0) -> Row:
    return Row(REPLACE, origin, group, lsn, 0.0, tsn, flags, {})


def write(*lsns: int, origin: int = 1, queued: bool = False, waits: bool = False) -> Transaction:
    flags = WAIT_SYNC_FLAG * queued | WAIT_ACK_FLAG * waits
    return Transaction(tuple(row(lsn, origin=origin, flags=flags) for lsn in lsns))


def settle(kind: int, lsn: int, *, owner: int = 1, origin: int = 1) -> Transaction:
    body = {2: mp.encode(owner), 3: mp.encode(lsn)}
    return Transaction((Row(kind, origin, 0, 1000 + lsn, 0.0, None, 0, body),))


def test_rows_form_transactions_by_the_commit_flag() -> None:
    rows = [row(1), row(2, tsn=2), row(3, tsn=2), row(4, tsn=2, flags=COMMIT_FLAG), row(5)]
    assert [[r.lsn for r in t.rows] for t in transactions(rows)] == [[1], [2, 3, 4], [5]]


def test_a_transaction_that_is_not_whole_does_not_count() -> None:
    assert [len(t.rows) for t in transactions([row(1), row(2, tsn=2), row(3, tsn=2)])] == [1]


def test_local_rows_have_no_part_in_origin_and_lsn() -> None:
    mixed = Transaction((row(7, origin=0, group=1, tsn=5), row(5, tsn=5), row(9, origin=0, group=1, tsn=5)))
    assert (mixed.replica_id, mixed.last_lsn) == (1, 5)


def test_a_rollback_takes_back_all_from_its_lsn_on() -> None:
    assert rolled_back([write(1), write(2, 3), write(4), settle(ROLLBACK, 3)]) == {1, 2}


def test_a_rollback_names_the_last_row_of_its_transaction() -> None:
    """One whose first row is before the lsn and whose last row is not goes as a whole."""
    assert rolled_back([write(1, 2, 3), settle(ROLLBACK, 3)]) == {0}
    assert rolled_back([write(1, 2), settle(ROLLBACK, 3)]) == set()


def test_a_rollback_leaves_what_was_confirmed_and_what_comes_later() -> None:
    log = [write(1), settle(CONFIRM, 1), write(5), settle(ROLLBACK, 5), write(9), settle(CONFIRM, 9)]
    assert rolled_back(log) == {2}
    assert rolled_back([write(1), write(2), settle(CONFIRM, 1), settle(ROLLBACK, 1)]) == {1}


def test_two_rollbacks_each_take_their_own() -> None:
    log = [write(1), write(2), settle(ROLLBACK, 2), write(4), settle(ROLLBACK, 1), write(7)]
    assert rolled_back(log) == {0, 1, 3}


def test_other_origins_are_left_alone() -> None:
    assert rolled_back([write(5, origin=2), write(5), settle(ROLLBACK, 5)]) == {1}


def test_another_member_may_settle_an_owners_queue() -> None:
    log = [write(5), settle(CONFIRM, 5, owner=1, origin=2), write(6), settle(ROLLBACK, 6, owner=1, origin=2)]
    assert rolled_back(log) == {2}


@pytest.mark.parametrize("kind", [PROMOTE, DEMOTE])
def test_a_promote_keeps_up_to_its_lsn_and_takes_back_what_waits_beyond(kind: int) -> None:
    log = [write(1, queued=True), write(2, queued=True), write(3), settle(kind, 1, origin=2)]
    assert rolled_back(log) == {1}


def test_a_confirm_commits_what_is_asynchronous_behind_it() -> None:
    log = [write(1, queued=True, waits=True), write(2, queued=True), settle(CONFIRM, 1), settle(PROMOTE, 1)]
    assert rolled_back(log) == set()
    log.insert(2, write(3, queued=True, waits=True))
    log.insert(3, write(4, queued=True))
    assert rolled_back(log) == {2, 3}


def test_the_recordings_rollbacks_are_found() -> None:
    """Twice five transactions that could not reach their quorum, with what was queued behind."""
    recording = own()
    rows = (one for path in recording.logs("a1") for one in read_log(path))
    assert len(rolled_back(transactions(rows))) == 10


def test_a_header_gives_vclock_and_version() -> None:
    first, *_, last = own().logs("a1")
    assert vclock(first) == {}
    assert vclock(last) == own().info("a1").vclock
    assert version(first) == (2, 6)


def test_bytes_that_start_no_block_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.xlog"
    damaged.write_bytes(own().logs("a1")[0].read_bytes().replace(ROW_MAGIC, b"none", 1))
    with pytest.raises(ValueError, match="starts no block"):
        list(read_log(damaged))
