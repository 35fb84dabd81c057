"""A warehouse as of its newest epoch, read only: the state from which the next start continues.

For commands that read the writer's state, whether a stream runs or not. Nothing is restored, created or committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from deltalake import CommitProperties, DeltaTable

from schemas.errors import WarehouseError
from warehouse.commits import OpenTables
from warehouse.newest_epoch import TableVersions, newest_versions
from warehouse.warehouse import Warehouse


@dataclass
class ReadTables(OpenTables):
    """Tables at given versions, read only.

    Parameters
    ----------
    versions : mapping of str to int
        Table to version; other tables are opened at their newest one.

    """

    versions: Mapping[str, int] = field(default_factory=dict)

    def open(self, table: str) -> DeltaTable:
        """Open a table at its version; raise WarehouseError if there is no table."""
        if table not in self._tables:
            found = self.place.open(table, self.versions.get(table))
            if found is None:
                raise WarehouseError("the table is not there", table=table, warehouse=self.place.root)
            self._tables[table] = found
        return self._tables[table]

    def change(self, table: str, make: Callable[[DeltaTable, CommitProperties], object]) -> int:  # noqa: ARG002
        """Raise WarehouseError: a read-only warehouse commits nothing."""
        raise WarehouseError("this warehouse is open for reading only", table=table)


@dataclass(frozen=True)
class EpochWarehouse(Warehouse):
    """One database as of its newest epoch."""

    @cached_property
    def cut(self) -> TableVersions:
        """The versions of its tables in the newest epoch."""
        return newest_versions(self.place)

    @cached_property
    def open_tables(self) -> OpenTables:
        """The tables at these versions."""
        return ReadTables(self.place, versions=self.cut.versions)

    def opened(self, table: str, version: int | None = None) -> DeltaTable:
        """Open a table at a version, by default that of the newest epoch; raise WarehouseError if there is none."""
        if version is None:
            return self.open_tables.open(table)
        return super().opened(table, version)
