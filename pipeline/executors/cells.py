"""Encodes rows for Spark as *cells*: each is an Arrow IPC stream, which Spark only stores and moves.

*Log cells* have the rows of the log, as the streaming source yields them; the cells of the exchange (shuffle) have
keyed rows, or a task's report.
"""

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.remap.replica_ids import RUNS, RUNS_IN_SPARK

SPARK_SCHEMA = "partition int, sort_key bigint, data binary"
"""The schema of the exchange, in Spark's notation."""

CELL_SCHEMA = pa.schema([("partition", pa.int32()), ("sort_key", pa.int64()), ("data", pa.binary())])
"""`partition`: the task that receives a cell; `sort_key`: its order in the partition; `data`: the Arrow IPC stream."""

LOG_CELLS = pa.schema(
    [("piece", pa.string()), ("writers", RUNS), ("digest", pa.binary()), ("rows", pa.binary())]
)
"""Of each log cell: what piece of which log it has (the JSON text of a `pipeline.executors.log_piece.LogPiece`), the
replica ids that wrote its rows, a `CellDigest`, and the rows as an Arrow IPC stream. The columns are few because each
row of the log is a row of Spark: those without a cell are null."""

LOG_CELLS_SPARK_SCHEMA = f"piece string, writers {RUNS_IN_SPARK}, digest binary, rows binary"
"""`LOG_CELLS` in Spark's notation."""

REPORT_SORT_KEY = -1
"""The `sort_key` of a cell with a task's report instead of rows (`report_cell`)."""

MAX_CELL_BYTES = 4 << 20
"""The approximate maximum size of a cell: Spark copies each one several times."""


def decode_cell(cell: pa.Buffer) -> pa.Table:
    """Decode the rows of a cell; those that are not compressed share its memory."""
    return pa.ipc.open_stream(cell, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()


def encode_cell(rows: pa.Table, compression: str | None = None) -> pa.Buffer:
    """Encode rows as a cell, compressed or not; `decode_cell` reads both."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def binary_value(data: pa.Buffer) -> pa.BinaryArray:
    """Return a binary array with one value, which shares the memory of the data."""
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, data])


def with_empty_rows(cell: pa.RecordBatch, row_count: int) -> pa.RecordBatch:
    """Return a log cell (`LOG_CELLS`), and empty rows after it, so that there are `row_count` rows, or one."""
    if row_count <= 1:
        return cell
    columns = [pa.concat_arrays([one, pa.nulls(row_count - 1, one.type)]) for one in cell.columns]
    return pa.RecordBatch.from_arrays(columns, schema=cell.schema)


def cells_by_partition(
    rows: pa.Table, partitions: NDArray[np.int32], sort_key: int
) -> Iterator[pa.RecordBatch]:
    """Divide rows by partition and yield them as cells, each partition's rows in their original order."""
    order = np.argsort(partitions, kind="stable")
    sorted_partitions = partitions[order]
    whole = rows.take(pa.array(order)).combine_chunks()
    for partition in np.unique(sorted_partitions[sorted_partitions >= 0]):
        begin, end = np.searchsorted(sorted_partitions, [partition, partition + 1])
        own = whole.slice(begin, end - begin)
        size = max(1, own.num_rows * MAX_CELL_BYTES // max(own.nbytes, 1))
        for first in range(0, own.num_rows, size):
            yield _cell(int(partition), sort_key, encode_cell(own.slice(first, size)))
            sort_key += 1


def report_cell(partition: int, report: Any) -> pa.RecordBatch:
    """Return a cell with a task's pickled report; a task of the next stage passes it on to the driver."""
    return _cell(partition, REPORT_SORT_KEY, pa.py_buffer(pickle.dumps(report)))


def _cell(partition: int, sort_key: int, data: pa.Buffer) -> pa.RecordBatch:
    columns = [pa.array([partition], pa.int32()), pa.array([sort_key], pa.int64()), binary_value(data)]
    return pa.RecordBatch.from_arrays(columns, schema=CELL_SCHEMA)


def decode_reports(cells: Iterable[bytes]) -> list[Any]:
    """Unpickle the tasks' reports in the `data` of cells."""
    return [pickle.loads(cell) for cell in cells]
