"""Reads what a Parquet file of a table or of its log stores, with the rows that a deletion vector hides: for searches.

Rows that count are read by `table_files`.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_AT_ONCE = 1 << 16


def stored_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a local Parquet file, of any schema."""
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(ROWS_AT_ONCE)
