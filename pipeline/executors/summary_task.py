"""What planning needs to know of the rows of some byte ranges, found where they are read: their numbers, and a sample.

A first pass over a log that does not fit the driver; it keeps nothing of the rows but the sample, which is bounded in
rows and in bytes: the driver holds the samples of all tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.executors.work import SyncSpaces, WatchedSpaces
from pipeline.plan.summary import Summary, join_summaries, summarize_rows
from schemas.xrow import XROW_ARROW
from sources.xlog.options import XlogOptions
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import ByteRange

SAMPLE_ROWS = 128
"""Of each batch of decoded rows, of 65,536 at most, so many are in the sample."""

SAMPLE_CELL_BYTES = 2 << 10
"""A tuple or key of more bytes is in the sample with its leading fields alone, other bytes are not at all."""


@dataclass(frozen=True)
class Sample:
    """A sample of a segment's rows; each row represents a number of bytes.

    Parameters
    ----------
    segment : int
    rows : pyarrow.RecordBatch
        `schemas.xrow.XROW_ARROW`, in the order of the log.
    weight : float
        Bytes that each row represents.

    """

    segment: int
    rows: pa.RecordBatch
    weight: float


@dataclass(frozen=True)
class RangeSummary:
    """What a byte range holds.

    Parameters
    ----------
    replicaset_uuid : str
    summary : Summary
    size : int
        Bytes of its decoded rows in memory.
    samples : tuple of Sample

    """

    replicaset_uuid: str
    summary: Summary
    size: int
    samples: tuple[Sample, ...]


def summarize_range(
    piece: ByteRange, options: XlogOptions, sync: SyncSpaces, watched: WatchedSpaces
) -> RangeSummary:
    """Return what a byte range holds.

    Parameters
    ----------
    piece : ByteRange
    options : XlogOptions
    sync : mapping of str to frozenset of int
        By replicaset uuid: spaces that are synchronous at some time in the batch.
    watched : mapping of str to frozenset of int
        By replicaset uuid: spaces whose rows the plan looks at.

    """
    segment = piece.segment
    uuid = segment.replicaset_uuid
    spaces = (sync.get(uuid, frozenset()), watched.get(uuid, frozenset()))
    parts: list[Summary] = []
    samples: list[Sample] = []
    size = 0
    draw = np.random.default_rng(piece.begin)
    for batch in read_range(piece, replace(options, with_replicaset=False)):
        parts.append(summarize_rows(batch, segment.segment, *spaces))
        size += batch.nbytes
        samples.append(_sample(batch, segment.segment, draw))
    return RangeSummary(segment.replicaset_uuid, join_summaries(parts), size, tuple(samples))


def _sample(batch: pa.RecordBatch, segment: int, draw: np.random.Generator) -> Sample:
    count = min(SAMPLE_ROWS, batch.num_rows)
    chosen = np.sort(draw.choice(batch.num_rows, count, replace=False))
    columns = [
        _shortened_cells(batch.column(field.name), chosen, is_array=field.name in ("tuple", "key"))
        if pa.types.is_binary(field.type)
        else batch.column(field.name).take(pa.array(chosen))
        for field in XROW_ARROW
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=XROW_ARROW)
    return Sample(segment, rows, batch.nbytes / count)


def _shortened_cells(column: pa.Array, chosen: NDArray[np.int64], *, is_array: bool) -> pa.Array:
    """Return some cells of a binary column; long ones shortened, or null where they are no array."""
    lengths = pc.binary_length(column).take(pa.array(chosen))
    if (pc.max(lengths).as_py() or 0) <= SAMPLE_CELL_BYTES:
        return column.take(pa.array(chosen))
    cells = [column[int(place)].as_buffer() for place in chosen]
    return pa.array(
        [
            cell.to_pybytes()
            if cell is not None and cell.size <= SAMPLE_CELL_BYTES
            else leading_fields(cell[:SAMPLE_CELL_BYTES].to_pybytes())
            if cell is not None and is_array
            else None
            for cell in cells
        ],
        pa.binary(),
    )


def leading_fields(data: bytes) -> bytes:
    """Return the fields of a MessagePack array that are whole in its first bytes, as an array of these."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(data)
    try:
        count = unpacker.read_array_header()
    except (msgpack.UnpackException, ValueError):
        return b"\x90"
    begin = end = unpacker.tell()
    whole = 0
    try:
        while whole < count:
            unpacker.skip()
            whole, end = whole + 1, unpacker.tell()
    except (msgpack.UnpackException, ValueError):
        pass  # the next field is cut
    head: bytes = msgpack.Packer().pack_array_header(whole)
    return head + data[begin:end]


def summaries_by_replicaset(found: Iterable[RangeSummary]) -> dict[str, Summary]:
    """Return the summary of each replicaset's ranges, which come in the order of its log."""
    parts: dict[str, list[Summary]] = {}
    for one in found:
        parts.setdefault(one.replicaset_uuid, []).append(one.summary)
    return {uuid: join_summaries(own) for uuid, own in parts.items()}
