"""The report of a small warehouse: each query with its result, and the advice for an empty one."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from config.deployment import Config
from jobs.report import report, write_page
from schemas.errors import ConfigurationError, WarehouseError
from warehouse.warehouse import Warehouse

LATE = datetime(2024, 5, 2, tzinfo=UTC)
EARLY = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "warehouse": str(tmp_path / "warehouse"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "database": "reported",
            "sources": [{"name": "none", "path": str(tmp_path)}],
        }
    )


@pytest.fixture
def warehouse(config: Config) -> Warehouse:
    made = Warehouse(None, config.warehouse, config.database)
    made.create_system_tables()
    made.append_rows("_cluster", [{"global_id": 7, "uuid": "the-uuid", "local_id": 1, "replicaset_id": 3}])
    made.append_rows("_changelog", [{"replicaset_id": 3, "state": "rolled_back"}])
    return made


def conflict(warehouse: Warehouse, table: str, key: bytes) -> None:
    row = {"space": table, "key": key, "policy": "last_write_wins", "winner_replicaset_id": 41}
    times = {"winner_timestamp": LATE, "loser_timestamp": EARLY, "loser_replicaset_id": 42}
    warehouse.append_rows("_conflicts", [{**row, **times}])


def test_each_query_is_shown_with_its_result(
    config: Config,
    warehouse: Warehouse,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for table in ("quiet", "busy"):
        moments = pa.array([LATE, LATE], pa.timestamp("us", tz="UTC"))
        rows = {"id": [5, 6], "name": [table, "alone"], "_key": [b"\1", b"\2"], "_replicaset_id": [41, 41]}
        rows |= {"_global_id": [7, 7], "_lsn": [9, 10], "_timestamp": moments, "_tuple": [b"\x92", b"\x92"]}
        write_deltalake(warehouse.path(table), pa.table(rows))
    conflict(warehouse, "quiet", b"\1")
    conflict(warehouse, "busy", b"\1")
    conflict(warehouse, "busy", b"\1")
    page = tmp_path / "page.html"
    report(config, str(page))
    shown = capsys.readouterr().out
    assert f"Everything on one page: {page.as_uri()}" in shown
    # No batch is done in this warehouse, so tables are read as they are.
    assert "No batch is done yet" in page.read_text()
    assert "the-uuid" in page.read_text()
    assert "FROM reported._cluster ORDER BY global_id;" in shown
    assert "|        7|the-uuid|       1|            3|" in shown
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


def test_a_missing_warehouse(config: Config) -> None:
    with pytest.raises(WarehouseError, match=r"no tables yet .*: start `aggregator run` first"):
        report(config, "unused.html")


def test_a_page_that_cannot_be_written(config: Config, tmp_path: Path) -> None:
    warehouse = Warehouse(None, config.warehouse, config.database)
    with pytest.raises(ConfigurationError, match=r"there is no folder .*nowhere for the page: see --page"):
        write_page(warehouse, tmp_path / "nowhere" / "page.html")
