"""Reads what a Parquet file of a table or of its log stores, with the rows that a deletion vector hides: for searches.

Rows that count are read by `table_files`.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

ROWS_AT_ONCE = 1 << 16


def stored_batches(fs: pafs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a Parquet file, of any schema."""
    with pq.ParquetFile(path, filesystem=fs) as file:
        yield from file.iter_batches(ROWS_AT_ONCE)
