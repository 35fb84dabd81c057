"""Joins small files of tables in commits that change no row: some after a batch, all of them by maintenance.

Rows of a space's table stay in key order, and maintenance joins files with neighbouring keys. The files that are joined
at a time have two limits: their size, and the size of their rows in memory, which may be a thousand times larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.write.system_rows import write_system_rows
from pipeline.write.tables import FILE_BYTES, write_rows
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import DataFile, keys_of, opened

MIN_FILES_TO_JOIN = 32
"""After a batch, small files of a table are joined if there are at least this many."""

CHECK_EVERY_COMMITS = 8
"""After a batch, the list of a table's files is checked if this many commits or new files have come."""

SIZE_CLASS_BYTES = (1 << 20, 32 << 20)
"""Files below the first size are joined with each other, and files between the two sizes too. So each byte is rewritten
at most twice."""

MAX_JOINED_BYTES = 64 << 20
"""The maximum size of the files that are joined at a time, in bytes."""

MAX_JOINED_MEMORY_BYTES = 2 * FILE_BYTES
"""The approximate maximum size in memory of the rows of files that are joined at a time. A file whose rows have half of
`FILE_BYTES` in memory is never joined."""

MAX_FOOTERS_READ = 4 * MIN_FILES_TO_JOIN
"""The maximum number of footers that are read after a batch to choose files."""

COMPACT_BELOW_BYTES = 32 << 20
"""Maintenance joins all files of fewer bytes."""

_KEY_COLUMN = "_key"


def is_join_due(version: int, added_files: int) -> bool:
    """Return whether to call `join_small_files` after a batch: after every few commits, or after many new files.

    Args:
        version: The table's version after the batch.
        added_files: The number of files that the batch added.
    """
    return added_files >= CHECK_EVERY_COMMITS or version % CHECK_EVERY_COMMITS == 0


def join_small_files(tables: OpenTables, table: str) -> int:
    """Join small files of a table if there are many, and return its version."""
    files = tables.files(table)
    version, low = tables.version(table), 0
    for high in SIZE_CLASS_BYTES:
        small = sorted((file for file in files if low <= file.size < high), key=lambda file: file.size)
        low = high
        if len(small) >= MIN_FILES_TO_JOIN:
            chosen = next(_groups_to_join(tables, table, small[:MAX_FOOTERS_READ]), [])
            if chosen:
                removed = [(file, False) for file in chosen]
                version = tables.commit(table, _write_joined(tables, table, chosen), removed)
    return version


def compact(tables: OpenTables, table: str) -> int:
    """Join all small files of a table, and return the number of joined files."""
    small = [file for file in tables.files(table) if file.size < COMPACT_BELOW_BYTES]
    if _has_key_column(tables, table):
        small.sort(key=lambda file: _least_key(tables, table, file))
    added: list[DataFile] = []
    removed: list[TableFile] = []
    for files in _groups_to_join(tables, table, small):
        added += _write_joined(tables, table, files)
        removed += files
    tables.commit(table, added, [(file, False) for file in removed])
    return len(removed)


def _groups_to_join(tables: OpenTables, table: str, files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Divide files, in their order, into groups within the limits; yield the groups of at least two files."""
    found: list[TableFile] = []
    size = in_memory = 0
    for file in files:
        with opened(tables.location, table, file.path) as parquet:
            memory_bytes = _bytes_in_memory(parquet)
        if memory_bytes >= FILE_BYTES // 2:
            continue
        if found and (
            size + file.size > MAX_JOINED_BYTES or in_memory + memory_bytes > MAX_JOINED_MEMORY_BYTES
        ):
            if len(found) > 1:
                yield found
            found, size, in_memory = [], 0, 0
        found.append(file)
        size, in_memory = size + file.size, in_memory + memory_bytes
    if len(found) > 1:
        yield found


def _bytes_in_memory(parquet: pq.ParquetFile) -> int:
    """Return the approximate size of a file's rows in memory: that of its uncompressed pages."""
    metadata = parquet.metadata
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def _has_key_column(tables: OpenTables, table: str) -> bool:
    return any(field.name == _KEY_COLUMN for field in tables.open(table).schema().fields)


def _least_key(tables: OpenTables, table: str, file: TableFile) -> bytes:
    with opened(tables.location, table, file.path) as parquet:
        return min((key for key in keys_of(parquet, _KEY_COLUMN).least if key is not None), default=b"")


def _write_joined(tables: OpenTables, table: str, files: Sequence[TableFile]) -> list[DataFile]:
    parts = []
    for file in files:
        with opened(tables.location, table, file.path) as parquet:
            parts.append(parquet.read())
    rows = pa.concat_tables(parts, promote_options="default")
    if _has_key_column(tables, table):
        return write_rows(tables.location, table, rows, is_new_data=False)
    return [write_system_rows(tables.location, table, rows, is_new_data=False)]
