"""`spaces.tables`: filtered rows, computed and excluded columns, types of one space, and DDL that waits for a yes."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from config.deployment import Config
from pipeline.batch import MakeDistributed
from pipeline.requests.snapshots import heal
from schemas.errors import UnsupportedError
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.udfs.messages import decimal_ext

FIELDS = (
    ("id", "unsigned"),
    ("region", "string"),
    ("cents", "integer"),
    ("price", "decimal"),
    ("tags", "any"),
)
EXACT = "_exact_orders"


def aggregated(folder: Path, settings: dict[str, Any], *nodes: Node, **more: Any) -> Deployment:
    return Deployment.aggregated(folder, *nodes, spaces={"tables": settings, **more})


def node_with_orders(folder: Path, name: str = "a1") -> Node:
    node = Node(folder, name).define(600, "orders", FIELDS)
    for number, (region, cents) in enumerate((("EU", 1250), ("US", 5), (None, 7), ("EU", None)), start=1):
        node.put(600, number, region, cents, decimal_ext("1.005"), {"a": number}, at=number)
    return node


def rows(deployment: Deployment, *columns: str, table: str = "orders") -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in columns) for row in deployment.rows(table)), key=repr)


def refusal_of(deployment: Deployment) -> str:
    """Return why the space is refused, according to `_schema`."""
    return "; ".join(str(row["state"]) for row in deployment.rows("_schema") if row["name"] == "orders")


SETTINGS = {
    "orders": {
        "where": "region = 'EU' AND _lsn > 0",
        "columns": {"amount": "cents / 100", "region": "lower(region)"},
        "exclude_columns": ["tags"],
    }
}


def test_readers_see_the_rows_and_columns_of_their_table(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    made = aggregated(tmp_path, SETTINGS, node)
    assert rows(made, "id", "region", "amount") == [(1, "eu", Decimal("12.5")), (4, "eu", None)]
    columns = set(made.rows("orders")[0])
    assert not {"tags", "_tuple", "_extra"} & columns
    assert {"cents", "_key", "_lsn"} <= columns
    assert len(made.rows(EXACT)) == 4
    assert {msgpack.unpackb(row["_tuple"])[0] for row in made.rows(EXACT)} == {1, 2, 3, 4}


def test_a_row_enters_and_leaves_the_filter(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    made = aggregated(tmp_path, SETTINGS, node)
    node.update(600, 2, ["=", 1, "EU"], at=10).update(600, 1, ["=", 1, "US"], at=11)
    node.update(600, 4, ["=", 2, 99], at=12).delete(600, 3, at=13).close()
    made.run()
    assert rows(made, "id", "amount") == [(2, Decimal("0.05")), (4, Decimal("0.99"))]
    assert rows(made, "id", table=EXACT) == [(1,), (2,), (4,)]


def test_settings_that_change_or_go_write_the_table_again(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    made = aggregated(tmp_path, SETTINGS, node)
    made.settings["spaces"] = {"tables": {"ord*": {"where": "cents < 10", "columns": {"twice": "cents * 2"}}}}
    made.run()
    assert rows(made, "id", "twice") == [(2, 10), (3, 14)]
    made.settings["spaces"] = {}
    made.run()
    assert rows(made, "id", "region") == [(1, "EU"), (2, "US"), (3, None), (4, "EU")]
    assert made.rows("orders")[0]["_tuple"] is not None
    assert made.rows(EXACT) == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"where": "colour = 'red'"}, "there is no column colour; the space has id, region"),
        ({"where": "cents + 1"}, "is no filter"),
        ({"columns": {"x": "region * 2"}}, r"\* does not take string, int64"),
        ({"where": "region > 5"}, "> does not take string, int64"),
    ],
)
def test_an_expression_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    node = node_with_orders(tmp_path)
    made = aggregated(tmp_path, {"orders": settings}, node)
    assert re.search(reason, refusal_of(made))
    assert made.rows("orders") == []


def test_an_expression_must_not_use_a_masked_field(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    made = aggregated(
        tmp_path, {"orders": {"columns": {"x": "cents + 1"}}}, node, masks={"orders": {"cents": "drop"}}
    )
    assert "uses cents, which is masked" in refusal_of(made)
    assert made.rows("orders") == []


def test_types_of_one_space(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    node.define(601, "others", FIELDS).put(601, 1, "x", 1, decimal_ext("1.005"), [1], at=9)
    made = aggregated(tmp_path, {"orders": {"nested": "variant", "decimal": "decimal(38,2)"}}, node)
    first = min(made.rows("orders"), key=lambda row: row["id"])
    assert (first["price"], first["_inexact"]) == (Decimal("1.00"), "price")
    assert set(first["tags"]) == {"metadata", "value"}
    (other,) = made.rows("others")
    assert (other["price"], other["tags"]) == (Decimal("1.005"), "[1]")


@pytest.mark.parametrize("how", ["truncate", "drop"])
def test_ddl_that_is_held_leaves_the_table_as_it_is(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Until somebody says yes: a heal makes the table equal to the server's snapshot. After a DROP it stays."""
    node = node_with_orders(tmp_path)
    made = aggregated(tmp_path, {"orders": {"on_ddl": "hold"}}, node)
    if how == "truncate":
        node.truncate(600, at=20).put(600, 9, "EU", 1, decimal_ext("1"), None, at=21)
    else:
        node.drop(600, at=20)
    node.close()
    made.run()
    assert rows(made, "id") == [(1,), (2,), (3,), (4,)]
    assert "its rows are held, the table stays as it is" in caplog.text
    if how == "truncate":
        assert "on_ddl is hold" in refusal_of(made)
    node.define(602, "further", FIELDS).put(602, 1, "x", 1, decimal_ext("1"), None, at=22).close()
    made.run()
    assert rows(made, "id") == [(1,), (2,), (3,), (4,)]
    assert rows(made, "id", table="further") == [(1,)]
    node.snapshot(
        {600: [[9, "EU", 1, None, None]] if how == "truncate" else [], 602: [[1, "x", 1, None, None]]}
    )
    with made.writer() as (warehouse, writer):
        heal(made.config(), warehouse, writer, "a1", "yes")
    assert rows(made, "id") == ([(9,)] if how == "truncate" else [(1,), (2,), (3,), (4,)])


def test_without_the_setting_ddl_empties_the_table(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    node.truncate(600, at=20).close()
    made = aggregated(tmp_path, {"other": {"on_ddl": "hold"}}, node)
    assert made.rows("orders") == []


def test_patterns_add_up(tmp_path: Path) -> None:
    tables = {
        "*": {"nested": "variant", "columns": {"a": "1"}},
        "or*": {"columns": {"b": "2"}, "where": "id > 1"},
        "orders": {"where": "id > 2"},
    }
    config = Config.model_validate(
        {"warehouse": "w", "checkpoint": "c", "sources": [{"name": "a", "path": str(tmp_path)}]}
        | {"spaces": {"tables": tables}}
    )
    found = config.spaces.table_settings("orders")
    assert (found.where, found.columns, found.nested) == ("id > 2", {"a": "1", "b": "2"}, "variant")
    assert config.spaces.table_settings("x").where is None


def test_ddl_that_is_refused_stops_the_job_until_the_setting_is_another_one(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    made = aggregated(tmp_path, {"orders": {"on_ddl": "refuse"}}, node)
    node.truncate(600, at=20).put(600, 9, "EU", 1, decimal_ext("1"), None, at=21).close()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"TRUNCATE.*lsn \d+\), and on_ddl is refuse"):
            made.run()
    assert rows(made, "id") == [(1,), (2,), (3,), (4,)]
    made.settings["spaces"] = {}
    made.run()
    assert rows(made, "id") == [(9,)]


def test_deletion_vectors_of_one_space(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    node.define(601, "others", FIELDS)
    for number in range(1, 4):
        node.put(601, number, "x", 1, decimal_ext("1"), None, at=number)
    made = aggregated(tmp_path, {"orders": {"deletion_vectors": "always"}}, node)
    node.update(600, 1, ["=", 2, 9], at=20).update(601, 1, ["=", 2, 9], at=20).close()
    made.run()
    with made.writer() as (warehouse, _):
        found = {name: len(warehouse.open_tables.log(name).vectors()) for name in ("orders", "others")}
    assert found == {"orders": 1, "others": 0}
    assert [row[1] for row in rows(made, "id", "cents")] == [9, 5, 7, None]


def files_of(made: Deployment, table: str) -> list[Path]:
    path = made.folder / "warehouse" / "aggregator.db" / table
    return [path / name for name in DeltaTable(str(path)).to_pyarrow_dataset().files]


def test_files_are_in_the_order_of_the_analysts_columns(
    tmp_path: Path, executor: MakeDistributed | None
) -> None:
    nodes = [Node(tmp_path, name).define(600, "orders", FIELDS) for name in ("a1", "b1")]
    for number in range(200):
        for node in nodes[: 1 + number % 2]:
            node.put(600, number, f"R{number % 7}", number * 37 % 200, decimal_ext("1"), [number], at=number)
    for node in nodes:
        node.close()
    names = [node.path.name for node in nodes]
    found = []
    for name, settings in (
        ("plain", {}),
        ("ordered", {"cluster_by": ["region", "cents"], "where": "id < 150"}),
    ):
        made = Deployment(
            tmp_path / name,
            {node.path.name: node.path for node in nodes},
            replicasets_of(*names),
            executor,
            spaces={"tables": {"orders": {"exclude_columns": ["tags"], **settings}}},
        )
        made.run()
        found.append(made)
    for number in range(0, 200, 3):
        nodes[0].update(600, number, ["=", 2, number % 11], at=300 + number).delete(600, number + 1, at=300)
    nodes[0].close()
    for made in found:
        made.run()
    plain, ordered = found
    for table in ("orders", "_exact_orders"):
        for file in files_of(ordered, table):
            places = pq.read_table(file, columns=["region", "cents", "_key"]).to_pylist()
            assert [*map(repr, places)] == [*map(repr, sorted(places, key=lambda row: (*row.values(),)))]
    assert rows(ordered, "id", "cents", table=EXACT) == rows(plain, "id", "cents", table=EXACT)
    assert rows(ordered, "id", "cents") == [row for row in rows(plain, "id", "cents") if row[0] < 150]


def test_a_column_to_cluster_by_that_is_not_there_refuses_the_space(tmp_path: Path) -> None:
    node = node_with_orders(tmp_path)
    made = aggregated(tmp_path, {"orders": {"cluster_by": ["regoin"]}}, node)
    assert "there is no column regoin to cluster by; the space has id, region" in refusal_of(made)
