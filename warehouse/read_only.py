"""Reads tables in this process, without Spark: for short commands, whether a stream runs or not. Never writes."""

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
        A folder, or a URI that delta-rs opens (`s3://`, `gs://`, `abfss://`, `hdfs://`), or Hadoop's `s3a://`.
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
        """Whether a table exists."""
        return bool(DeltaTable.is_deltatable(f"{self.root}/{table}"))

    def rows(self, table: str, columns: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return all rows of a table at its newest version; without `columns`, all columns.

        Raises
        ------
        WarehouseError
            If the table does not exist or cannot be read.

        """
        opened = self._open(table)
        try:
            return rows_of(opened, list(columns))
        except DeltaError as error:
            raise WarehouseError(f"the table cannot be read: {error}", table=table) from error

    def property(self, table: str, name: str) -> str | None:
        """Return a property of a table, None if it is not set."""
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
