"""Joins files of a table, and writes the remaining rows of files with removed rows. No other row changes.

Rows of a space's table stay in their order, and maintenance joins files with neighbouring keys. Full files are written
again row group by row group, since their rows together may need more memory than the driver has.
"""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.compaction.choose import SizedFile, groups_to_join, large_groups, small_files, sparse_files
from pipeline.write.changes import with_empty_variant_parts, write_rows
from pipeline.write.limits import MAX_JOINED_BYTES
from pipeline.write.system_rows import write_system_rows
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import (
    ROW_GROUP_ROWS,
    DataFile,
    FileWriter,
    floating_columns_without_nan,
)
from warehouse.delta.table_files import OpenFile, TableFile, open_file, open_footer, read_file

_KEY_COLUMN = "_key"


def compact(tables: OpenTables, table: str, *, purge: bool = False, cluster_by: Sequence[str] = ()) -> int:
    """Join all small files of a table, and leave out deleted rows, in one commit; return the number of files.

    Args:
        purge: Whether all files with deleted rows are written again, so that the table has no deletion vector. By
            default only sparse files are.
    """
    files = tables.files(table)
    sparse = [file for file in files if file.vector is not None] if purge else sparse_files(files)
    small = small_files(set(files) - set(sparse))
    if _has_key_column(tables, table):
        small.sort(key=lambda file: _least_key(tables, table, file))
    sized = list(sized_files(tables, table, small, {}))
    joined = list(groups_to_join(sized))
    large = large_groups(sized, len(files)) if tables.allows_vectors(table) else []
    added = [new for file in sparse for new in write_again(tables, table, file, cluster_by)]
    for group in joined:
        added += write_joined(tables, table, group, cluster_by)
    for group in large:
        added += write_in_order(tables, table, group)
    removed = [*sparse, *(file for group in (*joined, *large) for file in group)]
    tables.commit(table, added, [(file, False) for file in removed])
    return len(removed)


def sized_files(
    tables: OpenTables, table: str, files: Iterable[TableFile], known: MutableMapping[str, int]
) -> Iterator[SizedFile]:
    """Yield files with the approximate sizes of their rows in memory: those of the uncompressed pages.

    Args:
        known: By path: sizes that were read before. The others are added to it.
    """
    for file in files:
        if file.path not in known:
            footer = open_footer(tables.location, table, file)
            groups = (footer.row_group(number) for number in range(footer.num_row_groups))
            known[file.path] = sum(group.total_byte_size for group in groups)
        yield SizedFile(file, known[file.path])


def write_joined(
    tables: OpenTables, table: str, files: Iterable[TableFile], cluster_by: Sequence[str] = ()
) -> list[DataFile]:
    """Write the rows of some files as new files."""
    parts = [read_file(tables.location, table, file) for file in files]
    return _write_parts(tables, table, parts, cluster_by)


def write_again(
    tables: OpenTables, table: str, file: TableFile, cluster_by: Sequence[str] = ()
) -> list[DataFile]:
    """Write the remaining rows of a file of a space's table: in the order of `cluster_by`, else as they are."""
    if cluster_by or not _has_key_column(tables, table):
        return write_joined(tables, table, [file], cluster_by)
    return write_in_order(tables, table, [file])


def write_in_order(tables: OpenTables, table: str, files: Sequence[TableFile]) -> list[DataFile]:
    """Write the remaining rows of files as one file, one file after the other, each in its order."""
    with ExitStack() as stack:
        opened = [stack.enter_context(open_file(tables.location, table, file)) for file in files]
        schema = pa.unify_schemas([one.schema for one in opened])
        writer = FileWriter(tables.location, table, schema, without_nan=_without_nan(opened, schema))
        for rows in _row_groups(opened, schema):
            writer.write(with_empty_variant_parts(rows))
        written = replace(writer.close(), is_new_data=False)
    return [written] if written.rows else []


def _without_nan(files: Iterable[OpenFile], schema: pa.Schema) -> set[str]:
    """Return the float and double columns without a NaN in remaining rows; bounds of other writers ignore NaN."""
    found = {field.name for field in schema if pa.types.is_floating(field.type)}
    for file in files:
        names = [name for name in file.schema.names if name in found]
        for group in file.read_row_groups(names) if names else ():
            found -= {*names} - floating_columns_without_nan(group.rows)
    return found


def _row_groups(files: Iterable[OpenFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the remaining rows of files with the columns of a schema, joined to row groups of a usual size."""
    parts = [schema.empty_table()]
    for file in files:
        for group in file.read_row_groups():
            parts.append(group.rows)
            if sum(part.num_rows for part in parts) >= ROW_GROUP_ROWS:
                yield pa.concat_tables(parts, promote_options="default")
                parts = [schema.empty_table()]
    if len(parts) > 1:
        yield pa.concat_tables(parts, promote_options="default")


def write_remaining(
    tables: OpenTables, table: str, files: Iterable[tuple[TableFile, pa.BooleanArray]]
) -> Iterator[DataFile]:
    """Write the remaining rows of files, whose masks are true for the rows to remove; join those of small files."""
    parts: list[pa.Table] = []
    size = 0
    for file, gone in files:
        if gone.true_count == len(gone):
            continue
        parts.append(read_file(tables.location, table, file).filter(pc.invert(gone)))
        size += parts[-1].nbytes
        if size > MAX_JOINED_BYTES:
            yield from _write_parts(tables, table, parts)
            parts, size = [], 0
    if parts:
        yield from _write_parts(tables, table, parts)


def _write_parts(
    tables: OpenTables, table: str, parts: Sequence[pa.Table], cluster_by: Sequence[str] = ()
) -> list[DataFile]:
    rows = pa.concat_tables(parts, promote_options="default")
    if _has_key_column(tables, table):
        return write_rows(tables.location, table, rows, is_new_data=False, cluster_by=cluster_by)
    return [write_system_rows(tables.location, table, rows, is_new_data=False)]


def _has_key_column(tables: OpenTables, table: str) -> bool:
    return any(field.name == _KEY_COLUMN for field in tables.open(table).schema().fields)


def _least_key(tables: OpenTables, table: str, file: TableFile) -> bytes:
    with open_file(tables.location, table, file) as opened:
        return min((key for key in opened.key_ranges(_KEY_COLUMN).least if key is not None), default=b"")
