"""Joins files of a table, and writes the remaining rows of files with removed rows. No other row changes.

Rows of a space's table stay in their order, and maintenance joins files with neighbouring keys.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.compaction.choose import SizedFile, groups_to_join, small_files, sparse_files
from pipeline.write.changes import write_rows
from pipeline.write.limits import MAX_JOINED_BYTES
from pipeline.write.system_rows import write_system_rows
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import DataFile
from warehouse.delta.table_files import TableFile, open_file, open_footer, read_file

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
    groups = [[file] for file in sparse]
    groups += groups_to_join(sized_files(tables, table, small))
    added: list[DataFile] = []
    for group in groups:
        added += write_joined(tables, table, group, cluster_by)
    removed = [file for group in groups for file in group]
    tables.commit(table, added, [(file, False) for file in removed])
    return len(removed)


def sized_files(tables: OpenTables, table: str, files: Iterable[TableFile]) -> Iterator[SizedFile]:
    """Yield files with the approximate sizes of their rows in memory: those of the uncompressed pages."""
    for file in files:
        footer = open_footer(tables.location, table, file)
        groups = (footer.row_group(number) for number in range(footer.num_row_groups))
        yield SizedFile(file, sum(group.total_byte_size for group in groups))


def write_joined(
    tables: OpenTables, table: str, files: Iterable[TableFile], cluster_by: Sequence[str] = ()
) -> list[DataFile]:
    """Write the rows of some files as new files."""
    parts = [read_file(tables.location, table, file) for file in files]
    return _write_parts(tables, table, parts, cluster_by)


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
