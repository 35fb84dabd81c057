"""Writes the changes of a table as files: new rows, and the remaining rows of files with removed rows.

The remaining rows of a small file are joined with the new rows, so that a table that is updated often has few files;
those of a large file become a file of their own. Rows of a masked table are found by the keys of the exact one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from pipeline.encode.columns import TableEncoding
from pipeline.write.lookup import FileCache
from pipeline.write.rewrite import FILE_BYTES, remaining_rows, rows_with_keys, write_rows
from pipeline.write.table_change import TableChange, reencode_rows, table_schema
from warehouse.commits import TableFile
from warehouse.data_files import DataFile
from warehouse.place import Place

SMALL_FILE = 8 * 1024 * 1024
"""The remaining rows of a file below this size, in bytes, are joined with the new rows."""

JOINED_BYTES = 64 * 1024 * 1024
"""Joined files have at most this size together, and their rows at most `FILE_BYTES` in memory."""

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class TableWrite:
    """The files of one table that the batch commits.

    Parameters
    ----------
    table : str
    added : list of DataFile
    removed : list of TableFile
        Files whose remaining rows are in added ones.
    schema : StructType or None
        The new columns of a table that is rewritten; then `removed` are all of its files.

    """

    table: str
    added: list[DataFile] = field(default_factory=list)
    removed: list[TableFile] = field(default_factory=list)
    schema: StructType | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.added and not self.removed and self.schema is None


@dataclass(frozen=True)
class TableChanges:
    """The changes of a space's tables.

    Parameters
    ----------
    encoding : TableEncoding
    rows : pyarrow.Table or None
        New rows of the exact table.
    removed : mapping of TableFile to int64[n]
        For each file of the exact table, the indices of removed rows.
    removed_keys : pyarrow.BinaryArray or None
        The keys of the removed rows.
    change : TableChange
        The change that the exact table needs.

    """

    encoding: TableEncoding
    rows: pa.Table | None
    removed: Mapping[TableFile, NDArray[np.int64]]
    removed_keys: pa.Array | None
    change: TableChange = TableChange.NOTHING


def write_exact(place: Place, changes: TableChanges, files: Sequence[TableFile]) -> TableWrite:
    """Write the changes of an exact table.

    Parameters
    ----------
    place : Place
    changes : TableChanges
    files : sequence of TableFile
        All files of the table.

    """
    table = changes.encoding.exact
    if changes.change is not TableChange.REWRITE:
        return _write(place, table, changes.rows, changes.removed)
    everything = {file: changes.removed.get(file, _NONE) for file in files}
    found = _write(place, table, changes.rows, everything, changes.encoding)
    return TableWrite(table, found.added, found.removed, table_schema(changes.encoding))


def write_masked(
    place: Place, changes: TableChanges, files: Sequence[TableFile], cache: FileCache
) -> TableWrite | None:
    """Write what changes in the table that readers see of a masked space.

    None where the space is not masked, and where the exact table is written again: then this one is too, behind it, and
    its rows so far may have other columns than the new ones.
    """
    mask, table = changes.encoding.mask, changes.encoding.name
    if mask is None or changes.change is TableChange.REWRITE:
        return None
    rows = None if changes.rows is None else mask.masked(changes.rows)
    removed: Mapping[TableFile, NDArray[np.int64]] = {}
    if changes.removed_keys is not None:
        removed = rows_with_keys(place, table, files, changes.removed_keys, cache)
    return _write(place, table, rows, removed)


def write_all_masked(place: Place, encoding: TableEncoding, files: Iterable[TableFile]) -> list[DataFile]:
    """Write all rows of a masked table, from the files of the exact one."""
    if encoding.mask is None:
        return []
    added: list[DataFile] = []
    for file in files:
        rows = remaining_rows(place, encoding.exact, file, _NONE)
        added += write_rows(place, encoding.name, encoding.mask.masked(rows))
    return added


def _write(
    place: Place,
    table: str,
    rows: pa.Table | None,
    removed: Mapping[TableFile, NDArray[np.int64]],
    encoding: TableEncoding | None = None,
) -> TableWrite:
    """Write new rows, and the remaining rows of files; with an encoding, these are encoded again."""
    joined = [] if rows is None else [rows]
    size, in_memory, added = 0, 0, []
    for file, places in removed.items():
        rest = remaining_rows(place, table, file, places)
        rest = rest if encoding is None else reencode_rows(rest, encoding)
        size += file.size
        if file.size < SMALL_FILE and size < JOINED_BYTES and in_memory + rest.nbytes < FILE_BYTES:
            joined.append(rest)
            in_memory += rest.nbytes
        else:
            added += write_rows(place, table, rest)
    if joined:
        added += write_rows(place, table, pa.concat_tables(joined, promote_options="default"))
    return TableWrite(table, added, list(removed))
