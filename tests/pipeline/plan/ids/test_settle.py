"""What counts, what never will, and what waits: lsns that were read, missing ones, and Tarantool's limbo."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.plan.ids.settle import LsnGap, Settlement, settle
from pipeline.plan.rows.position import LogPosition
from pipeline.plan.rows.summary import concat_summaries, summarize_rows
from tests.pipeline import logs
from tests.pipeline.logs import A1, A2, Transaction, batch, local_row, put, settling_row, synchronous_row, txn

SYNC = synchronous_row(put())


def settled(
    *segments: tuple[Transaction, ...],
    read: Mapping[int, int] | None = None,
    instances: tuple[str, ...] = (A1, A2),
    leader: str | None = A1,
    on_gap: str = "hold",
    snapshots: frozenset[int] = frozenset(),
) -> Settlement:
    parts = [summarize_rows(batch(*rows), i) for i, rows in enumerate(segments)]
    members = {i: instances[i] for i in range(len(segments))}
    return settle(concat_summaries(parts), read or {}, members, leader, on_gap, lambda *_: False, snapshots)


def applied(found: Settlement, *segments: tuple[Transaction, ...]) -> list[tuple[int, int, int]]:
    """Return (segment, replica id, lsn) of the rows that count."""
    return [
        (i, row["replica_id"] or 0, row["lsn"])
        for i, rows in enumerate(segments)
        for row in logs.rows_of(rows)
        if found.takes_effect(
            replace(
                logs.control_row(row, 0),
                position=LogPosition(i, row["position"], row["row"]),
                **{name: row[name] for name in ("replica_id", "lsn", "tsn")},
            )
        )
    ]


def test_rows_that_were_read_are_dropped() -> None:
    rows = (txn(1, put(), put(), put()), txn(2, put(), lsn=7))
    found = settled(rows, read={1: 2, 2: 6})
    assert found.low_watermarks == {(0, 1): 2, (0, 2): 6}
    assert applied(found, rows) == [(0, 1, 3), (0, 2, 7)]
    assert found.read_vclock == {1: 3, 2: 7}
    assert found.waits_from is None


def test_a_second_member_tells_its_copy_once() -> None:
    first, second = (txn(1, put()), txn(2, put())), (txn(1, put(), put()), txn(2, put(), put()))
    found = settled(first, second)
    assert applied(found, first, second) == [(0, 1, 1), (0, 2, 1), (1, 1, 2), (1, 2, 2)]
    assert found.read_vclock == {1: 2, 2: 2}


def test_component_0_is_each_instance_own() -> None:
    first, second = (txn(1, local_row(put()), local_row(put())),), (txn(1, local_row(put())),)
    found = settled(first, second, read={0: 1})
    assert found.low_watermarks == {(0, 0): 1}
    assert found.read_vclock == {0: 1}
    found = settled(first, leader=A2, read={0: 5})
    assert (found.low_watermarks, found.read_vclock) == ({}, {0: 2})


def test_rows_of_a_snapshot_are_no_lsns_of_anybody() -> None:
    """They are numbered from 1 on, without an origin."""
    snapshot, log = (txn(0, *[put()] * 9),), (txn(1, local_row(put()), put()),)
    found = settled(snapshot, log, instances=(A1, A1), read={0: 3, 1: 0}, snapshots=frozenset({0}))
    assert len([row for row in applied(found, snapshot, log) if row[0] == 0]) == 9
    assert found.read_vclock == {0: 3, 1: 1}


def test_synchronous_rows_of_a_snapshot_are_committed() -> None:
    found = settled((txn(0, SYNC, SYNC),), snapshots=frozenset({0}))
    assert (found.waits_from, found.gaps) == (None, ())


def test_a_gap_holds_what_stands_behind_it() -> None:
    rows = (txn(1, put()), txn(1, put(), lsn=4), txn(2, put()))
    found = settled(rows)
    assert found.gaps == (LsnGap(1, 2, 3, LogPosition(0, 150, 0)),)
    assert found.waits_from == LogPosition(0, 150, 0)
    assert found.wait_reason == "lsn 2..3 of replica id 1 is missing"
    assert applied(found, rows) == [(0, 1, 1)]
    assert found.read_vclock == {1: 4, 2: 1}


def test_a_gap_that_is_skipped_is_reported_and_passed() -> None:
    rows = (txn(1, put(), lsn=3), txn(2, put()), txn(1, put(), lsn=9))
    found = settled(rows, on_gap="skip")
    assert [(gap.first_lsn, gap.last_lsn) for gap in found.gaps] == [(1, 2), (4, 8)]
    assert (found.waits_from, found.wait_reason) == (None, None)
    assert len(applied(found, rows)) == 3


def test_local_rows_may_begin_anywhere() -> None:
    assert settled((txn(1, local_row(put()), put()),), read={}).gaps == ()
    rows = logs.rows_of([txn(1, local_row(put()))], {0: 41})
    found = settle(summarize_rows(logs.batch_of(rows), 0), {}, {0: A1}, None, "hold", lambda *_: False)
    assert (found.gaps, found.read_vclock) == ((), {0: 42})


def test_the_first_of_several_gaps_holds() -> None:
    found = settled((txn(2, put(), lsn=5),), (txn(1, put(), lsn=3),))
    assert found.waits_from == LogPosition(0, 100, 0)
    assert len(found.gaps) == 2


def test_a_confirmed_transaction_counts() -> None:
    rows = (txn(1, put(), SYNC), txn(1, put()), txn(1, settling_row("CONFIRM", 1, 2)))
    found = settled(rows)
    assert (found.waits_from, found.rolled_back) == (None, ())
    assert len(applied(found, rows)) == 4


def test_an_unconfirmed_one_holds_from_its_first_row() -> None:
    rows = (txn(1, put()), txn(1, put(), SYNC), txn(2, put()))
    found = settled(rows)
    assert (found.waits_from, found.wait_reason) == (
        LogPosition(0, 150, 0),
        "transaction 1:2 is not confirmed",
    )
    assert applied(found, rows) == [(0, 1, 1)]


def test_confirm_reaches_up_to_its_lsn() -> None:
    rows = (txn(1, SYNC), txn(1, SYNC), txn(1, SYNC), txn(1, settling_row("CONFIRM", 1, 2)))
    assert settled(rows).waits_from == LogPosition(0, 200, 0)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_transaction_that_ends_in_a_local_row_is_its_last_global_row(cut: int) -> None:
    """As 3.x writes it, in whatever batches the part is decoded."""
    rows = batch(txn(1, SYNC, local_row(put())), txn(1, settling_row("CONFIRM", 1, 1)))
    parts = [part for part in (rows.slice(0, cut), rows.slice(cut)) if part.num_rows]
    whole = concat_summaries([summarize_rows(part, 0) for part in parts])
    assert [(one.replica_id, one.last_lsn) for one in whole.transactions.waiting] == [(1, 1)]
    assert settle(whole, {}, {0: A1}, None, "hold", lambda *_: False).waits_from is None


def test_confirm_of_a_part_confirms_nothing() -> None:
    """CONFIRM names the last row of a transaction."""
    rows = (txn(1, put(), SYNC), txn(1, settling_row("CONFIRM", 1, 1)))
    assert settled(rows).waits_from == LogPosition(0, 100, 0)


@pytest.mark.parametrize("kind", ["CONFIRM", "ROLLBACK", "PROMOTE"])
def test_what_settles_one_owners_queue_leaves_anothers(kind: str) -> None:
    rows = (txn(2, SYNC), txn(1, SYNC), txn(1, settling_row(kind, 1, 1)))
    found = settled(rows)
    assert (found.waits_from, found.wait_reason) == (
        LogPosition(0, 100, 0),
        "transaction 2:1 is not confirmed",
    )
    assert {gone.replica_id for gone in found.rolled_back} <= {1}


def test_rollback_takes_its_transaction_and_all_behind() -> None:
    rows = (
        txn(1, SYNC),
        txn(1, put(), SYNC),
        txn(1, put()),
        txn(1, SYNC),
        txn(2, put()),
        txn(1, settling_row("CONFIRM", 1, 1)),
        txn(1, settling_row("ROLLBACK", 1, 3)),
        txn(1, put()),
    )
    found = settled(rows)
    assert found.waits_from is None
    changes = [(0, 1, 1), (0, 1, 2), (0, 1, 3), (0, 1, 4), (0, 1, 5), (0, 2, 1), (0, 1, 8)]
    assert [row for row in changes if row not in applied(found, rows)] == changes[1:5]


def test_rollback_of_a_later_one_leaves_the_first_waiting() -> None:
    rows = (txn(1, SYNC), txn(1, put(), SYNC), txn(1, settling_row("ROLLBACK", 1, 3)))
    found = settled(rows)
    assert found.waits_from == LogPosition(0, 100, 0)
    assert [(r.first_tsn, r.since.position, r.until.position) for r in found.rolled_back] == [(2, 150, 200)]


@pytest.mark.parametrize("kind", ["PROMOTE", "DEMOTE"])
def test_another_member_settles_the_owners_queue(kind: str) -> None:
    rows = (
        txn(1, SYNC),
        txn(1, SYNC),
        txn(2, settling_row(kind, 1, 1, term=2)),
        txn(2, put()),
    )
    found = settled(rows)
    assert found.waits_from is None
    assert [(r.replica_id, r.first_tsn) for r in found.rolled_back] == [(1, 2)]
    assert applied(found, rows) == [(0, 1, 1), (0, 2, 1), (0, 2, 2)]


def test_promote_of_nobody_settles_nothing() -> None:
    """The first PROMOTE of a replicaset finds an empty limbo and says owner 0, lsn 0."""
    rows = (txn(1, settling_row("PROMOTE", 0, 0, term=2)), txn(1, SYNC))
    found = settled(rows)
    assert (found.waits_from, found.rolled_back) == (LogPosition(0, 150, 0), ())


def test_a_settling_row_is_its_own_origins_where_it_names_none() -> None:
    rows = (txn(1, SYNC), txn(1, {"type": "RAFT_CONFIRM", "body": logs.pack({3: 1})}))
    assert settled(rows).waits_from is None


def test_another_members_copy_of_a_rollback_spares_what_came_later() -> None:
    waits = (txn(1, SYNC, lsn=20),)
    copy = (txn(1, SYNC, lsn=10), txn(1, settling_row("ROLLBACK", 1, 10)), txn(1, put(), lsn=20))
    found = settled(waits, copy, read={1: 19})
    assert found.rolled_back == ()
    assert (found.waits_from, found.wait_reason) == (
        LogPosition(0, 100, 0),
        "transaction 1:20 is not confirmed",
    )


def test_a_copy_of_a_synchronous_transaction_waits_for_nothing() -> None:
    rows = (txn(1, SYNC), txn(1, put(), lsn=8))
    assert settled(rows, read={1: 7}).waits_from is None


def test_a_space_waits_where_it_was_synchronous() -> None:
    rows = batch(txn(1, put(600)), txn(1, put()), txn(1, put(600)))
    asked: list[tuple[int, LogPosition]] = []

    def is_sync(space_id: int, order: LogPosition) -> bool:
        asked.append((space_id, order))
        return order.position > 100

    found = settle(summarize_rows(rows, 0, {600}), {}, {0: A1}, None, "hold", is_sync)
    assert found.waits_from == LogPosition(0, 200, 0)
    assert asked == [(600, LogPosition(0, 100, 0)), (600, LogPosition(0, 200, 0))]


def test_the_earlier_of_gap_and_limbo_is_the_reason() -> None:
    gap_first = settled((txn(1, put(), lsn=2), txn(2, SYNC)))
    limbo_first = settled((txn(2, SYNC), txn(1, put(), lsn=2)))
    assert gap_first.wait_reason == "lsn 1..1 of replica id 1 is missing"
    assert limbo_first.wait_reason == "transaction 2:1 is not confirmed"


def test_each_members_own_local_rows_count_apart() -> None:
    """Component 0 of a member that leads again continues from its own count, so that nothing comes twice."""
    rows = summarize_rows(logs.batch(txn(0, local_row(put()), local_row(put()), local_row(put()))), 0)
    local_lsns = {A1: 2, A2: 9}
    found = settle(rows, {0: 9, 1: 5}, {0: A1}, A2, "hold", lambda *_: False, local_lsns=local_lsns)
    assert found.low_watermarks == {(0, 0): 2, (0, 1): 5}
    assert (found.read_vclock, found.local_lsns) == ({0: 3, 1: 5}, {A1: 3, A2: 9})


@pytest.mark.parametrize("on_gap", ["hold", "skip"])
def test_missing_rows_that_come_later_wait_as_well(on_gap: str) -> None:
    """A segment that lacks rows in the middle, as a damaged block leaves it, and a second member's copy of them."""
    first, second = (txn(1, put()), txn(1, put(), lsn=4)), (txn(1, put(), put(), put(), lsn=2),)
    found = settled(first, second, on_gap=on_gap)
    assert found.gaps == (LsnGap(1, 2, 3, LogPosition(0, 150, 0)),)
    assert found.low_watermarks == {(1, 1): 1 if on_gap == "hold" else 4}
    assert found.read_vclock == {1: 4}
