"""Rows that leave a table, by file: planned from a few columns, then taken out in one commit of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.commit.compact import JOIN_AT_ONCE
from pipeline.commit.epoch import LOW_CARDINALITY, in_order
from udfs.buffers import as_array
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import DataFile, opened, write_file


@dataclass(frozen=True)
class Removal:
    """What leaves one table.

    Parameters
    ----------
    table : str
    files : sequence of (TableFile, pyarrow.BooleanArray)
        The files from which rows go, and which of their rows.
    origins : sequence of dict
        Of `_changelog`: `replicaset_id`, `global_id`, `lsn`, `rows` of each instance whose rows are removed.

    """

    table: str
    files: Sequence[tuple[TableFile, pa.BooleanArray]] = ()
    origins: Sequence[dict[str, Any]] = field(default=())

    @property
    def rows(self) -> int:
        """How many rows go."""
        return sum(gone.true_count for _, gone in self.files)


def removal_of(table: str, files: Iterable[tuple[TableFile, pa.BooleanArray]]) -> Removal:
    """Return the removal of rows that are marked, without the files that lose none."""
    return Removal(table, [(file, gone) for file, gone in files if gone.true_count])


def columns_of(tables: OpenTables, table: str, file: TableFile, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a file of a table."""
    with opened(tables.place, table, file.path) as parquet:
        return parquet.read(columns=list(columns))


def mask_of(column: pa.ChunkedArray) -> pa.BooleanArray:
    """Return marks of rows as one array, without nulls."""
    return as_array(pc.fill_null(column, False))


def take_out(tables: OpenTables, removal: Removal) -> int:
    """Take rows out of a table in one commit, and return its version.

    A process that ends before the commit leaves files that no commit names.
    """
    added = list(_rest(tables, removal))
    return tables.commit(removal.table, added, [(file, True) for file, _ in removal.files])


def _rest(tables: OpenTables, removal: Removal) -> Iterator[DataFile]:
    """Write the rows that stay of the files, some files' together."""
    parts: list[pa.Table] = []
    size = 0
    for file, gone in removal.files:
        if gone.true_count == len(gone):
            continue
        with opened(tables.place, removal.table, file.path) as parquet:
            parts.append(parquet.read().filter(pc.invert(gone)))
        size += parts[-1].nbytes
        if size > JOIN_AT_ONCE:
            yield _written(tables, removal.table, parts)
            parts, size = [], 0
    if parts:
        yield _written(tables, removal.table, parts)


def _written(tables: OpenTables, table: str, parts: Sequence[pa.Table]) -> DataFile:
    rows = in_order(table, pa.concat_tables(parts, promote_options="default"))
    dictionary = LOW_CARDINALITY.get(table, ())
    return write_file(tables.place, table, rows, dictionary=dictionary, is_new_data=False)
