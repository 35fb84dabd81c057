"""Small files of tables joined, in commits that change no row: some after each batch, all by maintenance.

Rows of a space's table stay in the order of their keys, and files with neighbouring keys are joined. What is joined at
a time is bounded twice: in the files' own bytes, and in those that their rows take in memory, which may be a thousand
times as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.commit.epoch import LOW_CARDINALITY, in_order
from pipeline.write.rewrite import FILE_BYTES, write_rows
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import DataFile, keys_of, opened, write_file

JOIN_FILES = 32
"""Where a table has so many small files after a batch, they are joined:"""

LOOK_EVERY = 8
"""Commits of a table between two looks for small files, which read the list of its files."""

JOIN_BYTES = (1 << 20, 32 << 20)
"""first those below the first size, then those below the second, so that each byte is rewritten twice;"""

JOIN_AT_ONCE = 64 << 20
"""no more bytes than these at a time,"""

JOIN_IN_MEMORY = 2 * FILE_BYTES
"""and about no more in memory. A file that is large there is not joined, however small it is."""

LOOKED_AT = 4 * JOIN_FILES
"""Footers that are read for it after a batch, at most."""

COMPACT_BELOW = 32 << 20
"""Maintenance joins all files of fewer bytes."""

_KEY = "_key"


def is_look_due(version: int, added: int) -> bool:
    """Whether to look for small files of a table: now and then, or after many new files.

    Parameters
    ----------
    version : int
        The table's version after the batch.
    added : int
        Files that the batch added.

    """
    return added >= LOOK_EVERY or version % LOOK_EVERY == 0


def join_small_files(tables: OpenTables, table: str) -> int:
    """Join the small files of a table where there are many, and return its version."""
    files = tables.files(table)
    version, low = tables.version(table), 0
    for high in JOIN_BYTES:
        small = sorted((file for file in files if low <= file.size < high), key=lambda file: file.size)
        low = high
        if len(small) >= JOIN_FILES:
            chosen = next(_joinable(tables, table, small[:LOOKED_AT]), [])
            if chosen:
                removed = [(file, False) for file in chosen]
                version = tables.commit(table, _joined(tables, table, chosen), removed)
    return version


def compact(tables: OpenTables, table: str) -> int:
    """Join all small files of a table, and return how many were joined."""
    small = [file for file in tables.files(table) if file.size < COMPACT_BELOW]
    added: list[DataFile] = []
    removed: list[TableFile] = []
    for files in _neighbours(tables, table, small):
        added += _joined(tables, table, files)
        removed += files
    tables.commit(table, added, [(file, False) for file in removed])
    return len(removed)


def _neighbours(tables: OpenTables, table: str, files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield lists of two files or more that are joined, in the order of their least keys where they have keys."""
    ordered = list(files)
    if _has_keys(tables, table):
        ordered.sort(key=lambda file: _least_key(tables, table, file))
    yield from _joinable(tables, table, ordered)


def _joinable(tables: OpenTables, table: str, files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield lists of two files or more that are joined at a time, in their order."""
    found: list[TableFile] = []
    size = in_memory = 0
    for file in files:
        with opened(tables.place, table, file.path) as parquet:
            own = _bytes_in_memory(parquet)
        if own >= FILE_BYTES // 2:
            continue
        if found and (size + file.size > JOIN_AT_ONCE or in_memory + own > JOIN_IN_MEMORY):
            if len(found) > 1:
                yield found
            found, size, in_memory = [], 0, 0
        found.append(file)
        size, in_memory = size + file.size, in_memory + own
    if len(found) > 1:
        yield found


def _bytes_in_memory(parquet: pq.ParquetFile) -> int:
    """Return about how many bytes a file's rows take: those of its pages before they were compressed."""
    metadata = parquet.metadata
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def _has_keys(tables: OpenTables, table: str) -> bool:
    return any(field.name == _KEY for field in tables.open(table).schema().fields)


def _least_key(tables: OpenTables, table: str, file: TableFile) -> bytes:
    with opened(tables.place, table, file.path) as parquet:
        return min((key for key in keys_of(parquet, _KEY).least if key is not None), default=b"")


def _joined(tables: OpenTables, table: str, files: Sequence[TableFile]) -> list[DataFile]:
    parts = []
    for file in files:
        with opened(tables.place, table, file.path) as parquet:
            parts.append(parquet.read())
    rows = pa.concat_tables(parts, promote_options="default")
    if _has_keys(tables, table):
        return write_rows(tables.place, table, rows, is_new_data=False)
    dictionary = LOW_CARDINALITY.get(table, ())
    return [write_file(tables.place, table, in_order(table, rows), dictionary=dictionary, is_new_data=False)]
