"""Where a batch has to stop for a space that moves, and what is in front of it."""

from __future__ import annotations

import pytest

from jobs.batch.control import follow
from jobs.batch.moves import MOVES, begins_transaction, first_place, moves_of
from jobs.batch.settle import Settlement
from jobs.batch.summary import Order, summarize
from tests.jobs.batch import logs
from tests.jobs.batch.logs import A1, A, Row, control_row, define, drop, index, put, register, truncate, txn
from tests.jobs.batch.pure import Driver, Piece
from tests.jobs.batch.test_layouts import KNOWN, rekey, rename

REKEYED = logs.change("REPLACE", 288, tuple_=logs.index_tuple(601, [[1, "string"]]))
BACK = logs.change("REPLACE", 288, tuple_=logs.index_tuple(600))


@pytest.mark.parametrize(
    ("rows", "places"),
    [
        ([rename(600, "t")], [10]),
        ([rekey(600)], [10]),
        ([rekey(600), put(600), BACK], [10, 30]),
        ([rename(600, "s")], []),
        ([logs.change("UPDATE", 280, key=[600], ops=[["=", 6, logs.FIELDS[:1]]])], []),
        ([drop(600), define(600, "s"), index(600), rename(600, "t")], []),
        ([define(601, "u"), index(601), rename(601, "v")], []),
        (
            [
                define(601, "u"),
                index(601),
                logs.change("REPLACE", 288, tuple_=logs.index_tuple(601, [[1, "string"]])),
            ],
            [30],
        ),
        ([truncate(600), rename(600, "t")], [20]),
    ],
)
def test_where_a_space_moves(rows: list[Row], places: list[int]) -> None:
    told = [control_row(row, 10 * (i + 1)) for i, row in enumerate(rows) if row["space_id"] < 512]
    control = follow(KNOWN, {}, told, frozenset())
    found = moves_of(KNOWN, {}, control, lambda _: True)
    assert [order.position for order in found] == places
    assert moves_of(KNOWN, {600: "refused", 601: "refused"}, control, lambda _: True) == []
    assert moves_of(KNOWN, {}, control, lambda _: False) == []


def test_the_first_place_is_that_of_rows_that_were_not_read_before() -> None:
    summary = summarize(logs.batch(txn(1, put()), txn(2, put()), txn(1, put())), 0)
    first, second, _ = sorted({run.start for run in summary.runs} | {Order(9, 0, 0)})
    assert first_place(summary, Settlement({}), frozenset()) == first
    assert first_place(summary, Settlement({(0, 1): 9}), frozenset()) == second
    assert first_place(summary, Settlement({(0, 1): 9, (0, 2): 9}), frozenset()) is None
    assert first_place(summary, Settlement({}), frozenset({0})) is None


def test_a_batch_can_only_begin_with_a_transactions_first_row() -> None:
    summary = summarize(logs.batch(txn(1, put(), rename(600, "t")), txn(1, rekey(600))), 0)
    assert [begins_transaction(summary, row.order) for row in summary.control] == [False, True]


def test_what_is_in_front_comes_first_and_the_rest_is_done_at_once() -> None:
    driver = Driver()
    begin = [txn(1, register(1, A1)), txn(1, define(600, "s")), txn(1, index(600)), txn(1, put(600, 1, "x"))]
    then = [txn(1, rekey(600)), txn(1, put(600, 2, "x")), txn(1, rename(600, "t")), txn(1, put(600, 3, "y"))]
    plan = driver.batch(Piece(logs.batch(*begin, *then), A, A1))
    assert plan.settlements[A].reason == MOVES
    assert driver.waiting == []
    assert [(one.ends.table, driver.state.replicasets[A].moves) for one in driver.moves] == [
        ("s", False),
        ("s", False),
    ]
    assert [driver.fates[A, 1, lsn].table for lsn in (4, 6, 8)] == ["s", "s", "t"]
    assert driver.state.replicasets[A].refused == {}
