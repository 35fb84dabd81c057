"""Removes rows from a table: marks them by file, then rewrites the files in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.commit.compact import MAX_JOINED_BYTES
from pipeline.write.system_rows import write_system_rows
from udfs.buffers import as_array
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import DataFile, opened


@dataclass(frozen=True)
class Removal:
    """The rows to remove from one table."""

    table: str
    files: Sequence[tuple[TableFile, pa.BooleanArray]] = ()
    """Each file that has rows to remove, with a mask that is true for them."""
    last_lsns_by_instance: Sequence[dict[str, Any]] = field(default=())
    """Only for `_changelog`: for each instance and replica id, a dict `replicaset_id`, `global_id`, `local_id`, `lsn`
    (the last one that is removed), `rows` (the number of rows).
    """

    @property
    def row_count(self) -> int:
        """The number of rows to remove."""
        return sum(gone.true_count for _, gone in self.files)


def removal_of_marked_rows(table: str, files: Iterable[tuple[TableFile, pa.BooleanArray]]) -> Removal:
    """Return the removal of the rows for which the files' masks are true; files without such rows are left out."""
    return Removal(table, [(file, gone) for file, gone in files if gone.true_count])


def read_columns(tables: OpenTables, table: str, file: TableFile, columns: Sequence[str]) -> pa.Table:
    """Read columns of a file of a table."""
    with opened(tables.location, table, file.path) as parquet:
        return parquet.read(columns=list(columns))


def without_nulls(column: pa.ChunkedArray) -> pa.BooleanArray:
    """Return a boolean column as one array, with False instead of nulls."""
    return as_array(pc.fill_null(column, False))


def remove_rows(tables: OpenTables, removal: Removal) -> int:
    """Remove rows from a table in one commit, and return its version.

    If the process ends before the commit, new files remain that no commit names.
    """
    added = list(_write_remaining(tables, removal))
    return tables.commit(removal.table, added, [(file, True) for file, _ in removal.files])


def _write_remaining(tables: OpenTables, removal: Removal) -> Iterator[DataFile]:
    """Write the remaining rows of the files that have rows to remove; rows of small files are joined."""
    parts: list[pa.Table] = []
    size = 0
    for file, gone in removal.files:
        if gone.true_count == len(gone):
            continue
        with opened(tables.location, removal.table, file.path) as parquet:
            parts.append(parquet.read().filter(pc.invert(gone)))
        size += parts[-1].nbytes
        if size > MAX_JOINED_BYTES:
            yield _write_joined(tables, removal.table, parts)
            parts, size = [], 0
    if parts:
        yield _write_joined(tables, removal.table, parts)


def _write_joined(tables: OpenTables, table: str, parts: Sequence[pa.Table]) -> DataFile:
    rows = pa.concat_tables(parts, promote_options="default")
    return write_system_rows(tables.location, table, rows, is_new_data=False)
