"""Warehouses without Spark: Delta tables written by delta-rs as the aggregator's batches write them.

Real Delta logs, with the columns of `_epochs` that a reader needs; what the other tables hold does not matter here.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from warehouse.delta.location import WarehouseLocation, location_of

EPOCHS = pa.schema(
    [
        ("epoch", pa.int64()),
        ("rows", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("versions", pa.map_(pa.string(), pa.int64())),
    ]
)
ROWS = pa.schema([("epoch", pa.int64()), ("value", pa.string())])
SYSTEM = ("_changelog", "_cluster", "_quarantine", "_epochs")


class Made:
    """A warehouse in a folder, with batches on demand.

    Args:
        folder: The configuration's `warehouse`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "aggregator.db"
        self.location: WarehouseLocation = location_of(str(folder))
        self.versions: dict[str, int] = {}
        self.epoch = -1

    def create(self) -> None:
        """Create the tables that every warehouse has."""
        for name in SYSTEM:
            DeltaTable.create(str(self.folder / name), EPOCHS if name == "_epochs" else ROWS)

    def write(self, table: str, value: str, **options: Any) -> int:
        """Append a row to a table, and return the table's version."""
        rows = pa.table({"epoch": [self.epoch + 1], "value": [value]}, schema=ROWS)
        mark = CommitProperties(custom_metadata={"userMetadata": "tarantool-aggregator"})
        write_deltalake(str(self.folder / table), rows, mode="append", commit_properties=mark, **options)
        return self.version(table)

    def batch(self, value: str, *tables: str) -> int:
        """Commit a batch that appends a row to each table, and return its epoch."""
        for table in ("_changelog", *tables):
            self.versions[table] = self.write(table, value)
        self.commit()
        return self.epoch

    def commit(self) -> None:
        """Append the epoch that names the versions."""
        self.epoch += 1
        row = {"epoch": self.epoch, "rows": 1, "committed_at": None, "versions": list(self.versions.items())}
        table = pa.Table.from_pylist([row], schema=EPOCHS)
        write_deltalake(str(self.folder / "_epochs"), table, mode="append")

    def resume(self) -> None:
        """Go on where the newest epoch of the folder ends, as a job that starts does."""
        rows = DeltaTable(str(self.folder / "_epochs")).to_pyarrow_table().to_pylist()
        last = max(rows, key=lambda row: int(row["epoch"]))
        self.epoch, self.versions = last["epoch"], dict(last["versions"])

    def version(self, table: str) -> int:
        return int(DeltaTable(str(self.folder / table)).version())

    def values(self, table: str, version: int | None = None) -> list[str]:
        opened = DeltaTable(str(self.folder / table), version=version)
        return sorted(row["value"] for row in opened.to_pyarrow_table().to_pylist())

    def read_cut(self) -> dict[str, list[str]]:
        """Return what a reader of the newest epoch sees: the values of each table that it names."""
        rows = DeltaTable(str(self.folder / "_epochs")).to_pyarrow_table().to_pylist()
        last = max(rows, key=lambda row: int(row["epoch"]))
        return {table: self.values(table, version) for table, version in last["versions"]}
