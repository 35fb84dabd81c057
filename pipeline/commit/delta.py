"""Commits of a batch: files that stages have written, and small appends of rows that the driver has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tables.commits import OpenTables
from tables.data_files import DataFile, opened, write_file
from tables.write import arrow_rows

JOIN_FILES = 32
"""Where a table has so many small files, they are joined:"""

JOIN_BYTES = (1 << 20, 32 << 20)
"""first those below the first size, then those below the second, so that each byte is rewritten twice;"""

JOIN_AT_ONCE = 64 << 20
"""no more bytes than these at a time."""

LOW_CARDINALITY: Mapping[str, tuple[str, ...]] = {
    "_changelog": ("source", "state", "space", "file", "instance_uuid", "type"),
    "_pending": ("source", "reason", "file", "instance_uuid", "type"),
    "_versions": ("space", "state"),
    "_conflicts": ("space", "kind", "policy", "sequence", "changed", "note"),
    "_quarantine": ("space", "file", "reason"),
}
"""Columns of system tables that have few values in a file."""


def append_rows(tables: OpenTables, table: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append rows to a system table, and return its version."""
    return append_table(tables, table, arrow_rows(table, rows))


def append_table(tables: OpenTables, table: str, rows: pa.Table) -> int:
    """Append rows to a system table, and return its version; without rows there is no commit."""
    if not rows.num_rows:
        return tables.version(table)
    dictionary = LOW_CARDINALITY.get(table, ())
    return tables.commit(table, [write_file(tables.place, table, rows, dictionary=dictionary)])


def in_order(table: str, rows: pa.Table) -> pa.Table:
    """Return rows of a system table in the order in which they are looked for."""
    if table != "_versions":
        return rows
    whole = rows.combine_chunks()
    return whole.take(pc.sort_indices(whole, sort_keys=[("space", "ascending"), ("key", "ascending")]))


def join_small_files(
    tables: OpenTables, table: str, written: Callable[[pa.Table], list[DataFile]] | None = None
) -> int:
    """Join the small files of a table where there are many, in a commit that changes no row; return its version.

    Parameters
    ----------
    tables : OpenTables
    table : str
    written : callable, optional
        Writes the joined rows; by default as one file, in the order in which the files had them.

    """
    files = tables.files(table)
    version = tables.version(table)
    low = 0
    for high in JOIN_BYTES:
        small = [file for file in files if low <= file.size < high]
        low = high
        if len(small) < JOIN_FILES:
            continue
        small.sort(key=lambda file: file.size)
        sizes = list(accumulate(file.size for file in small))
        small = small[: bisect_right(sizes, JOIN_AT_ONCE)]
        parts = []
        for file in small:
            with opened(tables.place, table, file.path) as parquet:
                parts.append(parquet.read())
        rows = pa.concat_tables(parts, promote_options="default")
        dictionary = LOW_CARDINALITY.get(table, ())
        joined = (
            [write_file(tables.place, table, in_order(table, rows), dictionary=dictionary, is_new_data=False)]
            if written is None
            else written(rows)
        )
        version = tables.commit(table, joined, [(file, False) for file in small])
    return version
