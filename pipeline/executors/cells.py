"""Rows in Spark's exchange: Arrow IPC streams in binary cells. Spark moves bytes and never sees a row."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SPARK_SCHEMA = "bucket int, place bigint, data binary"
"""Of the exchange, as Spark names it."""

CELLS = pa.schema([("bucket", pa.int32()), ("place", pa.int64()), ("data", pa.binary())])
"""`bucket`: the task that gets a cell; `place`: cells of one bucket are put in its order."""

REPORT = -1
"""The place of a cell that is no rows but what a task reports (`report_cell`)."""

CELL_BYTES = 4 << 20
"""A cell has about so many bytes at most: Spark copies each several times."""

TASK_CELLS = 1 << 24
"""A task makes fewer cells than these."""


def decode_cell(cell: pa.Buffer) -> pa.Table:
    """Return the rows of a cell; they share its memory."""
    return pa.ipc.open_stream(cell).read_all()


def encode_cell(rows: pa.Table) -> pa.Buffer:
    """Return rows as a cell."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def cells_by_bucket(rows: pa.Table, buckets: NDArray[np.int32], place: int) -> Iterator[pa.RecordBatch]:
    """Yield rows as cells by bucket, each bucket's in their order.

    Parameters
    ----------
    rows : pyarrow.Table
    buckets : int32[rows]
        -1 for a row that goes nowhere.
    place : int
        Of the first cell; each cell has the next one.

    """
    order = np.argsort(buckets, kind="stable")
    sorted_buckets = buckets[order]
    whole = rows.take(pa.array(order)).combine_chunks()
    for bucket in np.unique(sorted_buckets[sorted_buckets >= 0]):
        begin, end = np.searchsorted(sorted_buckets, [bucket, bucket + 1])
        own = whole.slice(begin, end - begin)
        size = max(1, own.num_rows * CELL_BYTES // max(own.nbytes, 1))
        for first in range(0, own.num_rows, size):
            yield _cell(int(bucket), place, encode_cell(own.slice(first, size)))
            place += 1


def report_cell(bucket: int, report: Any) -> pa.RecordBatch:
    """Return what a task reports as a cell, which a task of the next stage hands on."""
    return _cell(bucket, REPORT, pa.py_buffer(pickle.dumps(report)))


def _cell(bucket: int, place: int, data: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    cell = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, data])
    columns = [pa.array([bucket], pa.int32()), pa.array([place], pa.int64()), cell]
    return pa.RecordBatch.from_arrays(columns, schema=CELLS)


def decode_reports(cells: Iterable[bytes]) -> list[Any]:
    """Return what tasks reported."""
    return [pickle.loads(cell) for cell in cells]
