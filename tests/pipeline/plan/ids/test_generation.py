"""A generation, decided: what it settles, what it ends, what it leaves alone."""

from dataclasses import replace

import pytest

from pipeline.plan.ids.generation import SnapshotGeneration, find_generation
from pipeline.plan.ids.settle import LsnGap
from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.state import ApplierMapEntry, ReplicasetState
from tests.pipeline.logs import A1, A2, A3, A, Transaction, batch, define, index, put, register, txn
from tests.pipeline.plan.planner import Piece, Planner

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
    planner = Planner()
    planner.batch(piece(*BEGIN))
    before = dict(planner.state.replicasets[A].settled)
    later = piece(txn(1, put(512, 2)), txn(3, put(515, 2)), lsns={1: 70, 3: 9})
    plan = planner.batch(snapshot({1: 70, 2: 1, 3: 9}, *NEW), later)
    settlement = plan.settlements[A]
    order = LogPosition(0, 0, 0)
    assert settlement.bridged_gaps == (LsnGap(1, before[1] + 1, 70, order), LsnGap(3, 1, 9, order))
    assert (settlement.gaps, settlement.waits_from) == ((), None)
    assert planner.state.replicasets[A].settled == {1: 71, 2: 1, 3: 10}
    assert planner.fates[A, 1, 71].table == "same"
    assert planner.fates[A, 3, 10].table == "new"


def test_what_it_defines_as_it_was_is_renewed_and_all_else_is_dropped() -> None:
    planner = Planner()
    planner.batch(piece(*BEGIN))
    plan = planner.batch(snapshot({1: 70, 2: 1, 3: 9}, *NEW))
    known = [one for one in plan.history.lineages if one.base_table is not None]
    position = LogPosition(0, 0, 0)
    assert {(one.base_table, one.is_renewed, one.truncations, one.ended) for one in known} == {
        ("same", True, 0, None),
        ("gone", False, 1, position),
        ("other", False, 1, position),
    }
    assert set(planner.state.replicasets[A].spaces) == {512, 514, 515}
    assert set(plan.history.tables.values()) == {"same", "changed", "new"}


def test_instances_that_it_lacks_were_expelled_and_new_ones_begin_behind_it() -> None:
    planner = Planner()
    planner.batch(piece(*BEGIN))
    planner.batch(snapshot({1: 70, 2: 1, 3: 9}, *NEW))
    one = planner.state.replicasets[A]
    assert one.cluster == {1: A1, 3: A3}
    assert one.applier_map[-1] == ApplierMapEntry(3, planner.state.global_ids[A3], 10)


def test_ids_that_changed_hands_behind_it_are_one_instances_each() -> None:
    """A2 is gone and A3 has its id; or A1 and A2 have each other's: no id is two instances' at once."""
    gone, swapped = {1: A1, 2: A3}, {1: A2, 2: A1}
    for holders in (gone, swapped):
        planner = Planner()
        planner.batch(piece(*BEGIN))
        rows = txn(0, *(register(i, uuid) for i, uuid in holders.items()))
        planner.batch(snapshot({1: 70, 2: 1}, rows))
        assert planner.state.replicasets[A].cluster == holders
        members = [one for one in planner.cluster.members.values() if one.local_id is not None]
        assert {one.local_id: one.uuid for one in members if not one.expelled} == holders
        assert {one.uuid for one in members if one.expelled} == {A1, A2} - {*holders.values()}


def test_a_hole_behind_it_is_one_as_ever() -> None:
    planner = Planner()
    planner.batch(piece(*BEGIN))
    plan = planner.batch(
        snapshot({1: 70, 2: 1, 3: 9}, *NEW), piece(txn(1, put(), lsn=73), lsns={1: 70, 2: 1, 3: 9})
    )
    assert [(gap.first_lsn, gap.last_lsn) for gap in plan.settlements[A].gaps] == [(71, 72)]
    assert plan.settlements[A].waits_from is not None


def part(segment: int, vclock: dict[int, int], *, is_snapshot: bool = True) -> LogSegment:
    return LogSegment(segment, A, "a1", "f", A1, is_snapshot, vclock)


def test_the_rest_of_a_first_snapshot_is_no_generation() -> None:
    known = ReplicasetState(1, A, settled={1: 5})
    assert find_generation(known, [part(0, {0: 9, 1: 5})]) is None
    assert find_generation(None, [part(0, {1: 5})]) is None
    assert find_generation(known, [part(0, {1: 6}, is_snapshot=False), part(1, {1: 6})]) is None
    waiting = replace(part(-1, {}, is_snapshot=False), has_waited=True)
    found = find_generation(known, [waiting, part(0, {1: 6, 2: 3})])
    assert found == SnapshotGeneration(
        0, {1: 6, 2: 3}, (LsnGap(1, 6, 6, LogPosition(0, 0, 0)), LsnGap(2, 1, 3, LogPosition(0, 0, 0)))
    )


def test_one_that_heals_may_be_behind_the_tables() -> None:
    known = ReplicasetState(1, A, settled={1: 9, 2: 3})
    behind = part(0, {1: 5, 2: 3})
    assert find_generation(known, [behind]) is None
    assert find_generation(known, [replace(behind, is_healing=True)]) == SnapshotGeneration(
        0, {1: 9, 2: 3}, ()
    )


def test_it_stands_in_the_ids_of_the_replicaset() -> None:
    known = ReplicasetState(1, A, settled={1: 5, 40: 2}, id_translations={"a1": {2: 40}})
    found = find_generation(known, [part(0, {1: 5, 2: 4})])
    assert found is not None
    assert dict(found.settled_vclock) == {1: 5, 40: 4}


@pytest.mark.parametrize("lsn", [12, 70])
def test_a_loss_ends_where_gaps_say_so(lsn: int) -> None:
    """A start knows of a generation from the rows that it bridges, so one without such rows ends no loss."""
    planner = Planner(on_gap="skip")
    planner.batch(piece(*BEGIN), piece(txn(1, put(512, 2), lsn=12)))
    assert planner.state.replicasets[A].settled == {1: 12, 2: 1}
    assert planner.state.replicasets[A].has_loss
    planner.batch(replace(snapshot({1: lsn, 2: 1}, *NEW), is_generation=True))
    assert planner.state.replicasets[A].has_loss == (lsn == 12)
