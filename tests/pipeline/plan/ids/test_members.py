"""Members of one replicaset whose `_cluster` differ (document 001): two masters' logs, cut anywhere."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pipeline.plan.ids.members import assign_source_ids, map_entries_of_source
from pipeline.plan.rows.position import LogPosition
from pipeline.plan.spaces.system_rows import ReplicaIdChange
from pipeline.state import ApplierMapEntry, ReplicasetState
from tests.pipeline import logs
from tests.pipeline.logs import (
    A1,
    A2,
    A,
    Row,
    Transaction,
    batch_of,
    expel,
    put,
    register,
    rows_of,
    settling_row,
    synchronous_row,
    txn,
)
from tests.pipeline.plan.planner import EMPTY, Fate, Piece, Planner
from udfs.remap.cluster_replace import Allocation
from udfs.remap.replica_ids import replica_id_in_source
from warehouse.system_tables.applier_map import MapRow, id_translations_by_source

C, D = "cccccccc-0000-4000-8000-000000000003", "dddddddd-0000-4000-8000-000000000003"
MASTERS = (txn(1, register(1, A1)), txn(1, register(2, A2)), txn(1, put()), txn(2, put()))
OF_A1 = (*MASTERS, txn(1, register(3, C)), txn(3, put()), txn(3, put()), txn(1, put()))
OF_A2 = (*MASTERS, txn(2, register(3, D)), txn(3, put()), txn(3, put()), txn(3, put()), txn(2, put()))


def of(instance: str, rows: Sequence[Row], announced: dict[int, str] | None = None, **more: object) -> Piece:
    return replace(Piece(batch_of(rows), instance=instance, members=announced), **more)  # type: ignore[arg-type]


def halves(transactions: Sequence[Transaction]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield a log cut between each two transactions."""
    for cut in range(len(transactions) + 1):
        first = rows_of(transactions[:cut])
        yield first, rows_of(transactions)[len(first) :]


def read_both(planner: Planner, first: Sequence[Row], second: Sequence[Row]) -> None:
    """Read A1's log, then A2's, which takes over from its beginning and comes in two batches."""
    planner.batch(of(A1, rows_of(OF_A1), {}))
    for rows in (first, second):
        if rows:
            planner.batch(of(A2, rows, {}))


def fate(planner: Planner, replica_id: int, lsn: int) -> Fate:
    return planner.fates[A, replica_id, lsn]


@pytest.mark.parametrize("allocation", ["counter", "preserve"])
def test_case_a_two_masters_give_one_id_to_two_replicas(allocation: Allocation) -> None:
    """Nothing is taken for the other one's copy, and each row is its own instance's, however A2's log is cut."""
    for first, second in halves(OF_A2):
        planner = Planner(cluster=replace(EMPTY, allocation=allocation))
        read_both(planner, first, second)
        one = planner.state.replicasets[A]
        assert planner.state.global_ids == {**EMPTY.global_ids, A1: 1, A2: 2, C: 3, D: 4}
        assert planner.cluster.members[D].local_id == 3
        assert one.cluster == {1: A1, 2: A2, 3: C, 32: D}
        assert one.id_translations == {A2[-2:]: {3: 32}}
        assert (one.settled[3], one.settled[32]) == (2, 3)
        assert [fate(planner, 3, lsn).global_id for lsn in (1, 2)] == [3, 3]
        assert [fate(planner, 32, lsn).global_id for lsn in (1, 2, 3)] == [4, 4, 4]
        assert fate(planner, 2, 3).global_id == 2
        assert planner.waiting == []


def test_the_map_of_a_source_that_differs_is_written_under_its_name() -> None:
    planner = Planner(cluster=replace(EMPTY, allocation="preserve"))
    planner.batch(of(A1, rows_of(OF_A1), {}))
    plan = planner.batch(of(A2, rows_of(OF_A2), {}))
    assert [entry for entry in plan.new_map_rows if entry.source is None] == [MapRow(1, 32, 4, 1)]
    source = A2[-2:]
    own = [entry for entry in plan.new_map_rows if entry.source is not None]
    assert own == [MapRow(1, 1, 1, 1, source), MapRow(1, 2, 2, 1, source), MapRow(1, 3, 4, 1, source)]
    one = planner.state.replicasets[A]
    common = [MapRow(1, e.local_id, e.global_id, e.since_lsn) for e in one.applier_map]
    found = id_translations_by_source([*common, *own])
    assert found == one.id_translations, "what is loaded after a power-off is not what was"


def test_a_stand_in_that_begins_amid_its_log_tells_its_cluster_first() -> None:
    planner = Planner()
    planner.batch(of(A1, rows_of((*OF_A1, txn(2, put()))), {}))
    tail = rows_of((txn(2, put()), txn(3, put())), {1: 3, 2: 2, 3: 0})
    planner.batch(of(A2, tail, {1: A1, 2: A2, 3: D}, vclock={1: 3, 2: 2}))
    one = planner.state.replicasets[A]
    assert one.id_translations == {A2[-2:]: {3: 32}}
    assert fate(planner, 32, 1).global_id == planner.state.global_ids[D]


def test_rows_that_a_stand_in_has_left_behind_are_missing_not_taken_for_somebody_elses() -> None:
    planner = Planner()
    planner.batch(of(A1, rows_of(OF_A1), {}))
    tail = rows_of((txn(3, put()),), {3: 2})
    plan = planner.batch(of(A2, tail, {1: A1, 2: A2, 3: D}))
    (gap,) = plan.settlements[A].gaps
    assert (gap.replica_id, gap.first_lsn, gap.last_lsn) == (32, 1, 2)
    assert planner.waiting


def test_two_orders_of_one_cluster() -> None:
    """{1: uuid1, 2: uuid2} here and {1: uuid2, 2: uuid1} there: the map is {1: 2, 2: 1}."""
    planner = Planner()
    planner.batch(of(A1, rows_of((*MASTERS, txn(1, put()), txn(2, put()))), {}))
    assert planner.state.replicasets[A].settled == {1: 4, 2: 2}
    swapped = rows_of((txn(2, put()), txn(1, put()), txn(2, put()), txn(1, put())), {2: 3, 1: 1})
    planner.batch(of(A2, swapped, {1: A2, 2: A1}))
    one = planner.state.replicasets[A]
    assert one.id_translations == {A2[-2:]: {1: 2, 2: 1}}
    assert one.settled == {1: 5, 2: 3}
    assert fate(planner, 1, 5).global_id == planner.state.global_ids[A1]
    assert fate(planner, 2, 3).global_id == planner.state.global_ids[A2]
    assert [len(changes) for changes in planner.changes] == [2], "known uuids issued a change"


def test_back_to_the_first_member_its_ids_are_its_own() -> None:
    planner = Planner()
    read_both(planner, rows_of(OF_A2), [])
    more = rows_of((txn(3, put()), txn(1, put())), {1: 5, 3: 2})
    planner.batch(of(A1, more))
    assert fate(planner, 3, 3).global_id == planner.state.global_ids[C]
    assert planner.state.replicasets[A].settled[32] == 3


REUSED = (*OF_A1, txn(1, expel(3)), txn(1, register(3, D)), txn(3, put()))


def test_an_id_that_was_given_back_is_no_conflict() -> None:
    """Both members say the same, in the same order; the stand-in says it a second time."""
    for first, second in halves(REUSED):
        planner = Planner()
        planner.batch(of(A1, rows_of(REUSED), {}))
        for rows in (first, second):
            if rows:
                planner.batch(of(A2, rows, {}))
        one = planner.state.replicasets[A]
        assert (dict(one.id_translations), one.cluster) == ({}, {1: A1, 2: A2, 3: D})
        assert [fate(planner, 3, lsn).global_id for lsn in (1, 2, 3)] == [3, 3, 4]


def test_a_stand_in_that_is_behind_is_no_conflict() -> None:
    planner = Planner()
    planner.batch(of(A1, rows_of(REUSED), {}))
    behind = rows_of(REUSED[6:], {1: 4, 2: 1, 3: 1})
    planner.batch(of(A2, behind, {1: A1, 2: A2, 3: C}))
    assert dict(planner.state.replicasets[A].id_translations) == {}
    assert planner.state.replicasets[A].cluster == {1: A1, 2: A2, 3: D}


def test_who_settles_whose_transactions_is_translated() -> None:
    """CONFIRM and ROLLBACK name the owner by replica id: A2's 3 is D, whose rows C's log knows nothing of."""
    for kind, states in (("CONFIRM", ["committed", "committed"]), ("ROLLBACK", ["rolled back", "committed"])):
        log = (
            *MASTERS,
            txn(2, register(3, D)),
            txn(3, synchronous_row(put())),
            txn(3, settling_row(kind, 3, 1)),
        )
        for first, second in halves(log):
            planner = Planner()
            read_both(planner, first, second)
            assert [fate(planner, 32, lsn).state for lsn in (1, 2)] == states
            assert fate(planner, 3, 1).state == "committed"


def test_what_is_announced_makes_rows_count_that_nobody_registered() -> None:
    """A log that begins amid its life: `_cluster` stands in older files, which nobody reads."""
    rows = rows_of((txn(1, put()), txn(2, put())), {1: 70, 2: 30})
    planner = Planner()
    planner.batch(of(A1, rows, {1: A1, 2: A2}, vclock={1: 70, 2: 30}))
    assert planner.waiting == []
    assert planner.state.replicasets[A].applier_map == (ApplierMapEntry(1, 1, 71), ApplierMapEntry(2, 2, 31))


def test_an_equal_sum_needs_no_mapping() -> None:
    known = ReplicasetState(
        1, A, cluster={1: A1, 2: A2}, applier_map=(ApplierMapEntry(1, 1, 1), ApplierMapEntry(2, 2, 1))
    )
    segment = of(A2, [], {2: A2, 1: A1}).segment(0)
    views = assign_source_ids(known, [segment], [], {1: A1, 2: A2})
    assert (views.registrations, dict(views.translations)) == ((), {})
    source_ids = assign_source_ids(
        known, [replace(segment, members={2: A2, 1: A1, 3: C})], [], {1: A1, 2: A2}
    )
    assert source_ids.registrations == (ReplicaIdChange(LogPosition(0, -1, 0), 3, C),)


def test_a_source_without_a_view_is_followed_as_it_is() -> None:
    known = ReplicasetState(1, A, cluster={3: C}, applier_map=(ApplierMapEntry(3, 1, 1),))
    rows = [ReplicaIdChange(LogPosition(0, 10, 0), 3, None), ReplicaIdChange(LogPosition(0, 20, 0), 3, D)]
    segment = of(A2, []).segment(0)
    assert dict(assign_source_ids(known, [segment], rows, {1: C}).translations) == {}
    with_view = replace(segment, members={3: C})
    assert dict(assign_source_ids(known, [with_view], rows, {1: C}).translations) == {}
    apart = replace(segment, members={})
    assert dict(assign_source_ids(known, [apart], rows[1:], {1: C}).translations) == {A2[-2:]: {3: 32}}


def test_ids_of_a_source_and_back() -> None:
    ids = {1: 2, 2: 1, 3: 32}
    assert [replica_id_in_source(ids, meant) for meant in (1, 2, 3, 4, 32, 33)] == [2, 1, None, 4, 3, None]
    known = ReplicasetState(
        1,
        A,
        applier_map=(ApplierMapEntry(3, 7, 1), ApplierMapEntry(32, 8, 5)),
        id_translations={"b": {3: 32}},
    )
    assert map_entries_of_source(known, "b") == [ApplierMapEntry(3, 8, 5)]
    assert map_entries_of_source(known, "a") == [ApplierMapEntry(3, 7, 1), ApplierMapEntry(32, 8, 5)][:1]


def test_a_later_instance_of_an_id_in_conflict_goes_on_from_the_first_ones_lsn() -> None:
    """Both masters gave 3 back after its 2nd lsn, then each gave it again, to C and to D: D begins with 3 too."""
    gone = (*MASTERS, txn(1, register(3, logs.A3)), txn(3, put()), txn(3, put()), txn(1, expel(3)))
    planner = Planner()
    planner.batch(of(A1, rows_of((*gone, txn(1, register(3, C)), txn(3, put()))), {}))
    planner.batch(of(A2, rows_of((*gone, txn(2, register(3, D)), txn(3, put()))), {}))
    assert planner.waiting == []
    assert fate(planner, 3, 3).global_id == planner.state.global_ids[C]
    assert fate(planner, 32, 3).global_id == planner.state.global_ids[D]
    assert (A, 32, 2) not in planner.fates, "what the first holder wrote came once more, as D's"


def test_an_id_whose_uuid_is_replaced_in_place_is_no_conflict() -> None:
    """3.x may give the id of a replica that is lost to one that is made again under its name."""
    planner = Planner()
    planner.batch(of(A1, rows_of(OF_A1), {}))
    new = logs.change("UPDATE", 320, key=[3], ops=[["=", 1, D]])
    planner.batch(of(A1, rows_of((txn(1, new), txn(3, put())), {1: 5, 3: 2})))
    assert dict(planner.state.replicasets[A].id_translations) == {}
    assert fate(planner, 3, 3).global_id == planner.state.global_ids[D]
    held = {one.uuid: one.expelled for one in planner.cluster.members.values() if one.local_id == 3}
    assert held == {C: True, D: False}


def test_an_instance_whose_id_is_replaced_in_place_may_come_back() -> None:
    planner = Planner()
    planner.batch(of(A1, rows_of(OF_A1), {}))
    new, old = (logs.change("UPDATE", 320, key=[3], ops=[["=", 1, uuid]]) for uuid in (D, C))
    planner.batch(of(A1, rows_of((txn(1, new), txn(3, put()), txn(1, old), txn(3, put())), {1: 5, 3: 2})))
    held = {one.uuid: one.expelled for one in planner.cluster.members.values() if one.local_id == 3}
    assert held == {C: False, D: True}
    assert fate(planner, 3, 4).global_id == planner.state.global_ids[C]
