"""What each system space's rows do, as the reference lists it: in a log and in the snapshot of a join."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.descriptions import SYSTEM_SPACES
from schemas.iproto import SYSTEM_SPACE_ID_MAX, SystemSpace
from tests.pipeline import logs
from tests.pipeline.logs import A1, A2, A3, A, Row, batch_of, change, rows_of, txn
from tests.pipeline.plan.planner import Piece, Planner

LISTED = {int(space): SYSTEM_SPACES.get(space, "nothing") for space in SystemSpace}
STEERING = {
    int(SystemSpace.SPACE),
    int(SystemSpace.INDEX),
    int(SystemSpace.CLUSTER),
    int(SystemSpace.TRUNCATE),
}
BEGIN = (txn(1, logs.register(1, A1)), txn(1, logs.define(600, "s"), logs.index(600), logs.put(600, 1)))


def read(*rows: Row, snapshot: bool = False) -> Planner:
    """Read a log that begins with a space of one tuple, or a snapshot that holds rows beside it."""
    planner = Planner()
    if snapshot:
        held = [*rows_of((txn(0, *(row for one in BEGIN for row in one.rows), *rows),))]
        for row in held:
            row |= {"replica_id": None, "lsn": None}
        planner.batch(replace(Piece(batch_of(held)), is_snapshot=True, vclock={1: 9}))
        return planner
    begun = rows_of(BEGIN)
    planner.batch(Piece(batch_of(begun)))
    planner.batch(Piece(batch_of(rows_of((txn(1, *rows),), {1: len(begun)}))))
    return planner


def known(planner: Planner) -> tuple[Any, ...]:
    """Return what rows of system spaces may change."""
    one = planner.state.replicasets[A]
    return one.spaces, one.cluster, one.applier_map, one.refused, planner.cluster, planner.truncations


def test_no_system_space_is_a_space_of_users() -> None:
    assert max(LISTED) <= SYSTEM_SPACE_ID_MAX


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("space_id", sorted(set(LISTED) - STEERING))
def test_rows_that_do_nothing_are_kept_and_change_nothing(space_id: int, snapshot: bool) -> None:
    rows = [
        change("INSERT", space_id, tuple_=[600, "x", {"a": 1}]),
        change("REPLACE", space_id, tuple_=[1, A2]),
        change("UPDATE", space_id, key=[600], ops=[["=", 1, "y"]]),
        change("UPSERT", space_id, tuple_=[600, 1], ops=[["+", 1, 1]]),
        change("DELETE", space_id, key=[600]),
    ]
    rows = rows[:2] if snapshot else rows
    planner = read(*rows, snapshot=snapshot)
    assert known(planner) == known(read(logs.put(600, 2), snapshot=snapshot))
    if snapshot:
        assert [fate.table for fate in planner.snapshot[-2:]] == [None, None]
    else:
        fates = [planner.fates[A, 1, lsn] for lsn in range(5, 10)]
        assert [(fate.state, fate.table, fate.global_id) for fate in fates] == [("committed", None, 1)] * 5
    assert LISTED[space_id].startswith(("nothing", "have the replicaset's uuid"))


def test_space() -> None:
    assert known(read(logs.define(700, "t"), logs.index(700)))[0].keys() == {600, 700}
    assert known(read(logs.define(700, "t"), logs.index(700), snapshot=True))[0].keys() == {600, 700}
    assert known(read(logs.drop_index(600), logs.drop(600)))[0] == {}


def test_index() -> None:
    assert read(logs.drop_index(600)).truncations == {"s": 1}
    assert read(logs.index(600, index_id=1), logs.drop_index(600, 1)).truncations == {}


@pytest.mark.parametrize("snapshot", [False, True])
def test_cluster(snapshot: bool) -> None:
    planner = read(logs.register(2, A2), logs.register(3, A3), snapshot=snapshot)
    assert planner.state.replicasets[A].cluster == {1: A1, 2: A2, 3: A3}
    assert set(planner.cluster.global_ids) >= {A1, A2, A3}


def test_truncate() -> None:
    assert read(logs.truncate(600)).truncations == {"s": 1}
    assert read(change("INSERT", SystemSpace.TRUNCATE, tuple_=[600, 1]), snapshot=True).truncations == {}
