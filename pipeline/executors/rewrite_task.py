"""The third stage of a distributed batch: files with removed rows are written again without them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.encode.columns import TableEncoding
from pipeline.write.changes import reencode_rows, remaining_rows, write_rows
from pipeline.write.limits import FILE_BYTES
from warehouse.delta.data_files import DataFile
from warehouse.delta.deletion_vectors import RowNumbers
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile

RowBitmap = NDArray[np.uint8]
"""The rows of a file to remove, as bits (`numpy.packbits`)."""

REWRITE_TASK_BYTES = 32 << 20
"""A task rewrites files of up to this many bytes together, or one larger file."""


@dataclass(frozen=True)
class RewriteWork:
    """The files of one table that one task rewrites."""

    table: str
    files: Sequence[tuple[TableFile, RowBitmap]]
    """Each file, with a bitmap of its rows to remove (`numpy.packbits`)."""
    encoding: TableEncoding | None = None
    """The new encoding, if all columns of the table are encoded again."""
    cluster_by: tuple[str, ...] = ()


def rewrite_tasks(
    removed: Mapping[str, Mapping[TableFile, RowBitmap]],
    reencoded: Mapping[str, TableEncoding],
    orders: Mapping[str, tuple[str, ...]],
) -> Iterator[RewriteWork]:
    """Divide the files to rewrite into tasks; `orders` has the `cluster_by` of the tables."""
    for table, files in removed.items():
        own: list[tuple[TableFile, RowBitmap]] = []
        size = 0
        for file, bits in files.items():
            if own and size + file.size > REWRITE_TASK_BYTES:
                yield RewriteWork(table, own, reencoded.get(table), orders.get(table, ()))
                own, size = [], 0
            own.append((file, bits))
            size += file.size
        if own:
            yield RewriteWork(table, own, reencoded.get(table), orders.get(table, ()))


def run_rewrite_task(location: WarehouseLocation, work: RewriteWork) -> list[DataFile]:
    """Rewrite some files without their removed rows, and return the new files.

    Rows of several files are joined into files of up to `FILE_BYTES`, counted in memory, not by compressed size.
    """
    added: list[DataFile] = []
    parts: list[pa.Table] = []
    size = 0
    for file, bits in work.files:
        removed = row_numbers(bits)
        rest = remaining_rows(location, work.table, file, removed)
        if parts and size + rest.nbytes > FILE_BYTES:
            added += _write(location, work, parts)
            parts, size = [], 0
        parts.append(rest if work.encoding is None else reencode_rows(rest, work.encoding))
        size += rest.nbytes
    return added + _write(location, work, parts)


def _write(location: WarehouseLocation, work: RewriteWork, parts: Sequence[pa.Table]) -> list[DataFile]:
    rows = pa.concat_tables(parts, promote_options="default")
    return write_rows(location, work.table, rows, cluster_by=work.cluster_by)


def row_numbers(bits: RowBitmap) -> RowNumbers:
    """Return the numbers of the rows that a bitmap has."""
    return np.flatnonzero(np.unpackbits(bits)).astype(np.int64)
