"""A warehouse as of its newest epoch, read only: what the next start will find once it has rolled back the rest.

For commands that look at the writer's state during a running stream, or without one. Nothing is restored, created or
committed.
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
        Others are read as they are now.

    """

    versions: Mapping[str, int] = field(default_factory=dict)

    def open(self, table: str) -> DeltaTable:
        """Return a table at its version.

        Raises
        ------
        WarehouseError
            The table is not there.

        """
        if table not in self._tables:
            found = self.place.open(table, self.versions.get(table))
            if found is None:
                raise WarehouseError("the table is not there", table=table, warehouse=self.place.root)
            self._tables[table] = found
        return self._tables[table]

    def change(self, table: str, make: Callable[[DeltaTable, CommitProperties], object]) -> int:  # noqa: ARG002
        """Refuse: nothing is written.

        Raises
        ------
        WarehouseError

        """
        raise WarehouseError("this warehouse is open for reading only", table=table)


@dataclass(frozen=True)
class EpochWarehouse(Warehouse):
    """One database as of its newest epoch."""

    @cached_property
    def cut(self) -> TableVersions:
        """The versions of its tables."""
        return newest_versions(self.place)

    @cached_property
    def open_tables(self) -> OpenTables:
        """The tables at these versions."""
        return ReadTables(self.place, versions=self.cut.versions)

    def opened(self, table: str, version: int | None = None) -> DeltaTable:
        """Return a table at a version, or at that of the newest epoch.

        Raises
        ------
        WarehouseError
            The table is not there.

        """
        if version is None:
            return self.open_tables.open(table)
        return super().opened(table, version)
