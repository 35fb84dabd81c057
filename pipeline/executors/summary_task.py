"""The first pass over the logs of a distributed batch: a summary and a sample of the rows of each byte range.

The driver plans with the summaries. It keeps the samples of all tasks, so these are limited in rows and in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.plan.rows.summary import Summary, concat_summaries, summarize_rows
from pipeline.work import SyncSpaces, WatchedSpaces
from schemas.xrow import XROW_ARROW
from sources.xlog.options import XlogOptions
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import ByteRange

SAMPLE_ROWS = 128
"""The number of sampled rows of each record batch, which has up to 65,536 rows."""

MAX_SAMPLED_VALUE_BYTES = 2 << 10
"""A sampled tuple or key above this size is cut to its leading fields; another binary value above it becomes null."""


@dataclass(frozen=True)
class Sample:
    """A random sample of a segment's rows."""

    segment: int
    rows: pa.RecordBatch
    """`schemas.xrow.XROW_ARROW`, in log order."""
    row_weight: float
    """The bytes of the segment that each sampled row stands for."""


@dataclass(frozen=True)
class RangeSummary:
    """The summary of a byte range, and samples of its rows."""

    replicaset_uuid: str
    summary: Summary
    decoded_bytes: int
    """The size of its decoded rows in memory."""
    samples: tuple[Sample, ...]


def summarize_range(
    byte_range: ByteRange, options: XlogOptions, sync: SyncSpaces, watched: WatchedSpaces
) -> RangeSummary:
    """Summarize and sample the rows of a byte range.

    Args:
        sync: By replicaset uuid, the ids of spaces that are synchronous at some time in the batch.
        watched: By replicaset uuid, the ids of further spaces whose rows affect the plan.
    """
    segment = byte_range.segment
    uuid = segment.replicaset_uuid
    spaces = (sync.get(uuid, frozenset()), watched.get(uuid, frozenset()))
    parts: list[Summary] = []
    samples: list[Sample] = []
    size = 0
    generator = np.random.default_rng(byte_range.begin)
    for batch in read_range(byte_range, replace(options, with_replicaset=False)):
        parts.append(summarize_rows(batch, segment.number, *spaces))
        size += batch.nbytes
        samples.append(_sample(batch, segment.number, generator))
    return RangeSummary(segment.replicaset_uuid, concat_summaries(parts), size, tuple(samples))


def _sample(batch: pa.RecordBatch, segment: int, generator: np.random.Generator) -> Sample:
    count = min(SAMPLE_ROWS, batch.num_rows)
    chosen = np.sort(generator.choice(batch.num_rows, count, replace=False))
    columns = [
        _shortened_values(batch.column(field.name), chosen, is_array=field.name in ("tuple", "key"))
        if pa.types.is_binary(field.type)
        else batch.column(field.name).take(pa.array(chosen))
        for field in XROW_ARROW
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=XROW_ARROW)
    return Sample(segment, rows, batch.nbytes / count)


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


def summaries_by_replicaset(range_summaries: Iterable[RangeSummary]) -> dict[str, Summary]:
    """Join the summaries of byte ranges, which are in log order; return one for each replicaset, by its uuid."""
    parts: dict[str, list[Summary]] = {}
    for one in range_summaries:
        parts.setdefault(one.replicaset_uuid, []).append(one.summary)
    return {uuid: concat_summaries(own) for uuid, own in parts.items()}
