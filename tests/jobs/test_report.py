"""The report over a small warehouse: each query with its result, and what to do where there is nothing yet."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.config import Config
from jobs.report import report
from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from tables.warehouse import Warehouse

pytestmark = pytest.mark.spark

ASKED = ("_cluster", "_changelog", "_pending", "_gaps", "_quarantine", "_conflicts", "_epochs")
LATE = datetime(2024, 5, 2, tzinfo=UTC)
EARLY = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def config(spark: SparkSession, tmp_path: Path) -> Iterator[Config]:
    made = Config.model_validate(
        {
            "warehouse": str(tmp_path / "warehouse"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "database": "reported",
            "sources": [{"name": "none", "path": str(tmp_path)}],
        }
    )
    yield made
    spark.sql("DROP DATABASE IF EXISTS reported CASCADE")


@pytest.fixture
def warehouse(spark: SparkSession, config: Config) -> Warehouse:
    made = Warehouse(spark, config.warehouse, config.database)
    for table in ASKED:
        made.create(table, SYSTEM_TABLES[table])
    made.append("_cluster", made.rows("_cluster", [{"global_id": 7, "uuid": "the-uuid", "local_id": 1}]))
    made.append("_changelog", made.rows("_changelog", [{"replicaset_id": 3, "state": "rolled_back"}]))
    return made


def conflict(warehouse: Warehouse, table: str, key: bytes) -> None:
    row = {"space": table, "key": key, "policy": "last_write_wins", "winner_replicaset_id": 41}
    times = {"winner_timestamp": LATE, "loser_timestamp": EARLY, "loser_replicaset_id": 42}
    warehouse.append("_conflicts", warehouse.rows("_conflicts", [{**row, **times}]))


def test_each_query_is_shown_with_its_result(
    spark: SparkSession, config: Config, warehouse: Warehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("quiet", "busy"):
        rows = spark.sql(
            f"SELECT 5 AS id, '{table}' AS name, X'01' AS _key, 41 AS _replicaset_id, 7L AS _global_id, 9L AS _lsn, "
            "TIMESTAMP '2024-05-02' AS _timestamp, X'92' AS _tuple "
            "UNION ALL SELECT 6, 'alone', X'02', 41, 7L, 10L, TIMESTAMP '2024-05-02', X'92'"
        )
        warehouse.append(table, rows)
    conflict(warehouse, "quiet", b"\1")
    conflict(warehouse, "busy", b"\1")
    conflict(warehouse, "busy", b"\1")
    report(config, argparse.Namespace())
    shown = capsys.readouterr().out
    assert "FROM reported._cluster ORDER BY global_id;" in shown
    assert "|        7|the-uuid|       1|" in shown
    assert "|rolled_back|" in shown
    assert "|  5|busy|            41|         7|   9|2024-05-02 00:00:00|" in shown
    assert "alone" not in shown
    assert "|  5|quiet|" not in shown
    # Two conflicts of one space against one of the other, drawn to scale.
    assert f"|{'#' * 20}|" in shown
    assert f"|{'#' * 10}|" in shown.replace(" ", "")
    assert "-- Conflicts by hour" in shown
    assert "|2024-05-02 00:00:00|        3|     2|" in shown
    assert "|last_write_wins|    41|2024-05-02 00:00:00|   42|2024-05-01 00:00:00|" in shown
    assert f"2 tables of spaces in {warehouse.root}: busy, quiet" in shown


def test_a_warehouse_that_is_not_there(config: Config) -> None:
    with pytest.raises(WarehouseError, match=r"no tables yet .*: run jobs/aggregate.py first"):
        report(config, argparse.Namespace())
