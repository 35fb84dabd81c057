"""Commits of a batch: files that stages have written, and small appends of rows that the driver has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.tables import SYSTEM_TABLES
from warehouse.commits import OpenTables
from warehouse.data_files import write_file
from warehouse.write import arrow_rows

LOW_CARDINALITY: Mapping[str, tuple[str, ...]] = {
    "_changelog": ("source", "state", "space", "file", "instance_uuid", "type", "server_version"),
    "_pending": ("source", "reason", "file", "instance_uuid", "type", "server_version"),
    "_versions": ("space", "state"),
    "_conflicts": ("space", "kind", "policy", "sequence", "changed", "note"),
    "_quarantine": ("space", "file", "reason"),
}
"""Columns of system tables that have few values in a file."""


def append_rows(tables: OpenTables, table: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append rows to a system table, and return its version."""
    return append_table(tables, table, arrow_rows(table, rows))


def append_table(tables: OpenTables, table: str, rows: pa.Table) -> int:
    """Append rows to a system table, and return its version; without rows there is no commit.

    A table that an earlier release made gets the columns that it lacks.
    """
    if not rows.num_rows:
        return tables.version(table)
    tables.add_columns(table, SYSTEM_TABLES[table])
    dictionary = LOW_CARDINALITY.get(table, ())
    return tables.commit(table, [write_file(tables.place, table, rows, dictionary=dictionary)])


def in_order(table: str, rows: pa.Table) -> pa.Table:
    """Return rows of a system table in the order in which they are looked for."""
    if table != "_versions":
        return rows
    whole = rows.combine_chunks()
    return whole.take(pc.sort_indices(whole, sort_keys=[("space", "ascending"), ("key", "ascending")]))
