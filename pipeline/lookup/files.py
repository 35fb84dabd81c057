"""The files in which the versions before a batch are found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile


@dataclass(frozen=True)
class FileRef:
    """A file of a space's table, with the table's name: of a masked space, its exact or its masked table."""

    table: str
    file: TableFile


@dataclass(frozen=True)
class BaseFiles:
    """The files in which the base versions are found: the versions before a batch."""

    location: WarehouseLocation
    exact_tables: Mapping[int, tuple[str, Sequence[TableFile]]]
    versions_files: Sequence[TableFile]
    table_names: Sequence[str]
    """By table number, the name of the table, as in `_versions.space`."""
    tables_without_misfits: frozenset[int] = frozenset()
    """Numbers of tables that do not store tuples with a misfit."""
