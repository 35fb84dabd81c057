"""Rows that their spaces cannot be followed past: each is named, stops its space, and no other one."""

from dataclasses import replace
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from pipeline.plan.rows.summary import control_rows, has_inapplicable_rows, row_headers
from pipeline.plan.spaces.meanings import NO_TABLE
from schemas.iproto import BodyKey
from tests.pipeline import logs
from tests.pipeline.logs import A1, Row, Transaction, define, drop, index, put, register, truncate, txn
from tests.pipeline.plan.planner import Piece, Planner

ARROW = msgpack.ExtType(8, b"arrow")
DIGITS = msgpack.ExtType(1, b"\x00" + b"\x11" * 30 + b"\x1c")


def other(kind: str, space_id: int | None = 512, **content: Any) -> Row:
    body: dict[int, Any] = {} if space_id is None else {int(BodyKey.SPACE_ID): space_id}
    body |= {int(BodyKey[name.upper()]): value for name, value in content.items()}
    return {"type": kind, "space_id": space_id, "body": msgpack.packb(body)}


HELD = {
    "unknown": (other("TYPE_19"), "TYPE_19: a type of row that this version does not know"),
    "arrow": (other("INSERT_ARROW", arrow=ARROW), "INSERT_ARROW: rows in Arrow batches"),
    "no end": (other("DELETE_RANGE", begin_key=[1]), "no begin key or no end key"),
    "no array": (other("DELETE_RANGE", begin_key=[1], end_key=7), "not a MessagePack array"),
    "secondary": (other("DELETE_RANGE", begin_key=[1], end_key=[], index_id=1), "a secondary index"),
    "digits": (other("DELETE_RANGE", begin_key=[DIGITS], end_key=[]), "the content of the decimal"),
}


def held(*rows: Row) -> list[tuple[int, str | None]]:
    batch = logs.batch(*(txn(1, row) for row in rows))
    found = control_rows(batch, row_headers(batch), 0)
    return [((row.position.position - 100) // 50, row.held_reason) for row in found]


@pytest.mark.parametrize("name", HELD)
def test_a_row_that_cannot_be_followed_is_named(name: str) -> None:
    row, reason = HELD[name]
    ((index, held_reason),) = held(put(512, 1), row, put(512, 2))
    assert index == 1
    assert held_reason is not None
    assert reason in held_reason


@pytest.mark.parametrize(
    "row",
    [
        other("DELETE_RANGE", begin_key=[], end_key=[]),
        other("DELETE_RANGE", begin_key=[1, "a"], end_key=[2]),
        {"type": "NOP"},
        other("TYPE_19", 400),
        other("TYPE_19", None),
        other("TYPE_42"),
        {**other("TYPE_19"), "group_id": 1},
    ],
)
def test_other_rows_hold_nothing(row: Row) -> None:
    assert held(row) == []


def test_one_row_of_a_space_is_enough_until_the_next_event() -> None:
    row = HELD["unknown"][0]
    found = held(row, row, other("TYPE_20", 513), truncate(512), row, row)
    assert [index for index, _ in found] == [0, 2, 3, 4]


def planned(*more: Transaction) -> tuple[Planner, Any]:
    planner = Planner()
    begin = (txn(1, register(1, A1)), *(txn(1, define(i, f"s{i}")) for i in (600, 601)))
    begin += tuple(txn(1, index(i)) for i in (600, 601))
    return planner, planner.batch(Piece(logs.batch(*begin, *more)))


def test_a_held_row_stops_its_space_alone() -> None:
    row = other("TYPE_19", 600)
    planner, plan = planned(txn(1, put(600, 1)), txn(1, row), txn(1, put(600, 2)), txn(1, put(601, 1)))
    (refusal,) = plan.history.refusals
    assert (refusal.space_id, refusal.name) == (600, "s600")
    assert refusal.reason.endswith("(replica id 1, lsn 7)")
    meanings = plan.history.meanings[1, 600]
    assert meanings[-2].lineage != NO_TABLE
    assert meanings[-1].lineage == NO_TABLE
    assert plan.history.versions[meanings[-1].version].space.name == "s600"
    assert planner.state.replicasets[logs.A].tables == {600: "s600", 601: "s601"}
    assert 600 in planner.state.replicasets[logs.A].refused


@pytest.mark.parametrize("event", [truncate(600), drop(600)])
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_it_is_followed_again_once_it_has_no_rows(event: Row, in_one_batch: bool) -> None:
    held_ = txn(1, other("TYPE_19", 600))
    again = [txn(1, event)]
    if event["type"] == "DELETE":
        again += [txn(1, define(600, "s600")), txn(1, index(600))]
    again.append(txn(1, put(600, 3)))
    if in_one_batch:
        _, plan = planned(held_, *again)
    else:
        planner, _ = planned(held_)
        plan = planner.batch(Piece(logs.batch(*again, lsns={1: 6})))
    assert plan.history.refusals == ()
    assert plan.history.meanings[1, 600][-1].lineage != NO_TABLE


def test_refusals_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    planner, _ = planned(txn(1, other("TYPE_19", 600)), txn(1, other("TYPE_23", None)))
    planner.batch(Piece(logs.batch(txn(1, put(600, 2)), lsns={1: 7})))
    messages = [record.getMessage() for record in caplog.records]
    assert len([one for one in messages if "space s600 is refused" in one and "TYPE_19" in one]) == 1
    assert len([one for one in messages if "_changelog only: TYPE_23" in one]) == 1


def test_a_generation_follows_it_again() -> None:
    """So does a heal, which is a generation that may lie behind the tables."""
    planner, _ = planned(txn(1, other("TYPE_19", 600)))
    assert 600 in planner.state.replicasets[logs.A].refused
    rows = (register(1, A1), define(600, "s600"), index(600), define(601, "s601"), index(601), put(600, 9))
    snapshot = replace(Piece(logs.batch(txn(0, *rows))), is_snapshot=True, vclock={1: 20})
    plan = planner.batch(snapshot)
    assert plan.history.refusals == ()
    assert plan.history.meanings[1, 600][-1].lineage != NO_TABLE
    assert planner.state.replicasets[logs.A].refused == {}


@pytest.mark.parametrize("name", [*HELD, None])
def test_rows_that_are_applied_again_are_looked_at_too(name: str | None) -> None:
    ranges = other("DELETE_RANGE", begin_key=[1], end_key=[])
    rows = [put(512, 1), ranges, other("TYPE_19", 400), *([HELD[name][0]] if name is not None else [])]
    table = pa.Table.from_batches([logs.batch(txn(1, *rows))])
    assert has_inapplicable_rows(table) == (name is not None)
