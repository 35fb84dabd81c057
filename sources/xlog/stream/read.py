"""Reads the byte ranges of one task, and yields Arrow batches with the columns that the options select.

There is no state: the batches depend only on the range, the options and the file.
"""

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import XlogError
from schemas.xrow import REPLICASET_FIELDS
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import Vclock, vclock_maximum
from sources.xlog.options import XlogOptions
from sources.xlog.reader import reader
from sources.xlog.stream.origins import unknown_instance_error
from sources.xlog.stream.segment import ByteRange, OriginSpan, Segment
from sources.xlog.stream.vinyl import as_snapshot_rows

logger = logging.getLogger(__name__)

RUN_PART_BYTES = 256 << 10
"""Number of bytes of a vinyl run that are decoded at a time; more if one block is longer."""


def _lsn_bound(segment: Segment, options: XlogOptions) -> Vclock | None:
    """Return the vclock above which rows are read, or None: that of the snapshot read before, or `fromVclock`."""
    if segment.is_snapshot or not segment.is_log or options.from_vclock is None:
        return segment.snapshot_vclock
    return (
        options.from_vclock
        if segment.snapshot_vclock is None
        else vclock_maximum(segment.snapshot_vclock, options.from_vclock)
    )


def _selection_of_part(segment: Segment, options: XlogOptions, span: OriginSpan | None) -> Selection:
    logged = segment.is_log and not segment.is_snapshot
    return Selection(
        # Rows of a vinyl run do not name their space.
        space_ids=options.space_ids if segment.space_id is None else None,
        replica_ids=None if span is None else span.wanted_ids | span.unknown_ids,
        from_vclock=_lsn_bound(segment, options),
        to_vclock=options.to_vclock if logged else None,
        from_timestamp=options.from_timestamp if logged else None,
        to_timestamp=options.to_timestamp if logged else None,
    )


def parts_by_span(byte_range: ByteRange) -> Iterator[tuple[int, int, OriginSpan | None]]:
    """Split a range where a replica id begins to mean another instance; yield (begin, end, span) for each part.

    The span has the instance of each replica id in the part. Only a whitelist of instances needs it: without one, the
    range is one part and its span None.
    """
    spans = byte_range.segment.origin_spans
    if spans is None:
        yield byte_range.begin, byte_range.end, None
        return
    ends = [span.begin for span in spans[1:]] + [byte_range.end]
    for span, end in zip(spans, ends, strict=True):
        first, last = max(byte_range.begin, span.begin), min(byte_range.end, end)
        if first < last:
            yield first, last, span


def _refuse_unknown_ids(batch: pa.RecordBatch, span: OriginSpan, segment: Segment) -> None:
    """Raise an error if a row has an unknown instance, because then it is unknown whether the row is wanted."""
    ids = pa.array(sorted(span.unknown_ids), pa.int32())
    found = batch.filter(pc.is_in(batch["replica_id"], value_set=ids))
    if found.num_rows:
        raise unknown_instance_error(
            found["replica_id"][0].as_py(),
            source=segment.source,
            file=segment.file,
            offset=found["position"][0].as_py(),
            advice="keep the snapshot from before this log in the directory, or read without origins",
        )


def _without_other_batches(segment: Segment, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Remove the rows of the segment's first and last block that other micro-batches read."""
    if segment.skipped_rows:
        is_first = pc.equal(batch["position"], segment.begin)
        batch = batch.filter(pc.invert(pc.and_(is_first, pc.less(batch["row"], segment.skipped_rows))))
    if segment.partial_last_block is not None:
        position, rows = segment.partial_last_block
        is_last = pc.equal(batch["position"], position)
        batch = batch.filter(pc.invert(pc.and_(is_last, pc.greater_equal(batch["row"], rows))))
    return batch


def _with_replicaset_columns(batch: pa.RecordBatch, segment: Segment) -> pa.RecordBatch:
    values = (segment.replicaset_uuid, segment.source, segment.number)
    front = [
        pa.repeat(pa.scalar(value, kind), batch.num_rows)
        for value, (_, kind) in zip(values, REPLICASET_FIELDS, strict=True)
    ]
    names = [name for name, _ in REPLICASET_FIELDS] + batch.schema.names
    return pa.RecordBatch.from_arrays(front + batch.columns, names=names)


def _parts_to_read(
    byte_range: ByteRange, filesystem: pa.fs.FileSystem, path: str, options: XlogOptions
) -> Iterator[tuple[int, int, OriginSpan | None]]:
    """Yield (begin, end, span) for the parts of a range in the order of reading; parts of a vinyl run are in reverse.

    All rows of a part of a run are in memory at a time, so that they can be reversed. If the header of a block is
    damaged, the starts of the parts are found by checksums, and reading the part with the damage reports it.
    """
    if byte_range.segment.space_id is None or not byte_range.at_block_starts:
        yield from parts_by_span(byte_range)
        return
    try:
        limit = options.max_block_bytes
        inner = reader.block_starts(
            filesystem, path, byte_range.begin, byte_range.end, RUN_PART_BYTES, limit
        )[1:]
    except XlogError:
        inner = list(_verified_block_starts(byte_range, filesystem, path, options))
    for begin, end in reversed(list(pairwise([byte_range.begin, *inner, byte_range.end]))):
        yield begin, end, None


def _verified_block_starts(
    byte_range: ByteRange, filesystem: pa.fs.FileSystem, path: str, options: XlogOptions
) -> Iterator[int]:
    """Yield block starts inside a range, at least `RUN_PART_BYTES` apart; each is found by magic and checksum."""
    limit, position = options.max_block_bytes, byte_range.begin
    while position + RUN_PART_BYTES < byte_range.end:
        try:
            near = position + RUN_PART_BYTES
            position = reader.first_block_start(
                filesystem, path, near, end=byte_range.end, max_block_bytes=limit
            )
        except XlogError:  # false starts: the reader of the rest reports them
            return
        if position < byte_range.end:
            yield position


def read_range(byte_range: ByteRange, options: XlogOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the blocks that start in a range, without those that the options leave out.

    Raises:
        XlogMissingError: If the file was removed since the batch was planned.
        XlogError: If the file is damaged and `mode` is FAILFAST.
        UnknownInstanceError: If there is a whitelist, and a row has a replica id that is not in `_cluster`.
    """
    segment, skipped = byte_range.segment, reader.SkippedDamage()
    filesystem, path = reader.open_fs(segment.path)
    is_in_slices = None if segment.slices is None else segment.slices.selector(segment.file)
    for begin, end, span in _parts_to_read(byte_range, filesystem, path, options):
        # If the plan knows the blocks, an incomplete one is damage, in a growing file too.
        rows: Iterable[pa.RecordBatch] = reader.read_rows(
            filesystem,
            path,
            begin,
            end,
            _selection_of_part(segment, options, span),
            options.mode,
            at_block_starts=byte_range.at_block_starts,
            closed=byte_range.at_block_starts or segment.is_closed,
            # Behind its last complete block a log may have the beginning of one that its server was killed in.
            next_block_before=segment.end,
            skipped=skipped,
            limits=reader.Limits(max_block_bytes=options.max_block_bytes),
        )
        if segment.space_id is not None:
            rows = as_snapshot_rows(rows, segment.space_id, is_in_slices)
        for batch in map(partial(_without_other_batches, segment), rows):
            if span is not None:
                _refuse_unknown_ids(batch, span, segment)
            yield _with_replicaset_columns(batch, segment) if options.with_replicaset else batch
    if skipped.damaged_parts:
        logger.warning(
            "%s: %d damaged parts, %d bytes left out: %s",
            segment.path,
            skipped.damaged_parts,
            skipped.bytes,
            dict(skipped.reasons),
        )
