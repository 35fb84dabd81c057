"""What the row of an epoch says of the tables that its batch wrote."""

from pathlib import Path

from deltalake import DeltaTable

from pipeline.commit.epoch import commit_epoch
from pipeline.state import State
from pipeline.write.system_rows import append_rows
from schemas.tables import SYSTEM_TABLES
from warehouse.system_tables import epochs
from warehouse.warehouse import Warehouse


def test_versions_are_the_newest_though_those_in_between_were_cleaned_away(tmp_path: Path) -> None:
    """Others may have written often enough since the last epoch that Delta has cleaned away what followed it."""
    warehouse = Warehouse(None, str(tmp_path))
    for table in ("_gaps", "_epochs"):
        warehouse.create(table, SYSTEM_TABLES[table])
    for epoch in range(6):
        warehouse.append_rows("_gaps", [{"epoch": epoch}])
    DeltaTable(warehouse.path("_gaps")).create_checkpoint()
    for version in range(6):
        Path(warehouse.path("_gaps"), "_delta_log", f"{version:020d}.json").unlink()
    tables = warehouse.open_tables
    version = append_rows(tables, "_gaps", [{"epoch": 6}])
    after = commit_epoch(tables, State(versions={"_gaps": 0}), {"_gaps": version}, ("query", 1))
    assert after.versions == {"_gaps": 7}
    last = epochs.last(warehouse)
    assert last is not None
    assert dict(last.versions) == {"_gaps": 7}
