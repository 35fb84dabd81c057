"""Writes the files of spaces' tables, in key order: new rows, and the remaining rows of files with removed rows.

The remaining rows of a small file are joined with the new rows, so that a table that is updated often has few files;
those of a large file become a file of their own. Rows of a masked table are found by the keys of the exact one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructField, StructType

from pipeline.encode.columns import TableEncoding, encode, variants_for_file
from pipeline.resolve.resolve import PUTS
from pipeline.write.lookup import KeyRangeCache, LookupKeys
from schemas.tables import VERSION_COLUMNS
from udfs.buffers import as_array
from warehouse.commits import TableFile
from warehouse.data_files import DataFile, opened, write_file
from warehouse.location import WarehouseLocation

FILE_ROWS = 2_000_000
"""The maximum number of rows in a file."""

FILE_BYTES = 128 * 1024 * 1024
"""The approximate maximum size of a file's rows in memory."""


def remaining_rows(
    location: WarehouseLocation, table: str, file: TableFile, removed: NDArray[np.int64]
) -> pa.Table:
    """Return the rows of a file that remain when some are removed.

    Args:
        removed: The indices in the file of the rows to leave out (int64[n]).
    """
    with opened(location, table, file.path) as parquet:
        rows = parquet.read()
    keep = np.ones(rows.num_rows, np.bool_)
    keep[removed] = False
    return rows.filter(pa.array(keep))


def rows_with_keys(
    location: WarehouseLocation, table: str, files: Iterable[TableFile], keys: pa.Array, cache: KeyRangeCache
) -> Mapping[TableFile, NDArray[np.int64]]:
    """Return the indices of the rows that have one of the keys, by file; only for files with such rows."""
    wanted = LookupKeys.of(keys)
    found: dict[TableFile, NDArray[np.int64]] = {}
    for file in files:
        with opened(location, table, file.path) as parquet:
            known = cache.key_ranges(parquet, table, file.path, "_key")
            ranges = zip(known.least, known.greatest, strict=True)
            if not any(wanted.may_be_between(least, greatest) for least, greatest in ranges):
                continue
            column = parquet.read(columns=["_key"])["_key"].combine_chunks()
        rows = np.flatnonzero(wanted.find_numbers(as_array(column)) >= 0)
        if len(rows):
            found[file] = rows.astype(np.int64)
    return found


def write_rows(
    location: WarehouseLocation, table: str, rows: pa.Table, *, is_new_data: bool = True
) -> list[DataFile]:
    """Write rows of a space's table in key order, as one or more files."""
    if not rows.num_rows:
        return []
    whole = _with_empty_variant_parts(rows).combine_chunks()
    ordered = whole.take(pc.sort_indices(whole, sort_keys=[("_key", "ascending")]))
    count = max(1, -(-rows.num_rows // FILE_ROWS), -(-rows.nbytes // FILE_BYTES))
    size = -(-rows.num_rows // count)
    return [
        write_file(location, table, ordered.slice(begin, size), is_new_data=is_new_data)
        for begin in range(0, rows.num_rows, size)
    ]


def _with_empty_variant_parts(rows: pa.Table) -> pa.Table:
    """Return rows in which a null variant has empty parts (`metadata`, `value`) instead of null ones.

    Null parts come from joining rows of files with and without a variant column.
    """
    for number, column in enumerate(rows.schema):
        if pa.types.is_struct(column.type) and rows[number].null_count:
            rows = rows.set_column(number, column.name, variants_for_file(rows[number].combine_chunks()))
    return rows


SMALL_FILE_BYTES = 8 * 1024 * 1024
"""The remaining rows of a file below this size, in bytes, are joined with the new rows."""

MAX_JOINED_FILE_BYTES = 64 * 1024 * 1024
"""Joined files have at most this size together, and their rows at most `FILE_BYTES` in memory."""

_NO_ROWS = np.zeros(0, np.int64)


class TableChange(Enum):
    """The change that a table needs before a batch can write it."""

    CREATE = "create"
    NOTHING = "nothing"
    ADD = "add columns"
    REWRITE = "write again"


def table_schema(encoding: TableEncoding) -> StructType:
    """Return the columns of a space's exact table: the typed columns, then those that all tables of spaces have."""
    shared = [StructField(name, kind) for name, kind in VERSION_COLUMNS]
    return StructType([*encoding.layout.spark_schema().fields, *shared])


@dataclass(frozen=True)
class TableWrite:
    """The files that a commit adds to a table and removes from it."""

    table: str
    added: list[DataFile] = field(default_factory=list)
    removed: list[TableFile] = field(default_factory=list)
    """Files whose remaining rows are in the added files."""
    schema: StructType | None = None
    """The new columns if the whole table is rewritten; then `removed` has all of its files."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.added and not self.removed and self.schema is None


@dataclass(frozen=True)
class TableChanges:
    """The changes of a space's exact table, which its masked table follows."""

    encoding: TableEncoding
    rows: pa.Table | None
    """New rows of the exact table."""
    removed: Mapping[TableFile, NDArray[np.int64]]
    """For each file of the exact table, the indices of removed rows."""
    removed_keys: pa.Array | None
    """The keys of the removed rows."""
    change: TableChange = TableChange.NOTHING
    """The change that the exact table needs."""


def write_exact(location: WarehouseLocation, changes: TableChanges, files: Sequence[TableFile]) -> TableWrite:
    """Write the files of the changes of an exact table.

    Args:
        files: All files of the table.
    """
    table = changes.encoding.exact_table
    if changes.change is not TableChange.REWRITE:
        return _write_changes(location, table, changes.rows, changes.removed)
    everything = {file: changes.removed.get(file, _NO_ROWS) for file in files}
    found = _write_changes(location, table, changes.rows, everything, changes.encoding)
    return TableWrite(table, found.added, found.removed, table_schema(changes.encoding))


def write_masked(
    location: WarehouseLocation, changes: TableChanges, files: Sequence[TableFile], cache: KeyRangeCache
) -> TableWrite | None:
    """Write the files of the changes of a space's masked table.

    Returns None if the space is not masked, or if the exact table is rewritten. In the second case the masked table is
    rewritten after it (`write_all_masked`), since its existing rows may lack the new columns.
    """
    mask, table = changes.encoding.mask, changes.encoding.name
    if mask is None or changes.change is TableChange.REWRITE:
        return None
    rows = None if changes.rows is None else mask.masked(changes.rows)
    removed: Mapping[TableFile, NDArray[np.int64]] = {}
    if changes.removed_keys is not None:
        removed = rows_with_keys(location, table, files, changes.removed_keys, cache)
    return _write_changes(location, table, rows, removed)


def write_all_masked(
    location: WarehouseLocation, encoding: TableEncoding, files: Iterable[TableFile]
) -> list[DataFile]:
    """Write the files of a whole masked table, from the rows in the files of the exact table."""
    if encoding.mask is None:
        return []
    added: list[DataFile] = []
    for file in files:
        rows = remaining_rows(location, encoding.exact_table, file, _NO_ROWS)
        added += write_rows(location, encoding.name, encoding.mask.masked(rows))
    return added


def _write_changes(
    location: WarehouseLocation,
    table: str,
    rows: pa.Table | None,
    removed: Mapping[TableFile, NDArray[np.int64]],
    encoding: TableEncoding | None = None,
) -> TableWrite:
    """Write new rows, and the remaining rows of changed files, encoded again if an encoding is given."""
    joined = [] if rows is None else [rows]
    size, in_memory, added = 0, 0, []
    for file, indices in removed.items():
        rest = remaining_rows(location, table, file, indices)
        rest = rest if encoding is None else reencode_rows(rest, encoding)
        size += file.size
        if (
            file.size < SMALL_FILE_BYTES
            and size < MAX_JOINED_FILE_BYTES
            and in_memory + rest.nbytes < FILE_BYTES
        ):
            joined.append(rest)
            in_memory += rest.nbytes
        else:
            added += write_rows(location, table, rest)
    if joined:
        added += write_rows(location, table, pa.concat_tables(joined, promote_options="default"))
    return TableWrite(table, added, list(removed))


def reencode_rows(rows: pa.Table, encoding: TableEncoding) -> pa.Table:
    """Return rows of an exact table with the columns of a new encoding.

    All rows stay. If a tuple cannot be split into fields, its row has nulls in all typed columns.
    """
    names = {f"_{name}": name for name in PUTS.names if name != "table"}
    puts = rows.select(list(names)).rename_columns(list(names.values()))
    puts = puts.append_column("table", pa.nulls(rows.num_rows, pa.int32())).select(PUTS.names).cast(PUTS)
    encoded = encode(puts, replace(encoding, quarantines_misfits=False))
    set_aside = encoded.left_out_rows
    if not set_aside.num_rows:
        return encoded.rows
    kept = set_aside.select(list(names.values())).rename_columns(list(names))
    return pa.concat_tables([encoded.rows, kept], promote_options="default")
