"""Rows of `_cluster`: the cases of the documents on server ids and on a chain of aggregators, and invariants."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soaked import examples
from udfs.remap.cluster_replace import (
    FIRST_DAEMON_ID,
    OWN_REPLICASET_UUID,
    Allocation,
    Cluster,
    ClusterChange,
    IncomingMember,
    Member,
    apply_incoming,
    decide_row,
)

A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
OWN = "00000000-0000-4000-8000-0000000000ff"
ALLOCATIONS: tuple[Allocation, ...] = ("counter", "preserve")


def uuid(number: int) -> str:
    return str(UUID(int=number))


def having(allocation: Allocation, *ids: tuple[int, str]) -> Cluster:
    """Return a table with instances of replicaset A; their replica ids and global ids are equal."""
    rows = {one: Member(id_, one, id_, 1, A, lsn) for lsn, (id_, one) in enumerate(ids, start=1)}
    return Cluster(allocation, rows)


def taken(
    cluster: Cluster, rows: Iterable[IncomingMember]
) -> tuple[Cluster, list[tuple[int, int]], list[ClusterChange]]:
    """Apply rows one by one; return the table, the entries of the source's map, and the aggregator's changes."""
    entries, changes = [], []
    for row in rows:
        decision = decide_row(cluster, row)
        cluster = decision.cluster
        entries += [decision.map_entry] if decision.map_entry else []
        changes += [decision.change] if decision.change else []
    return cluster, entries, changes


def test_case_a_an_id_that_is_taken() -> None:
    """Document 001: {5, uuid6} against our {5, uuid5} is {6, uuid6} here, and {5: 6} in the source's map."""
    cluster = having("preserve", (5, uuid(5)))
    decision = decide_row(cluster, IncomingMember(uuid(6), 5, A))
    assert decision.map_entry == (5, 6)
    assert decision.change == ClusterChange(uuid(6), Member(6, uuid(6), 5, 1, A, lsn=2))
    assert decision.cluster.members[uuid(5)] == cluster.members[uuid(5)]


def test_case_b_an_id_that_the_aggregator_itself_has() -> None:
    """Document 001: the aggregator adds itself; its replicaset, unaware, assigns the same id to another instance."""
    rows = [IncomingMember(uuid(1), 1, A), IncomingMember(uuid(2), 2, A)]
    cluster, _ = apply_incoming(Cluster("preserve"), rows, OWN)
    assert cluster.global_ids == {uuid(1): 1, uuid(2): 2, OWN: 3}
    decision = decide_row(cluster, IncomingMember(uuid(3), 3, A))
    assert decision.map_entry == (3, 4)
    assert decision.cluster.own_member == cluster.own_member


def test_two_instances_with_swapped_ids() -> None:
    """Document 001: our {1, uuid1}, {2, uuid2} and a source's {1, uuid2}, {2, uuid1} make the map {1: 2, 2: 1}."""
    cluster = having("preserve", (1, uuid(1)), (2, uuid(2)))
    after, entries, changes = taken(cluster, [IncomingMember(uuid(2), 1, A), IncomingMember(uuid(1), 2, A)])
    assert (entries, changes, after) == ([(1, 2), (2, 1)], [], cluster)


def test_a_counter_gives_each_new_uuid_the_next_id() -> None:
    """Document 000: "update local mapping with incrementing global counter if new uuid was found"."""
    rows = [
        IncomingMember(uuid(5), 1, A),
        IncomingMember(uuid(6), 2, A),
        IncomingMember(uuid(7), 1, B),
        IncomingMember(uuid(6), 2, A),
    ]
    cluster, changes = apply_incoming(Cluster("counter"), rows, OWN)
    assert cluster.global_ids == {OWN: 1, uuid(5): 2, uuid(6): 3, uuid(7): 4}
    assert [change.row.lsn for change in changes] == [1, 2, 3, 4]
    assert {m.uuid: m.replicaset_id for m in cluster.members.values()} == {
        OWN: 0,
        uuid(5): 1,
        uuid(6): 1,
        uuid(7): 2,
    }


def test_a_known_uuid_issues_no_change_of_its_own() -> None:
    """Document 001: "To stop the infinite replication loop ..."."""
    cluster = having("counter", (1, uuid(1)))
    for row in (
        IncomingMember(uuid(1), 1, A),
        IncomingMember(uuid(1), 7, A),
        IncomingMember(uuid(1), None, A),
        IncomingMember(uuid(1), 1, B),
    ):
        assert decide_row(cluster, row).change is None
        assert apply_incoming(having("counter", (1, uuid(1)), (2, OWN)), [row], OWN)[1][:-1] == ()


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_an_expelled_instance_keeps_its_id(allocation: Allocation) -> None:
    cluster = having(allocation, (1, uuid(1)), (2, uuid(2)))
    gone = decide_row(cluster, IncomingMember(uuid(2), 2, A, expelled=True))
    assert gone.map_entry is None
    assert gone.change == ClusterChange(uuid(2), Member(2, uuid(2), 2, 1, A, lsn=3, expelled=True))
    reused = decide_row(gone.cluster, IncomingMember(uuid(3), 2, A))
    assert reused.map_entry == (2, 3)
    back = decide_row(reused.cluster, IncomingMember(uuid(2), 4, A))
    assert back.change == ClusterChange(uuid(2), Member(2, uuid(2), 4, 1, A, lsn=5))
    assert back.map_entry == (4, 2)


def test_an_instance_that_only_headers_named_gets_its_replica_id_when_it_is_registered() -> None:
    """An anonymous replica is registered: its row is completed, its global id stays."""
    cluster, _ = apply_incoming(Cluster("counter"), [IncomingMember(uuid(1), None, A)], OWN)
    decision = decide_row(cluster, IncomingMember(uuid(1), 4, A))
    assert decision.change == ClusterChange(uuid(1), Member(2, uuid(1), 4, 1, A, lsn=3))
    assert decision.map_entry == (4, 2)


def test_a_counter_continues_from_the_highest_id() -> None:
    assert decide_row(having("counter", (7, uuid(7))), IncomingMember(uuid(1), 1, A)).map_entry == (1, 8)
    assert (
        decide_row(having("preserve", (7, uuid(7))), IncomingMember(uuid(1), None, A)).cluster.global_ids[
            uuid(1)
        ]
        == 1
    )


def test_expelling_an_unknown_or_foreign_instance_changes_nothing() -> None:
    cluster = having("counter", (1, uuid(1)))
    gone = decide_row(cluster, IncomingMember(uuid(1), 1, A, expelled=True)).cluster
    for row in (IncomingMember(uuid(1), 1, A, expelled=True), IncomingMember(uuid(9), 1, A, expelled=True)):
        assert decide_row(gone, row).cluster == gone
    assert decide_row(cluster, IncomingMember(uuid(1), 1, B, expelled=True)).cluster == cluster
    assert decide_row(gone, IncomingMember(uuid(1), None, A)).cluster == gone, (
        "a file's header brings nobody back"
    )


def test_an_instance_stays_in_its_replicaset() -> None:
    """The other replicaset's map gets its global id; if the row moved, its own replicaset could lose its number."""
    cluster = having("counter", (1, uuid(1)))
    gone = decide_row(cluster, IncomingMember(uuid(1), 1, A, expelled=True)).cluster
    for state in (cluster, gone):
        decision = decide_row(state, IncomingMember(uuid(1), 3, B))
        assert (decision.map_entry, decision.change, decision.cluster) == ((3, 1), None, state)
        assert (
            apply_incoming(state, [IncomingMember(uuid(1), 3, B), IncomingMember(None, None, B)], OWN)[
                0
            ].replicaset_ids[B]
            == 2
        )


def test_the_first_instance_takes_over_its_replicasets_placeholder_row() -> None:
    cluster, changes = apply_incoming(having("counter", (1, OWN)), [IncomingMember(None, None, B)], OWN)
    assert cluster.replicaset_ids[B] == 2
    assert ClusterChange(B, Member(None, None, None, 2, B, lsn=2)) in changes
    assert apply_incoming(cluster, [IncomingMember(None, None, B)], OWN)[1] == ()
    filled, changes = apply_incoming(
        cluster, [IncomingMember(uuid(3), 1, B), IncomingMember(uuid(4), 2, B)], OWN
    )
    assert [(change.key, change.row.uuid) for change in changes] == [(B, uuid(3)), (uuid(4), uuid(4))]
    assert B not in filled.members
    assert {member.replicaset_id for member in filled.members.values()} == {1, 2}


def test_rows_that_undo_each_other_in_a_commit_change_nothing() -> None:
    """A batch is repeated after a kill, when `_cluster` already has its result."""
    rows = [
        IncomingMember(uuid(1), 1, A),
        IncomingMember(uuid(1), 1, A, expelled=True),
        IncomingMember(uuid(2), 1, A),
    ]
    first, changes = apply_incoming(Cluster("counter"), rows, OWN)
    assert [change.row.lsn for change in changes] == [1, 2, 3]
    assert apply_incoming(first, rows, OWN) == (first, ())


def test_the_lsns_of_one_commit_have_no_holes() -> None:
    rows = [
        IncomingMember(None, None, A),
        IncomingMember(uuid(1), 1, A),
        IncomingMember(uuid(1), 1, A, expelled=True),
    ]
    rows += [IncomingMember(uuid(1), 1, A), IncomingMember(uuid(2), 2, A)]
    _, changes = apply_incoming(Cluster("preserve"), rows, OWN)
    assert [change.row.lsn for change in changes] == [1, 2, 3]


def interleavings(
    one: Sequence[IncomingMember], other: Sequence[IncomingMember]
) -> Iterable[list[IncomingMember]]:
    """Yield every interleaving of two sources' rows, each source's in its order."""
    size = len(one) + len(other)
    for indices in combinations(range(size), len(one)):
        first, second = iter(one), iter(other)
        yield [next(first) if index in indices else next(second) for index in range(size)]


ROWS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.booleans()), max_size=4)


def rows_of(rows: Iterable[tuple[int, int, bool]], replicaset: str) -> list[IncomingMember]:
    return [IncomingMember(uuid(number), id_, replicaset, expelled=gone) for number, id_, gone in rows]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@given(one=ROWS, other=ROWS, apart=st.booleans())
@settings(max_examples=examples(50), deadline=None)
def test_all_interleavings_of_two_sources(
    allocation: Allocation, one: list[tuple[int, int, bool]], other: list[tuple[int, int, bool]], apart: bool
) -> None:
    """Sources of one replicaset or of two, which register the same and conflicting uuids and expel them."""
    first, second = rows_of(one, A), rows_of(other, B if apart else A)
    uuids = set()
    for rows in interleavings(first, second):
        start, _ = apply_incoming(Cluster(allocation), [], OWN)
        cluster, entries, changes = taken(start, rows)
        ids = [member.global_id or 0 for member in cluster.members.values()]
        assert len(set(ids)) == len(ids), "two instances have one global id"
        assert cluster.own_member == start.own_member
        assert [change.row.lsn for change in changes] == list(range(2, 2 + len(changes))), (
            "a hole in our lsns"
        )
        for _, global_id in entries:
            assert global_id in ids
        if allocation == "counter":
            assert sorted(ids) == list(range(1, len(ids) + 1)), "a hole in the ids"
        uuids.add(frozenset(cluster.members))
        alive = [row for row in rows if not row.expelled and not cluster.members[row.uuid or ""].expelled]
        assert taken(cluster, alive)[2] == [], "known uuids issued a change"
    expected = {OWN} | {row.uuid for row in [*first, *second] if not row.expelled}
    assert uuids == {frozenset(expected)}, "the set of uuids depends on the order"


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@given(one=ROWS, other=ROWS)
@settings(deadline=None)
def test_rows_in_one_commit_or_in_many_give_the_same_ids(
    allocation: Allocation, one: list[tuple[int, int, bool]], other: list[tuple[int, int, bool]]
) -> None:
    rows = [*rows_of(one, A), *rows_of(other, B)]
    start, _ = apply_incoming(Cluster(allocation), [], OWN)
    at_once, changes = apply_incoming(start, rows, OWN)
    one_by_one, _, _ = taken(start, rows)
    assert at_once.global_ids == one_by_one.global_ids
    assert at_once.replicaset_ids == one_by_one.replicaset_ids
    assert [change.row.lsn for change in changes] == list(range(2, 2 + len(changes)))
    assert apply_incoming(at_once, rows, OWN) == (at_once, ())


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@given(random=st.integers(0, 2**32).map(Random))
@settings(max_examples=2, deadline=None)
def test_64_replicasets_of_31_instances(allocation: Allocation, random: Random) -> None:
    """Every replica id of Tarantool (`VCLOCK_MAX` 32, 0 is local) in 64 replicasets, registered in any order."""
    sets = [uuid(1_000_000 + number) for number in range(64)]
    rows = [IncomingMember(uuid(100 * r + i), i, sets[r]) for r in range(64) for i in range(1, 32)]
    random.shuffle(rows)
    cluster, _ = apply_incoming(Cluster(allocation), rows, OWN)
    assert sorted(cluster.global_ids.values()) == list(range(1, 64 * 31 + 2))
    assert set(cluster.replicaset_ids.values()) == set(range(65))
    seen: set[int] = set()
    for replicaset in sets:
        members = [m for m in cluster.members.values() if m.replicaset_uuid == replicaset]
        ids = {m.global_id or 0 for m in members}
        assert len(ids) == 31
        assert seen.isdisjoint(ids), "two replicasets share a component"
        seen |= ids


def test_preserve_keeps_the_ids_of_a_lone_replicaset() -> None:
    rows = [IncomingMember(uuid(number), number, A) for number in range(31, 0, -1)]
    cluster, _ = apply_incoming(Cluster("preserve"), rows, OWN)
    assert cluster.global_ids == {OWN: 32} | {uuid(number): number for number in range(1, 32)}


def test_the_aggregators_own_row_belongs_to_no_replicaset() -> None:
    cluster, _ = apply_incoming(Cluster("counter"), [IncomingMember(uuid(1), 1, A)], OWN)
    assert cluster.own_member == Member(1, OWN, None, 0, OWN_REPLICASET_UUID, lsn=1)
    assert (
        apply_incoming(cluster, [IncomingMember(uuid(2), 1, B)], uuid(99))[0].own_member == cluster.own_member
    )


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_daemons_leave_the_ids_of_a_vclock_to_servers(allocation: Allocation) -> None:
    """Ten spools that begin before the 30 servers: with the aggregator, all ids of a vclock are those of servers."""
    daemons = [IncomingMember(uuid(1000 + k), None, A, is_daemon=True) for k in range(10)]
    servers = [IncomingMember(uuid(k), k, A) for k in range(1, 31)]
    cluster, _ = apply_incoming(Cluster(allocation), [*daemons[:5], *servers, *daemons[5:]], OWN)
    members = cluster.members.values()
    assert {m.global_id for m in members if not m.is_daemon} == set(range(1, 32))
    assert {m.global_id for m in members if m.is_daemon} == set(range(FIRST_DAEMON_ID, FIRST_DAEMON_ID + 10))
    again, changes = apply_incoming(cluster, daemons, OWN)
    assert (again, changes) == (cluster, ())
    further = decide_row(cluster, IncomingMember(uuid(500), 31, A)).cluster
    assert further.global_ids[uuid(500)] == 32
