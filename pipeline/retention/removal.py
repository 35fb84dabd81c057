"""Removes rows from a table: marks them by file, then rewrites the files in one commit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.compaction.rewrite import write_remaining
from udfs.buffers import as_array
from warehouse.delta.commits import OpenTables
from warehouse.delta.table_files import TableFile, read_file


@dataclass(frozen=True)
class Removal:
    """The rows to remove from one table."""

    table: str
    files: Sequence[tuple[TableFile, pa.BooleanArray]] = ()
    """Each file that has rows to remove, with a mask that is true for them."""
    last_lsns_by_instance: Sequence[dict[str, Any]] = field(default=())
    """Only for `_changelog`: for each instance and replica id, a dict `replicaset_id`, `global_id`, `local_id`, `lsn`
    (the last one that is removed), `rows` (the number of rows)."""

    @property
    def row_count(self) -> int:
        """The number of rows to remove."""
        return sum(gone.true_count for _, gone in self.files)


def removal_of_marked_rows(table: str, files: Iterable[tuple[TableFile, pa.BooleanArray]]) -> Removal:
    """Return the removal of the rows for which the files' masks are true; files without such rows are left out."""
    return Removal(table, [(file, gone) for file, gone in files if gone.true_count])


def read_columns(tables: OpenTables, table: str, file: TableFile, columns: Sequence[str]) -> pa.Table:
    """Read columns of a file of a table."""
    return read_file(tables.location, table, file, columns)


def without_nulls(column: pa.ChunkedArray) -> pa.BooleanArray:
    """Return a boolean column as one array, with False instead of nulls."""
    return as_array(pc.fill_null(column, False))


def remove_rows(tables: OpenTables, removal: Removal) -> int:
    """Remove rows from a table in one commit, and return its version.

    If the process ends before the commit, new files remain that no commit names.
    """
    added = list(write_remaining(tables, removal.table, removal.files))
    return tables.commit(removal.table, added, [(file, True) for file, _ in removal.files])
