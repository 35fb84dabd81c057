"""Members of one replicaset whose `_cluster` differ (document 001): two masters' logs, cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from jobs.batch.control import Registration
from jobs.batch.members import entries_of, views_of
from jobs.batch.state import MapEntry, Replicaset
from jobs.batch.summary import Order
from tables.applier_map import Entry, ids_of
from tests.jobs.batch import logs
from tests.jobs.batch.logs import (
    A1,
    A2,
    A,
    Row,
    Transaction,
    batch_of,
    expel,
    flagged,
    put,
    register,
    rows_of,
    settling,
    txn,
)
from tests.jobs.batch.pure import EMPTY, Driver, Fate, Piece
from udfs.cluster_replace import Allocation
from udfs.remap import own_ids

C, D = "cccccccc-0000-4000-8000-000000000003", "dddddddd-0000-4000-8000-000000000003"
MASTERS = (txn(1, register(1, A1)), txn(1, register(2, A2)), txn(1, put()), txn(2, put()))
OF_A1 = (*MASTERS, txn(1, register(3, C)), txn(3, put()), txn(3, put()), txn(1, put()))
OF_A2 = (*MASTERS, txn(2, register(3, D)), txn(3, put()), txn(3, put()), txn(3, put()), txn(2, put()))


def of(instance: str, rows: Sequence[Row], announced: dict[int, str] | None = None, **more: object) -> Piece:
    return replace(Piece(batch_of(rows), instance=instance, announced=announced), **more)  # type: ignore[arg-type]


def halves(transactions: Sequence[Transaction]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield a log cut between each two transactions."""
    for cut in range(len(transactions) + 1):
        first = rows_of(transactions[:cut])
        yield first, rows_of(transactions)[len(first) :]


def read_both(driver: Driver, first: Sequence[Row], second: Sequence[Row]) -> None:
    """Read A1's log, then A2's, which takes over from its beginning and comes in two batches."""
    driver.batch(of(A1, rows_of(OF_A1), {}))
    for rows in (first, second):
        if rows:
            driver.batch(of(A2, rows, {}))


def fate(driver: Driver, replica_id: int, lsn: int) -> Fate:
    return driver.fates[A, replica_id, lsn]


@pytest.mark.parametrize("allocation", ["counter", "preserve"])
def test_case_a_two_masters_give_one_id_to_two_replicas(allocation: Allocation) -> None:
    """Nothing is taken for the other one's copy, and each row is its own instance's, however A2's log is cut."""
    for first, second in halves(OF_A2):
        driver = Driver(cluster=replace(EMPTY, allocation=allocation))
        read_both(driver, first, second)
        one = driver.state.replicasets[A]
        assert driver.state.global_ids == {**EMPTY.global_ids, A1: 1, A2: 2, C: 3, D: 4}
        assert driver.cluster.members[D].local_id == 3
        assert one.cluster == {1: A1, 2: A2, 3: C, 32: D}
        assert one.ids == {A2[-2:]: {3: 32}}
        assert (one.settled[3], one.settled[32]) == (2, 3)
        assert [fate(driver, 3, lsn).global_id for lsn in (1, 2)] == [3, 3]
        assert [fate(driver, 32, lsn).global_id for lsn in (1, 2, 3)] == [4, 4, 4]
        assert fate(driver, 2, 3).global_id == 2
        assert driver.waiting == []


def test_the_map_of_a_source_that_differs_is_written_under_its_name() -> None:
    driver = Driver(cluster=replace(EMPTY, allocation="preserve"))
    driver.batch(of(A1, rows_of(OF_A1), {}))
    plan = driver.batch(of(A2, rows_of(OF_A2), {}))
    assert [entry for entry in plan.new_maps if entry.source is None] == [Entry(1, 32, 4, 1)]
    source = A2[-2:]
    own = [entry for entry in plan.new_maps if entry.source is not None]
    assert own == [Entry(1, 1, 1, 1, source), Entry(1, 2, 2, 1, source), Entry(1, 3, 4, 1, source)]
    one = driver.state.replicasets[A]
    common = [Entry(1, e.local_id, e.global_id, e.since_lsn) for e in one.maps]
    assert ids_of([*common, *own]) == one.ids, "what is loaded after a power-off is not what was"


def test_a_stand_in_that_begins_amid_its_log_tells_its_cluster_first() -> None:
    driver = Driver()
    driver.batch(of(A1, rows_of((*OF_A1, txn(2, put()))), {}))
    tail = rows_of((txn(2, put()), txn(3, put())), {1: 3, 2: 2, 3: 0})
    driver.batch(of(A2, tail, {1: A1, 2: A2, 3: D}, vclock={1: 3, 2: 2}))
    one = driver.state.replicasets[A]
    assert one.ids == {A2[-2:]: {3: 32}}
    assert fate(driver, 32, 1).global_id == driver.state.global_ids[D]


def test_rows_that_a_stand_in_has_left_behind_are_missing_not_taken_for_somebody_elses() -> None:
    driver = Driver()
    driver.batch(of(A1, rows_of(OF_A1), {}))
    tail = rows_of((txn(3, put()),), {3: 2})
    plan = driver.batch(of(A2, tail, {1: A1, 2: A2, 3: D}))
    (gap,) = plan.settlements[A].gaps
    assert (gap.replica_id, gap.first, gap.last) == (32, 1, 2)
    assert driver.waiting


def test_two_orders_of_one_cluster() -> None:
    """{1: uuid1, 2: uuid2} here and {1: uuid2, 2: uuid1} there: the map is {1: 2, 2: 1}."""
    driver = Driver()
    driver.batch(of(A1, rows_of((*MASTERS, txn(1, put()), txn(2, put()))), {}))
    assert driver.state.replicasets[A].settled == {1: 4, 2: 2}
    swapped = rows_of((txn(2, put()), txn(1, put()), txn(2, put()), txn(1, put())), {2: 3, 1: 1})
    driver.batch(of(A2, swapped, {1: A2, 2: A1}))
    one = driver.state.replicasets[A]
    assert one.ids == {A2[-2:]: {1: 2, 2: 1}}
    assert one.settled == {1: 5, 2: 3}
    assert fate(driver, 1, 5).global_id == driver.state.global_ids[A1]
    assert fate(driver, 2, 3).global_id == driver.state.global_ids[A2]
    assert [len(changes) for changes in driver.changes] == [2], "known uuids issued a change"


def test_back_to_the_first_member_its_ids_are_its_own() -> None:
    driver = Driver()
    read_both(driver, rows_of(OF_A2), [])
    more = rows_of((txn(3, put()), txn(1, put())), {1: 5, 3: 2})
    driver.batch(of(A1, more))
    assert fate(driver, 3, 3).global_id == driver.state.global_ids[C]
    assert driver.state.replicasets[A].settled[32] == 3


REUSED = (*OF_A1, txn(1, expel(3)), txn(1, register(3, D)), txn(3, put()))


def test_an_id_that_was_given_back_is_no_conflict() -> None:
    """Both members say the same, in the same order; the stand-in says it a second time."""
    for first, second in halves(REUSED):
        driver = Driver()
        driver.batch(of(A1, rows_of(REUSED), {}))
        for rows in (first, second):
            if rows:
                driver.batch(of(A2, rows, {}))
        one = driver.state.replicasets[A]
        assert (dict(one.ids), one.cluster) == ({}, {1: A1, 2: A2, 3: D})
        assert [fate(driver, 3, lsn).global_id for lsn in (1, 2, 3)] == [3, 3, 4]


def test_a_stand_in_that_is_behind_is_no_conflict() -> None:
    driver = Driver()
    driver.batch(of(A1, rows_of(REUSED), {}))
    behind = rows_of(REUSED[6:], {1: 4, 2: 1, 3: 1})
    driver.batch(of(A2, behind, {1: A1, 2: A2, 3: C}))
    assert dict(driver.state.replicasets[A].ids) == {}
    assert driver.state.replicasets[A].cluster == {1: A1, 2: A2, 3: D}


def test_who_settles_whose_transactions_is_translated() -> None:
    """CONFIRM and ROLLBACK name the owner by replica id: A2's 3 is D, whose rows C's log knows nothing of."""
    for kind, states in (("CONFIRM", ["committed", "committed"]), ("ROLLBACK", ["rolled back", "committed"])):
        log = (*MASTERS, txn(2, register(3, D)), txn(3, flagged(put())), txn(3, settling(kind, 3, 1)))
        for first, second in halves(log):
            driver = Driver()
            read_both(driver, first, second)
            assert [fate(driver, 32, lsn).state for lsn in (1, 2)] == states
            assert fate(driver, 3, 1).state == "committed"


def test_what_is_announced_makes_rows_count_that_nobody_registered() -> None:
    """A log that begins amid its life: `_cluster` stands in older files, which nobody reads."""
    rows = rows_of((txn(1, put()), txn(2, put())), {1: 70, 2: 30})
    driver = Driver()
    driver.batch(of(A1, rows, {1: A1, 2: A2}, vclock={1: 70, 2: 30}))
    assert driver.waiting == []
    assert driver.state.replicasets[A].maps == (MapEntry(1, 1, 71), MapEntry(2, 2, 31))


def test_an_equal_sum_needs_no_mapping() -> None:
    known = Replicaset(1, A, cluster={1: A1, 2: A2}, maps=(MapEntry(1, 1, 1), MapEntry(2, 2, 1)))
    stretch = of(A2, [], {2: A2, 1: A1}).stretch(0)
    views = views_of(known, [stretch], [], {1: A1, 2: A2})
    assert (views.announced, dict(views.ids)) == ((), {})
    told = views_of(known, [replace(stretch, announced={2: A2, 1: A1, 3: C})], [], {1: A1, 2: A2})
    assert told.announced == (Registration(Order(0, -1, 0), 3, C),)


def test_a_source_without_a_view_is_followed_as_it_is() -> None:
    known = Replicaset(1, A, cluster={3: C}, maps=(MapEntry(3, 1, 1),))
    rows = [Registration(Order(0, 10, 0), 3, None), Registration(Order(0, 20, 0), 3, D)]
    stretch = of(A2, []).stretch(0)
    assert dict(views_of(known, [stretch], rows, {1: C}).ids) == {}
    with_view = replace(stretch, announced={3: C})
    assert dict(views_of(known, [with_view], rows, {1: C}).ids) == {}
    apart = replace(stretch, announced={})
    assert dict(views_of(known, [apart], rows[1:], {1: C}).ids) == {A2[-2:]: {3: 32}}


def test_ids_of_a_source_and_back() -> None:
    ids = {1: 2, 2: 1, 3: 32}
    assert [own_ids(ids, meant) for meant in (1, 2, 3, 4, 32, 33)] == [[2], [1], [], [4], [3], []]
    known = Replicaset(1, A, maps=(MapEntry(3, 7, 1), MapEntry(32, 8, 5)), ids={"b": {3: 32}})
    assert entries_of(known, "b") == [MapEntry(3, 8, 5)]
    assert entries_of(known, "a") == [MapEntry(3, 7, 1), MapEntry(32, 8, 5)][:1]


def test_a_later_instance_of_an_id_in_conflict_goes_on_from_the_first_ones_lsn() -> None:
    """Both masters gave 3 back after its 2nd lsn, then each gave it anew, to C and to D: D begins with 3 too."""
    gone = (*MASTERS, txn(1, register(3, logs.A3)), txn(3, put()), txn(3, put()), txn(1, expel(3)))
    driver = Driver()
    driver.batch(of(A1, rows_of((*gone, txn(1, register(3, C)), txn(3, put()))), {}))
    driver.batch(of(A2, rows_of((*gone, txn(2, register(3, D)), txn(3, put()))), {}))
    assert driver.waiting == []
    assert fate(driver, 3, 3).global_id == driver.state.global_ids[C]
    assert fate(driver, 32, 3).global_id == driver.state.global_ids[D]
    assert (A, 32, 2) not in driver.fates, "what the first holder wrote came once more, as D's"


def test_an_id_whose_uuid_is_replaced_in_place_is_no_conflict() -> None:
    """3.x may give the id of a replica that is lost to one that is made anew under its name."""
    driver = Driver()
    driver.batch(of(A1, rows_of(OF_A1), {}))
    new = logs.change("UPDATE", 320, key=[3], ops=[["=", 1, D]])
    driver.batch(of(A1, rows_of((txn(1, new), txn(3, put())), {1: 5, 3: 2})))
    assert dict(driver.state.replicasets[A].ids) == {}
    assert fate(driver, 3, 3).global_id == driver.state.global_ids[D]
