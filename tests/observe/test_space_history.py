"""The history of spaces: each change with its time; current versions equal the servers' tuples."""

from datetime import datetime
from pathlib import Path

import msgpack
import pytest
from pyspark.sql import SparkSession

from observe.space_history import register_history, space_history
from schemas.errors import UnsupportedError, WarehouseError
from tests.jobs.deployment import Deployment, folded
from tests.jobs.written import BEGAN, Node
from tests.truth import own
from warehouse.warehouse import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.soak]

USERS = 600
SPACES = ["accounts", "counters", "to_trunc", "again", "my-space"]


def warehouse_of(spark: SparkSession, deployment: Deployment) -> Warehouse:
    return Warehouse(spark, str(deployment.folder / "warehouse"), deployment.database)


def second(at: int) -> datetime:
    return datetime.fromtimestamp(BEGAN + at)  # as Spark hands moments to Python: in the machine's zone


def test_each_version_is_valid_until_the_next(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(USERS, "users")
    node.put(USERS, 1, "first", 5, 1, at=10).put(USERS, 2, "other", 5, 1, at=11)
    deployment = Deployment.aggregated(tmp_path, node)
    # In another batch, which knows the tuples before from the tables; the history reads the log alone.
    node.update(USERS, 1, ["+", 2, 2], at=20).delete(USERS, 2, at=21)
    node.truncate(USERS, at=30).put(USERS, 1, "again", 0, 1, at=40).close()
    deployment.run()
    warehouse = warehouse_of(spark, deployment)
    assert register_history(warehouse, deployment.config(), "users") == "users_history"
    columns = "row.name, row.value, state, valid_from, valid_to, is_current"
    rows = spark.sql(f"SELECT {columns} FROM users_history ORDER BY key, valid_from").collect()
    assert [tuple(row) for row in rows] == [
        ("first", 5, "present", second(10), second(20), False),
        ("first", 7, "present", second(20), second(30), False),
        (None, None, "deleted", second(30), second(40), False),
        ("again", 0, "present", second(40), None, True),
        ("other", 5, "present", second(11), second(21), False),
        (None, None, "deleted", second(21), None, False),
    ]
    with pytest.raises(WarehouseError, match="no space went to this table"):
        space_history(warehouse, deployment.config(), "nothing")


def test_current_versions_equal_each_replicasets_tuples(spark: SparkSession, tmp_path: Path) -> None:
    recording = own()
    sources = {name: recording.directory(name) for name in ("a1", "b1")}
    deployment = Deployment(tmp_path, sources, spaces={"include": SPACES})
    deployment.run()
    truths = {one.replicaset_uuid: one for one in (folded(recording, "a1"), folded(recording, "b1"))}
    ids = {row["replicaset_id"]: row["replicaset_uuid"] for row in deployment.rows("_cluster")}
    config, warehouse = deployment.config(), warehouse_of(spark, deployment)
    for space in SPACES:
        rows = space_history(warehouse, config, config.spaces.table(space)).collect()
        assert [row.reason for row in rows if row.state == "unfit"] == []
        for replicaset_id, uuid in ids.items():
            if uuid in truths:
                now = sorted(
                    bytes(r.tuple) for r in rows if r.is_current and r.replicaset_id == replicaset_id
                )
                known = truths[uuid].by_name()
                assert now == (sorted(known[space].tuples()) if space in known else []), space
        if space == "accounts":
            assert len(rows) > len([row for row in rows if row.is_current])


def test_an_operation_is_applied_by_its_servers_rules(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(USERS, "users").put(USERS, 1, "first", 0)
    for second_, version in enumerate(("2.6.0", "2.11.9", "3.9.0")):
        node.version = version
        node.upsert(USERS, [1, "x", 0], ["+", 2, 1], ["+", 2, 1], at=second_).close()
        node.upsert(USERS, [1, "x", 0], ["=", 4, version], at=second_).close()
    deployment = Deployment.aggregated(tmp_path, node)
    rows = (
        space_history(warehouse_of(spark, deployment), deployment.config(), "users").orderBy("lsn").collect()
    )
    found = [msgpack.unpackb(bytes(row.tuple)) for row in rows]
    assert found == [
        [1, "first", 0],
        [1, "first", 1],
        [1, "first", 1],
        [1, "first", 2],
        [1, "first", 2, None, "2.11.9"],
        [1, "first", 4, None, "2.11.9"],
        [1, "first", 4, None, "3.9.0"],
    ]
    assert [row.row.value for row in rows] == [0, 1, 1, 2, 2, 4, 4]


def test_a_delete_range_ends_the_versions_in_it(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(USERS, "users")
    for key in (1, 2, 3):
        node.put(USERS, key, "first", 5, 1, at=10)
    node.delete_range(USERS, [2], [3], at=20).put(USERS, 2, "again", 0, 1, at=30)
    node.delete_range(USERS, [], [2], at=40).delete_range(USERS, [3], [], at=50)
    deployment = Deployment.aggregated(tmp_path, node)
    register_history(warehouse_of(spark, deployment), deployment.config(), "users")
    columns = "row.id, state, valid_from, valid_to, is_current"
    rows = spark.sql(f"SELECT {columns} FROM users_history ORDER BY key, valid_from").collect()
    assert [tuple(row) for row in rows] == [
        (1, "present", second(10), second(40), False),
        (None, "deleted", second(40), None, False),
        (2, "present", second(10), second(20), False),
        (None, "deleted", second(20), second(30), False),
        (2, "present", second(30), None, True),
        (3, "present", second(10), second(50), False),
        (None, "deleted", second(50), None, False),
    ]


def test_truncations_and_drops_without_number_cost_no_plan(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(USERS, "users")
    for second_ in range(100):
        node.put(USERS, 1, "name", second_, 1, at=3 * second_)
        node.put(USERS, 2, "name", second_, 1, at=3 * second_ + 1)
        if second_ % 2:
            node.truncate(USERS, at=3 * second_ + 2).truncate(USERS, at=3 * second_ + 2)
    deployment = Deployment.aggregated(tmp_path, node)
    versions = space_history(warehouse_of(spark, deployment), deployment.config(), "users")
    rows = versions.orderBy("key", "lsn").select("state", "valid_from", "is_current").collect()
    of_a_key = [
        (state, second(3 * second_ + offset), False)
        for second_ in range(100)
        for state, offset in (("present", 0), *([("deleted", 2)] if second_ % 2 else []))
    ]
    assert [tuple(row) for row in rows][:150] == of_a_key
    assert len(rows) == 300
    plan = str(versions._jdf.queryExecution().optimizedPlan())
    assert "Union" not in plan


def test_the_history_of_a_blocked_space_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(USERS, "users").put(USERS, 1, "first", 5, 1, at=10)
    node.row(19, USERS, {}).put(USERS, 1, "second", 5, 1, at=10)
    deployment = Deployment.aggregated(tmp_path, node)
    with pytest.raises(UnsupportedError, match="TYPE_19"):
        space_history(warehouse_of(spark, deployment), deployment.config(), "users")
