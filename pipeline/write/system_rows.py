"""Writes rows of the aggregator's own tables as files: in the order for lookups, with dictionaries."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import DataFile, FileWriter, write_file
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.write import arrow_rows

_LOW_CARDINALITY: Mapping[str, tuple[str, ...]] = {
    "_changelog": ("source", "state", "space", "file", "instance_uuid", "type", "server_version"),
    "_pending": ("source", "reason", "file", "instance_uuid", "type", "server_version", "earlier"),
    "_versions": ("space", "state"),
    "_conflicts": ("space", "kind", "policy", "sequence", "changed", "note"),
    "_quarantine": ("space", "file", "reason"),
}
"""Columns of system tables with few distinct values, which files encode by dictionaries."""


def system_file_writer(location: WarehouseLocation, table: str, schema: pa.Schema) -> FileWriter:
    """Return a new file of a system table, which is written batch by batch; its rows are not sorted."""
    return FileWriter(location, table, schema, _LOW_CARDINALITY.get(table, ()))


def append_rows(tables: OpenTables, table: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append rows to a system table, and return its version."""
    return append_table(tables, table, arrow_rows(table, rows))


def write_system_rows(
    location: WarehouseLocation, table: str, rows: pa.Table, *, is_new_data: bool = True
) -> DataFile:
    """Write rows of a system table as one file."""
    rows = _sorted_for_lookups(table, rows)
    dictionary = _LOW_CARDINALITY.get(table, ())
    return write_file(location, table, rows, dictionary=dictionary, is_new_data=is_new_data)


def append_table(tables: OpenTables, table: str, rows: pa.Table) -> int:
    """Append rows to a system table, if there are any, and return its version."""
    if not rows.num_rows:
        return tables.version(table)
    return tables.commit(table, [write_system_rows(tables.location, table, rows)])


def _sorted_for_lookups(table: str, rows: pa.Table) -> pa.Table:
    """Return rows of a system table in the order for lookups: `_versions` by space and key, others unchanged."""
    if table != "_versions":
        return rows
    whole = rows.combine_chunks()
    return whole.take(pc.sort_indices(whole, sort_keys=[("space", "ascending"), ("key", "ascending")]))
