"""What was in a table before its mask stays in old files and log entries until these go, as docs/security.md says."""

import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

SECRET = "Ann of Aran"


def showing(table: Path) -> set[str]:
    """Return the kinds of files of a table that show the value: log entries, checkpoints, data files."""
    found = set()
    for path in table.rglob("*"):
        if path.is_file():
            is_parquet = path.suffix == ".parquet"
            text = str(pq.read_table(path).to_pylist()) if is_parquet else path.read_text()
            if SECRET in text:
                found.add(path.suffixes[0] if path.parent.name == "_delta_log" else "data")
    return found


def aged(table: Path, days: float) -> None:
    for path in (table / "_delta_log").iterdir():
        os.utime(path, (time.time() - days * 86_400,) * 2)


@pytest.mark.parametrize("is_shortened", [False, True], ids=["30 days", "a day"])
def test_old_log_entries_show_values_until_they_are_cleaned(tmp_path: Path, is_shortened: bool) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, SECRET, 5, 7)
    made = Deployment.aggregated(tmp_path, node)
    table = tmp_path / "warehouse" / "aggregator.db" / "people"
    DeltaTable(table).create_checkpoint()
    made.settings["spaces"] = {"masks": {"people": {"name": "drop"}}}
    made.run()
    assert showing(table) == {".json", ".checkpoint", "data"}
    aged(table, 2 if is_shortened else 31)
    DeltaTable(table).cleanup_metadata()
    assert ".json" in showing(table), "no checkpoint is behind them"
    if is_shortened:
        DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 24 hours"})
    DeltaTable(table).create_checkpoint()
    DeltaTable(table).cleanup_metadata()
    assert showing(table) == {"data"}
    node.put(600, 2, "b", 6, 8).close()
    made.run()
    assert sorted(int(row["id"]) for row in made.rows("people")) == [1, 2]
    assert DeltaTable(table).metadata().configuration.get("delta.logRetentionDuration") == (
        "interval 24 hours" if is_shortened else None
    )
