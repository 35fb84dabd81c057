"""Writes the files of spaces' tables, in order: new rows, and the remaining rows of files with removed rows.

The remaining rows of a small file are joined with the new rows, so that a table that is updated often has few files;
those of a large file become a file of their own. Rows of a masked table are found by the keys of the exact one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from pipeline.encode.columns import TableEncoding, encode, variants_for_file
from pipeline.lookup.key_search import MASKED_TABLE, CopiedColumns, KeySearch, LookupKeys
from pipeline.resolve.resolve import PUTS
from pipeline.write.limits import FILE_BYTES, FILE_ROWS, MAX_JOINED_BYTES, SMALL_FILE_BYTES
from pipeline.write.vector_rule import NO_VECTORS, VectorRule
from schemas.tables import VERSION_COLUMNS
from warehouse.delta.data_files import DataFile, write_file
from warehouse.delta.deletion_vectors import NO_ROWS, RowNumbers
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile, open_file


def remaining_rows(location: WarehouseLocation, table: str, file: TableFile, removed: RowNumbers) -> pa.Table:
    """Return the rows of a file that remain when some are removed."""
    with open_file(location, table, file) as opened:
        rows = opened.read()
        return rows if not len(removed) else rows.filter(pa.array(~np.isin(opened.row_numbers(), removed)))


def rows_with_keys(
    location: WarehouseLocation,
    table: str,
    files: Iterable[TableFile],
    keys: pa.Array,
    search: KeySearch,
    copied: CopiedColumns = MASKED_TABLE,
) -> dict[TableFile, RowNumbers]:
    """Return the physical numbers of the rows that have one of the keys, by file; only for files with such rows."""
    wanted = LookupKeys.of(keys)
    found: dict[TableFile, RowNumbers] = {}
    for file in files:
        parts = [part.numbers for part in search.find(location, table, file, wanted, ["_key"], copied)]
        if parts:
            found[file] = np.concatenate(parts)
    return found


WrittenHook = Callable[[DataFile, pa.Table], None]
"""Called with each file that was written, and its rows in their order."""


def write_rows(
    location: WarehouseLocation,
    table: str,
    rows: pa.Table,
    *,
    is_new_data: bool = True,
    after_file: WrittenHook | None = None,
    cluster_by: Sequence[str] = (),
) -> list[DataFile]:
    """Write rows of a space's table in the order of some columns, then of the key, as one or more files."""
    if not rows.num_rows:
        return []
    whole = with_empty_variant_parts(rows).combine_chunks()
    order = [name for name in (*cluster_by, "_key") if _has_order(whole, name)]
    ordered = whole.take(pc.sort_indices(whole, sort_keys=[(name, "ascending") for name in order]))
    count = max(1, -(-rows.num_rows // FILE_ROWS), -(-rows.nbytes // FILE_BYTES))
    size = -(-rows.num_rows // count)
    files = []
    for begin in range(0, rows.num_rows, size):
        part = ordered.slice(begin, size)
        files.append(write_file(location, table, part, is_new_data=is_new_data))
        if after_file is not None:
            after_file(files[-1], part)
    return files


def _has_order(rows: pa.Table, column: str) -> bool:
    return column in rows.column_names and not pa.types.is_nested(rows.schema.field(column).type)


def with_empty_variant_parts(rows: pa.Table) -> pa.Table:
    """Return rows in which a null variant has empty parts (`metadata`, `value`) instead of null ones.

    Null parts come from joining rows of files with and without a variant column.
    """
    for number, column in enumerate(rows.schema):
        if pa.types.is_struct(column.type) and rows[number].null_count:
            rows = rows.set_column(number, column.name, variants_for_file(rows[number].combine_chunks()))
    return rows


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
    deleted: Mapping[TableFile, RowNumbers] = field(default_factory=dict)
    """Files that stay, each with the physical numbers of the rows that the commit deletes by a deletion vector."""
    schema: StructType | None = None
    """The new columns if the whole table is rewritten; then `removed` has all of its files."""
    new_rows: int = 0
    """How many rows of the added files are the batch's own; the others were in removed files."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.added or self.removed or self.deleted) and self.schema is None


@dataclass(frozen=True)
class TableChanges:
    """The changes of a space's exact table, which its masked table follows."""

    encoding: TableEncoding
    rows: pa.Table | None
    removed: Mapping[TableFile, RowNumbers]
    """For each file of the exact table, the physical numbers of removed rows."""
    removed_keys: pa.Array | None
    change: TableChange = TableChange.NOTHING


def write_exact(
    location: WarehouseLocation,
    changes: TableChanges,
    files: Sequence[TableFile],
    rule: VectorRule = NO_VECTORS,
    search: KeySearch | None = None,
) -> TableWrite:
    """Write the files of the changes of an exact table.

    Args:
        search: Gets a copy of each written file, if rows of the table were changed, so that the next batch finds its
            rows.
    """
    table = changes.encoding.exact_table
    if changes.change is not TableChange.REWRITE:
        keeps_copies = search is not None and changes.removed
        after_file = partial(search.add_copy, location) if search is not None and keeps_copies else None
        order = changes.encoding.cluster_by
        return write_changes(
            location, table, changes.rows, changes.removed, rule, after_file=after_file, cluster_by=order
        )
    everything = {file: changes.removed.get(file, NO_ROWS) for file in files}
    found = write_changes(location, table, changes.rows, everything, NO_VECTORS, changes.encoding)
    return replace(found, schema=table_schema(changes.encoding))


def write_masked(
    location: WarehouseLocation,
    changes: TableChanges,
    files: Sequence[TableFile],
    rule: VectorRule,
    search: KeySearch,
) -> TableWrite | None:
    """Write the files of the changes of a space's masked table.

    Returns None if the space is not masked, or if the exact table is rewritten. In the second case the masked table is
    rewritten after it (`write_all_masked`), since its existing rows may lack the new columns.
    """
    mask, table = changes.encoding.mask, changes.encoding.name
    if mask is None or changes.change is TableChange.REWRITE:
        return None
    rows = None if changes.rows is None else mask.masked(changes.rows)
    removed: Mapping[TableFile, RowNumbers] = {}
    if changes.removed_keys is not None:
        removed = rows_with_keys(location, table, files, changes.removed_keys, search)
    return write_changes(location, table, rows, removed, rule, cluster_by=changes.encoding.cluster_by)


def write_all_masked(
    location: WarehouseLocation, encoding: TableEncoding, files: Iterable[TableFile]
) -> list[DataFile]:
    """Write the files of a whole masked table, from the rows in the files of the exact table."""
    if encoding.mask is None:
        return []
    added: list[DataFile] = []
    for file in files:
        rows = remaining_rows(location, encoding.exact_table, file, NO_ROWS)
        shown = encoding.mask.masked(rows)
        added += write_rows(location, encoding.name, shown, cluster_by=encoding.cluster_by)
    return added


def write_changes(
    location: WarehouseLocation,
    table: str,
    rows: pa.Table | None,
    removed: Mapping[TableFile, RowNumbers],
    rule: VectorRule,
    encoding: TableEncoding | None = None,
    after_file: WrittenHook | None = None,
    cluster_by: Sequence[str] = (),
) -> TableWrite:
    """Write new rows, and the remaining rows of changed files, encoded again if an encoding is given.

    Under a rule with deletion vectors, only small files are written again; the others are in `TableWrite.deleted`.
    """
    cluster_by = cluster_by if encoding is None else encoding.cluster_by
    gone, deleted, rewritten = rule.divided(removed)
    joined = [] if rows is None else [rows]
    size, in_memory, added = 0, 0, []
    for file, numbers in rewritten.items():
        rest = remaining_rows(location, table, file, numbers)
        rest = rest if encoding is None else reencode_rows(rest, encoding)
        size += file.size
        if file.size < SMALL_FILE_BYTES and size < MAX_JOINED_BYTES and in_memory + rest.nbytes < FILE_BYTES:
            joined.append(rest)
            in_memory += rest.nbytes
        else:
            added += write_rows(location, table, rest, after_file=after_file, cluster_by=cluster_by)
    if joined:
        whole = pa.concat_tables(joined, promote_options="default")
        added += write_rows(location, table, whole, after_file=after_file, cluster_by=cluster_by)
    new_rows = 0 if rows is None else rows.num_rows
    return TableWrite(table, added, [*gone, *rewritten], deleted, new_rows=new_rows)


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
