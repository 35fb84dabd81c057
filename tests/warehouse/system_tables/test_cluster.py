"""`_cluster` as a table: what is written, under which property, and that writers who meet give no id twice."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from udfs.remap.cluster_replace import OWN_REPLICASET_UUID, Allocation, IncomingMember, Member, apply_incoming
from warehouse.delta.read import rows_of
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
NOW, LATER = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)


def uuid(number: int) -> str:
    return str(UUID(int=number))


def empty(spark: SparkSession, location: Path) -> Warehouse:
    warehouse = Warehouse(spark, str(location), "ids")
    warehouse.create(cluster.TABLE, SYSTEM_TABLES[cluster.TABLE])
    return warehouse


def rows(warehouse: Warehouse, *columns: str) -> list[tuple[Any, ...]]:
    found = rows_of(warehouse.opened(cluster.TABLE), columns)
    return [tuple(row[name] for name in columns) for row in found]


def test_the_table_keeps_what_was_decided(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = empty(spark, tmp_path)
    assert cluster.record_allocation(warehouse, "counter", NOW).own_member is not None
    instances = [IncomingMember(None, None, B), IncomingMember(uuid(1), 1, A), IncomingMember(uuid(2), 2, A)]
    first = cluster.allocate(warehouse, instances, NOW)
    assert cluster.load(warehouse) == first
    version = warehouse.version(cluster.TABLE)
    assert cluster.allocate(warehouse, instances, LATER) == first
    assert warehouse.version(cluster.TABLE) == version, "what is known was written once more"
    gone = [IncomingMember(uuid(2), 2, A, expelled=True), IncomingMember(uuid(3), 1, B)]
    assert cluster.allocate(warehouse, gone, LATER) == apply_incoming(first, gone, "")[0]
    columns = ("uuid", "global_id", "local_id", "replicaset_id", "lsn", "first_seen", "expelled_at")
    found = sorted(rows(warehouse, *columns), key=str)[:3]
    assert found == [
        (uuid(1), 2, 1, 2, 3, NOW, None),
        (uuid(2), 3, 2, 2, 5, NOW, LATER),
        # The row that stood for B alone is its first instance's now.
        (uuid(3), 4, 1, 1, 6, NOW, None),
    ]


def test_another_allocation_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = empty(spark, tmp_path)
    assert cluster.recorded_allocation(warehouse) is None
    started = cluster.record_allocation(warehouse, "preserve", NOW)
    assert (started.allocation, started.members) == ("preserve", {})
    assert warehouse.property(cluster.TABLE, cluster.ALLOCATION_PROPERTY) == "preserve"
    with pytest.raises(
        WarehouseError, match=r"'preserve', the configuration says 'counter'.*allocation to preserve"
    ):
        cluster.record_allocation(warehouse, "counter", NOW)
    assert cluster.record_allocation(warehouse, "preserve", NOW).allocation == "preserve"
    after = cluster.allocate(warehouse, [IncomingMember(uuid(5), 5, A), IncomingMember(uuid(6), 5, A)], NOW)
    own = after.own_member
    assert after.global_ids == {uuid(5): 5, uuid(6): 6, own.uuid if own else "": 1}


def test_an_unknown_allocation_is_named(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = empty(spark, tmp_path)
    name = f"delta.`{warehouse.path(cluster.TABLE)}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{cluster.ALLOCATION_PROPERTY}' = 'random')")
    with pytest.raises(WarehouseError, match="'random'"):
        cluster.load(warehouse)


def test_what_was_decided_on_a_state_that_is_gone_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = empty(spark, tmp_path)
    before = cluster.record_allocation(warehouse, "counter", NOW)
    stale = DeltaTable(f"{warehouse.root}/{cluster.TABLE}")
    held = rows_of(stale)
    _, changes = apply_incoming(before, [IncomingMember(uuid(1), 1, A)], "")
    after = cluster.allocate(warehouse, [IncomingMember(uuid(2), 2, A)], NOW)
    assert not cluster._commit_changes(warehouse.location, stale, held, changes, NOW)
    assert cluster.load(warehouse) == after


@pytest.mark.parametrize("allocation", ["counter", "preserve"])
def test_writers_that_meet_give_no_id_twice(
    spark: SparkSession, tmp_path: Path, allocation: Allocation
) -> None:
    """Threads of one process, each with a session; processes are in `test_cluster_processes`."""
    cluster.record_allocation(empty(spark, tmp_path), allocation, NOW)

    def announce(instances: Sequence[IncomingMember]) -> None:
        cluster.allocate(Warehouse(spark.newSession(), str(tmp_path), "ids"), instances, NOW)

    shared = [IncomingMember(uuid(900 + i), i, A) for i in range(1, 4)]
    work = [
        [*shared, *(IncomingMember(uuid(100 * w + i), i, uuid(10_000 + w)) for i in range(1, 6))]
        for w in range(1, 4)
    ]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(announce, work))
    found = rows(empty(spark, tmp_path), "global_id", "lsn", "uuid")
    assert sorted(row[0] for row in found) == list(range(1, 20))
    assert sorted(row[1] for row in found) == list(range(1, 20))
    uuids = {one.uuid for instances in work for one in instances}
    own = cluster.load(empty(spark, tmp_path)).own_member
    assert own == Member(own.global_id, own.uuid, None, 0, OWN_REPLICASET_UUID, own.lsn) if own else False
    assert {row[2] for row in found} == uuids | {own.uuid if own else None}
