"""Encodes the rows of a log as *log cells*: rows of Spark that each hold a piece of a log as one Arrow IPC stream.

`pipeline.executors.cells.LOG_CELLS` has their columns. Spark moves, stores and makes again whole cells, so a row of the
log costs it no Python or Java object. A cell comes with what planning needs: the summary of its rows, and a sample of
them. On one machine the cells of a large batch do not hold their rows (`CellRows`): to read them again takes a fraction
of the time that Spark needs to keep them and to move them between processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.executors.cells import LOG_CELLS, binary_value, decode_cell, encode_cell, with_empty_rows
from pipeline.executors.log_piece import CELLS_PER_TASK, LogPiece
from pipeline.plan.rows.summary import Summary, summarize_rows
from schemas.errors import OffsetError
from schemas.xrow import XROW_ARROW
from sources.xlog.format.rows import FileColumns
from sources.xlog.options import XlogOptions
from sources.xlog.reader.file_buffer import base_name
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import ByteRange, Segment
from udfs.remap.replica_ids import RUNS, id_runs

MAX_DECODED_BYTES = 16 << 20
"""The approximate maximum size of a cell's rows in memory; a cell is smaller, since its rows are compressed."""

SAMPLE_ROWS = 128
"""The number of sampled rows of each cell."""

MAX_SAMPLED_VALUE_BYTES = 2 << 10
"""A sampled tuple or key above this size is cut to its leading fields; another binary value above it becomes null."""


_STORED_COLUMNS = [name for name in XROW_ARROW.names if name not in ("file", "instance_uuid")]
"""The columns of a cell's rows; the others have one value in all rows of a piece."""


@dataclass(frozen=True)
class CellDigest:
    """What planning needs of a cell's rows."""

    summary: Summary
    """As if no space were synchronous or watched. Its positions have the segment's number of the cell."""
    sample: pa.RecordBatch
    """A random sample of the rows (`schemas.xrow.XROW_ARROW`), in log order."""

    def encoded(self) -> bytes:
        """Return the digest as bytes."""
        return pickle.dumps(self)

    @staticmethod
    def decoded(data: bytes) -> CellDigest:
        """Return the digest that bytes are."""
        found = pickle.loads(data)
        assert isinstance(found, CellDigest)
        return found


def log_cells(
    ranges: Iterable[ByteRange],
    options: XlogOptions,
    task: int,
    *,
    counts_rows: bool = False,
    holds_rows: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of byte ranges as cells (`LOG_CELLS`), in log order.

    Args:
        task: The number of the task among those of the batch, in the order of the log.
        counts_rows: Whether each cell is followed by empty rows, so that there are as many rows of Spark as rows of the
            log. Spark shows their number as the input rows of a batch.
        holds_rows: Whether the cells hold their rows; if not, `CellRows` reads them again.
    """
    ordinal = task * CELLS_PER_TASK
    for byte_range in ranges:
        is_empty = True
        for rows in _pieces(byte_range, options):
            is_empty = False
            cell = _log_cell(byte_range, ordinal, rows, holds_rows=holds_rows)
            yield with_empty_rows(cell, rows.num_rows if counts_rows else 1)
            ordinal += 1
        if is_empty:  # says that the range was read
            nothing = pa.RecordBatch.from_pylist([], schema=XROW_ARROW)
            yield _log_cell(byte_range, ordinal, nothing, holds_rows=True)
            ordinal += 1


def _pieces(byte_range: ByteRange, options: XlogOptions) -> Iterator[pa.RecordBatch]:
    for batch in read_range(byte_range, replace(options, with_replicaset=False)):
        size = max(1, batch.num_rows * MAX_DECODED_BYTES // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, size):
            yield batch.slice(first, size)


def _log_cell(
    byte_range: ByteRange, ordinal: int, rows: pa.RecordBatch, *, holds_rows: bool
) -> pa.RecordBatch:
    segment = byte_range.segment
    instance = rows.column("instance_uuid")[0].as_py() if rows.num_rows else segment.instance_uuid
    piece = LogPiece.of(byte_range, instance, ordinal, rows.num_rows, rows.nbytes)
    digest = CellDigest(summarize_rows(rows, segment.number), _sample(rows, np.random.default_rng(ordinal)))
    cell = pa.nulls(1, pa.binary())
    if holds_rows:
        stored = pa.Table.from_batches([rows.select(_STORED_COLUMNS)])
        cell = binary_value(encode_cell(stored, compression="lz4"))
    columns = [
        *(pa.array([piece.encoded()]), _writers(rows)),
        *(pa.array([digest.encoded()], pa.binary()), cell),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_CELLS)


def _writers(rows: pa.RecordBatch) -> pa.ListArray:
    """Return one list: the runs of the rows (`udfs.remap.replica_ids.RUNS`)."""
    ids = pc.fill_null(rows.column("replica_id"), 0).to_numpy(zero_copy_only=False)
    lsns = pc.fill_null(rows.column("lsn"), 0).to_numpy(zero_copy_only=False)
    runs = [pa.array(column) for column in id_runs(ids, lsns)]
    values = pa.StructArray.from_arrays(runs, fields=list(RUNS.value_type))
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values, type=RUNS)


def rows_of_cell(piece: LogPiece, cell: pa.Buffer) -> list[pa.RecordBatch]:
    """Decode the rows of a cell (`schemas.xrow.XROW_ARROW`)."""
    stored = decode_cell(cell)
    constant = FileColumns(base_name(piece.file), piece.instance)
    return [
        pa.RecordBatch.from_arrays(
            [
                constant.column(name, batch.num_rows) if name in constant else batch.column(name)
                for name in XROW_ARROW.names
            ],
            schema=XROW_ARROW,
        )
        for batch in stored.to_batches()
    ]


@dataclass(frozen=True)
class CellLog:
    """The log of a batch's cells, from which their rows can be read again."""

    segments: Mapping[int, Segment]
    """By number."""
    options: XlogOptions


class CellRows:
    """Returns the rows of a task's cells, one cell after another in log order.

    Rows that a cell does not hold are read from the log. Those of a byte range are read once, since its cells follow
    each other.
    """

    def __init__(self, log: CellLog) -> None:
        self._log = log
        self._range: tuple[int, int, int] | None = None
        self._rest: Iterator[pa.RecordBatch] = iter(())

    def of(self, piece: LogPiece, cell: pa.Buffer | None) -> list[pa.RecordBatch]:
        """Return the rows of a cell (`schemas.xrow.XROW_ARROW`).

        Raises:
            OffsetError: The log has other rows than the cell was made of.
        """
        if cell is not None:
            return rows_of_cell(piece, cell)
        asked = (piece.segment, piece.position, piece.end)
        if self._range != asked:
            segment = self._log.segments[piece.segment]
            byte_range = ByteRange(segment, piece.position, piece.end, piece.at_block_starts)
            self._range, self._rest = asked, _pieces(byte_range, self._log.options)
        rows = next(self._rest, None)
        if rows is None or (rows.num_rows, rows.nbytes) != (piece.rows, piece.bytes):
            raise OffsetError(
                "it has other rows than when the batch was planned",
                file=piece.file,
                source=piece.source,
                advice="a file was replaced while the batch was processed: start again, which repeats the batch",
            )
        return [rows]


def _sample(rows: pa.RecordBatch, generator: np.random.Generator) -> pa.RecordBatch:
    count = min(SAMPLE_ROWS, rows.num_rows)
    chosen = (
        np.sort(generator.choice(rows.num_rows, count, replace=False)) if count else np.zeros(0, np.int64)
    )
    columns = [
        _shortened_values(rows.column(field.name), chosen, is_array=field.name in ("tuple", "key"))
        if pa.types.is_binary(field.type)
        else rows.column(field.name).take(pa.array(chosen))
        for field in XROW_ARROW
    ]
    return pa.RecordBatch.from_arrays(columns, schema=XROW_ARROW)


def _shortened_values(column: pa.Array, chosen: NDArray[np.int64], *, is_array: bool) -> pa.Array:
    """Return chosen values of a binary column; a long array is cut to its first fields, other long values are null."""
    lengths = pc.binary_length(column).take(pa.array(chosen))
    if (pc.max(lengths).as_py() or 0) <= MAX_SAMPLED_VALUE_BYTES:
        return column.take(pa.array(chosen))
    cells = [column[int(index)].as_buffer() for index in chosen]
    return pa.array(
        [
            cell.to_pybytes()
            if cell is not None and cell.size <= MAX_SAMPLED_VALUE_BYTES
            else leading_fields(cell[:MAX_SAMPLED_VALUE_BYTES].to_pybytes())
            if cell is not None and is_array
            else None
            for cell in cells
        ],
        pa.binary(),
    )


def leading_fields(data: bytes) -> bytes:
    """Return a MessagePack array of those leading fields that a truncated array has completely."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    try:
        count = unpacker.read_array_header()
    except (msgpack.UnpackException, ValueError):
        return b"\x90"
    begin = end = unpacker.tell()
    complete = 0
    try:
        while complete < count:
            unpacker.skip()
            complete, end = complete + 1, unpacker.tell()
    except (msgpack.UnpackException, ValueError):
        pass  # the next field is truncated
    head: bytes = msgpack.Packer().pack_array_header(complete)
    return head + data[begin:end]
