"""What `_applier_map` and `_cluster` give back after a start: who is registered now, and whose ids differ."""

from dataclasses import asdict, replace

import pytest

from udfs.remap.cluster_replace import Cluster, Member
from warehouse.system_tables.applier_map import (
    MapRow,
    id_translations_by_source,
    instance_by_replica_id,
    missing_rows,
    rows_by_replicaset,
)
from warehouse.system_tables.vclock import VclockComponent, newest_components

A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
ONE, TWO, THREE = (Member(i, f"u{i}", i, 1, A, i) for i in (1, 2, 3))


def instances(*members: Member, entries: list[MapRow], replicaset: str = A) -> dict[int, str]:
    return instance_by_replica_id(entries, Cluster("counter", {m.key: m for m in members}), replicaset)


def test_only_what_the_table_lacks_is_added() -> None:
    known = [MapRow(7, 1, 2, 1, epoch=3), MapRow(7, 2, 3, 1, epoch=3), MapRow(7, 2, 3, 1, None, True, 4)]
    planned = [
        MapRow(7, 1, 2, 1, epoch=5),
        MapRow(7, 2, 3, 1, epoch=5),
        MapRow(7, 2, 3, 1, "a2", epoch=5),
        MapRow(7, 2, 4, 9, epoch=5),
    ]
    assert missing_rows(map(asdict, known), planned) == planned[1:]


def test_an_entry_that_was_added_twice_counts_once() -> None:
    row = {"replicaset_id": 1, "local_id": 2, "global_id": 3, "since_lsn": 4, "source": None}
    other = {**row, "since_lsn": 1, "global_id": 9}
    assert rows_by_replicaset([row, other, row], Cluster()) == {1: (MapRow(1, 2, 9, 1), MapRow(1, 2, 3, 4))}


@pytest.mark.parametrize(
    ("two", "three", "last"),
    [
        (replace(TWO, expelled=True, lsn=4), replace(THREE, local_id=2, lsn=5), 3),
        (replace(TWO, lsn=6), replace(THREE, local_id=2, lsn=5, expelled=True), 2),
        (replace(TWO, expelled=True, lsn=4), replace(THREE, local_id=2, lsn=6, expelled=True), 3),
        (replace(TWO, local_id=4, lsn=7), replace(THREE, local_id=2, lsn=6, expelled=True), 3),
    ],
    ids=["the second has it", "the first has it again", "nobody has it", "the first has another one"],
)
def test_the_last_instance_of_an_id_that_nobody_wrote_with_is_the_last_entry(
    two: Member, three: Member, last: int
) -> None:
    """Whatever the order of the rows, and of a set of them, which differs between two processes."""
    table = Cluster("counter", {member.key: member for member in (two, three)})
    for start in range(50):  # other lsns are other hashes
        rows = [asdict(MapRow(1, 2, number, start)) for number in (2, 3)]
        for order in (rows, rows[::-1]):
            (*_, entry) = rows_by_replicaset(order, table)[1]
            assert entry.global_id == last


def test_expelled_instances_are_not_registered() -> None:
    entries = [MapRow(1, 1, 1, 1), MapRow(1, 2, 2, 1)]
    assert instances(ONE, TWO, entries=entries) == {1: "u1", 2: "u2"}
    assert instances(ONE, replace(TWO, expelled=True), entries=entries) == {1: "u1"}


def test_an_id_is_its_last_instances() -> None:
    entries = [MapRow(1, 2, 2, 1), MapRow(1, 2, 3, 11)]
    assert instances(replace(TWO, expelled=True), replace(THREE, local_id=2), entries=entries) == {2: "u3"}


def test_an_instance_that_was_registered_anew_has_its_new_id_only() -> None:
    entries = [MapRow(1, 2, 2, 1), MapRow(1, 4, 2, 1)]
    assert instances(replace(TWO, local_id=4), entries=entries) == {4: "u2"}
    assert instances(replace(TWO, local_id=2), entries=entries) == {2: "u2"}


def test_an_instance_of_another_replicaset_is_registered_in_this_one_too() -> None:
    assert instances(replace(ONE, expelled=True), entries=[MapRow(2, 5, 1, 1)], replicaset=B) == {5: "u1"}


def test_a_source_with_other_ids_is_found_by_its_entries() -> None:
    common = [MapRow(1, 1, 1, 1), MapRow(1, 2, 2, 1), MapRow(1, 32, 3, 5)]
    own = [MapRow(1, 1, 1, 1, "b"), MapRow(1, 2, 2, 1, "b"), MapRow(1, 2, 3, 5, "c"), MapRow(1, 1, 2, 1, "d")]
    assert id_translations_by_source([*common, *own]) == {"c": {2: 32}, "d": {1: 2}}
    assert instances(ONE, TWO, THREE, entries=[*common, *own]) == {1: "u1", 2: "u2", 32: "u3"}


def test_the_component_of_the_highest_epoch_holds() -> None:
    rows = [VclockComponent(1, 2, 2, lsn, epoch).__dict__ for lsn, epoch in ((7, 3), (5, 1), (9, 2))]
    local = VclockComponent(1, 2, 0, 4, 1)
    assert newest_components([*rows, local.__dict__]) == [VclockComponent(1, 2, 2, 7, 3), local]
