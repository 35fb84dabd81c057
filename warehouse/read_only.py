"""Reads tables in this process, with delta-rs: for commands that answer at once, whether a stream runs or not.

Never writes. Not here: what the rows mean (the module of each table).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from schemas.errors import WarehouseError
from warehouse.read import rows_of


@dataclass(frozen=True)
class ReadOnlyWarehouse:
    """One database of Delta tables, read only.

    Parameters
    ----------
    location : str
        A folder, or a URI that delta-rs opens: `s3://`, `gs://`, `abfss://`, `hdfs://`, Hadoop's `s3a://`.
    database : str

    """

    location: str
    database: str = "aggregator"

    @property
    def root(self) -> str:
        """The folder of the database."""
        location = self.location.replace("s3a://", "s3://", 1)
        return f"{location.rstrip('/')}/{self.database}.db"

    def has(self, table: str) -> bool:
        """Whether a table is there."""
        return bool(DeltaTable.is_deltatable(f"{self.root}/{table}"))

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return some columns of a table's rows as it is now.

        Raises
        ------
        WarehouseError
            If the table is not there, or cannot be read.

        """
        opened = self._open(table)
        try:
            return rows_of(opened, list(columns))
        except DeltaError as error:
            raise WarehouseError(f"the table cannot be read: {error}", table=table) from error

    def property(self, table: str, name: str) -> str | None:
        """Return a property of a table, None where it is not set."""
        configuration: dict[str, str] = self._open(table).metadata().configuration
        return configuration.get(name)

    def _open(self, table: str) -> DeltaTable:
        try:
            return DeltaTable(f"{self.root}/{table}")
        except TableNotFoundError as error:
            raise WarehouseError(
                "there are no tables yet", warehouse=self.root, advice="start `aggregator run` first"
            ) from error
        except DeltaError as error:
            raise WarehouseError(f"the table cannot be read: {error}", table=table) from error
