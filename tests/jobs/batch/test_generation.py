"""A generation, decided: what it settles, what it ends, what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

from jobs.batch.generation import Generation, generation_of
from jobs.batch.settle import Gap
from jobs.batch.state import MapEntry, Replicaset
from jobs.batch.stretch import Stretch
from jobs.batch.summary import Order
from tests.jobs.batch.logs import A1, A2, A3, A, Transaction, batch, define, index, put, register, txn
from tests.jobs.batch.pure import Driver, Piece

SPACES = [define(512, "same"), index(512), define(513, "gone"), index(513), define(514, "other"), index(514)]
BEGIN = (txn(1, register(1, A1)), txn(1, register(2, A2)), txn(1, *SPACES), txn(2, put(512, 1)))


def piece(*rows: Transaction, lsns: dict[int, int] | None = None) -> Piece:
    return Piece(batch(*rows, lsns=lsns))


def snapshot(vclock: dict[int, int], *rows: Transaction) -> Piece:
    return replace(piece(*rows), is_snapshot=True, vclock=vclock)


NEW = (
    txn(0, register(1, A1), register(3, A3)),
    txn(0, define(512, "same"), index(512), put(512, 1)),
    txn(0, define(514, "changed"), index(514), define(515, "new"), index(515), put(515, 1)),
)


def test_it_settles_its_vclock_and_names_what_is_in_no_log() -> None:
    driver = Driver()
    driver.batch(piece(*BEGIN))
    before = dict(driver.state.replicasets[A].settled)
    later = piece(txn(1, put(512, 2)), txn(3, put(515, 2)), lsns={1: 70, 3: 9})
    plan = driver.batch(snapshot({1: 70, 2: 1, 3: 9}, *NEW), later)
    settlement = plan.settlements[A]
    order = Order(0, 0, 0)
    assert settlement.bridged == (Gap(1, before[1] + 1, 70, order), Gap(3, 1, 9, order))
    assert (settlement.gaps, settlement.hold) == ((), None)
    assert driver.state.replicasets[A].settled == {1: 71, 2: 1, 3: 10}
    assert driver.fates[A, 1, 71].table == "same"
    assert driver.fates[A, 3, 10].table == "new"


def test_what_it_defines_as_it_was_is_renewed_and_all_else_is_dropped() -> None:
    driver = Driver()
    driver.batch(piece(*BEGIN))
    plan = driver.batch(snapshot({1: 70, 2: 1, 3: 9}, *NEW))
    assert {(w.table, w.renewed) for w in plan.routes.wipes} == {
        ("same", True),
        ("gone", False),
        ("other", False),
    }
    assert {wipe.order for wipe in plan.routes.wipes} == {Order(0, 0, 0)}
    assert set(driver.state.replicasets[A].spaces) == {512, 514, 515}
    tables = {plan.routes.layouts[i].table for i in plan.routes.current.values()}
    assert tables == {"same", "changed", "new"}


def test_instances_that_it_lacks_were_expelled_and_new_ones_begin_behind_it() -> None:
    driver = Driver()
    driver.batch(piece(*BEGIN))
    driver.batch(snapshot({1: 70, 2: 1, 3: 9}, *NEW))
    one = driver.state.replicasets[A]
    assert one.cluster == {1: A1, 3: A3}
    assert one.maps[-1] == MapEntry(3, driver.state.global_ids[A3], 10)


def test_a_hole_behind_it_is_one_as_ever() -> None:
    driver = Driver()
    driver.batch(piece(*BEGIN))
    plan = driver.batch(
        snapshot({1: 70, 2: 1, 3: 9}, *NEW), piece(txn(1, put(), lsn=73), lsns={1: 70, 2: 1, 3: 9})
    )
    assert [(gap.first, gap.last) for gap in plan.settlements[A].gaps] == [(71, 72)]
    assert plan.settlements[A].hold is not None


def stretch(segment: int, vclock: dict[int, int], *, is_snapshot: bool = True) -> Stretch:
    return Stretch(segment, A, "a1", "f", A1, is_snapshot, vclock)


def test_the_rest_of_a_first_snapshot_is_no_generation() -> None:
    known = Replicaset(1, A, settled={1: 5})
    assert generation_of(known, [stretch(0, {0: 9, 1: 5})]) is None
    assert generation_of(None, [stretch(0, {1: 5})]) is None
    assert generation_of(known, [stretch(0, {1: 6}, is_snapshot=False), stretch(1, {1: 6})]) is None
    found = generation_of(known, [stretch(-1, {}, is_snapshot=False), stretch(0, {1: 6, 2: 3})])
    assert found == Generation(0, {1: 6, 2: 3}, (Gap(1, 6, 6, Order(0, 0, 0)), Gap(2, 1, 3, Order(0, 0, 0))))


def test_one_that_heals_may_be_behind_the_tables() -> None:
    known = Replicaset(1, A, settled={1: 9, 2: 3})
    behind = stretch(0, {1: 5, 2: 3})
    assert generation_of(known, [behind]) is None
    assert generation_of(known, [replace(behind, heals=True)]) == Generation(0, {1: 9, 2: 3}, ())


def test_it_stands_in_the_ids_of_the_replicaset() -> None:
    known = Replicaset(1, A, settled={1: 5, 40: 2}, ids={"a1": {2: 40}})
    found = generation_of(known, [stretch(0, {1: 5, 2: 4})])
    assert found is not None
    assert dict(found.settled) == {1: 5, 40: 4}
