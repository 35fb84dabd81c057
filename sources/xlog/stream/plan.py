"""Splits files into segments, and segments into byte ranges for tasks: pure functions that `batch` calls.

For each replicaset, a batch reads the files from the start entry to the end entry. If the start is in a snapshot, the
batch reads the snapshot first, then the logs, beginning with the newest log whose header VClock is at most the
snapshot's vclock. The part of each file that is read is one `Segment`, and a task gets byte ranges of segments. A range
has the blocks that *start* in it, so every block belongs to exactly one task, however a segment is split.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from schemas.errors import XlogTruncatedError
from sources.xlog.directory.listing import FileEnd, LogFile
from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.directory.source import Source
from sources.xlog.format.vclock import Vclock, is_at_most
from sources.xlog.stream.segment import ByteRange, LogGap, Segment

MIN_RANGE_BYTES = 1 << 20
"""`minPartitions` makes no task smaller than this, in bytes."""


@dataclass(frozen=True)
class ReplicasetFiles:
    """The files that a batch reads of one replicaset."""

    replicaset_uuid: str
    source: Source
    """The leader of the replicaset."""
    files: tuple[LogFile, ...]
    """From the file of `start` to the file of `end`."""
    ends: tuple[FileEnd, ...]
    """The end of each file but the last one."""
    gaps: tuple[LogGap | None, ...]
    """For each file the gap before it, or None."""
    start: OffsetEntry
    end: OffsetEntry
    """Start and end of the batch."""


def snapshot_vclock_for_file(file: LogFile, snapshot_vclock: Vclock | None) -> Vclock | None:
    """Return the vclock `snapshot_vclock`, or None if no row of the file is at or below it."""
    return (
        None
        if snapshot_vclock is None or file.is_snapshot or is_at_most(snapshot_vclock, file.vclock)
        else snapshot_vclock
    )


def snapshot_vclock_after(entry: OffsetEntry, first: LogFile) -> Vclock | None:
    """Return the vclock up to which rows of logs are left out, because a snapshot has them.

    It is that of the first file to read, if this is a snapshot, otherwise `OffsetEntry.snapshot_vclock`.
    """
    return (
        {i: n for i, n in sorted(first.vclock.items()) if n} if first.is_snapshot else entry.snapshot_vclock
    )


def segments_of(files_read: ReplicasetFiles) -> Iterator[Segment]:
    """Yield the segments of one replicaset in the order of its log, one for each file that has bytes to read.

    The gap before a file without a segment is a part of the next segment's gap (`Segment.gap`).

    Raises:
        XlogTruncatedError: If a file is shorter than the position already read.
    """
    snapshot_vclock = snapshot_vclock_after(files_read.start, files_read.files[0])
    at, until = files_read.start.instant, files_read.end.instant
    skipped = at.rows_passed if at is not None and at.is_stream_at_point else 0
    is_cut = until is not None and until.is_stream_at_point and until.rows_passed > 0
    last = until.block_end if until is not None and is_cut else files_read.end.position
    ends = (*(end.position for end in files_read.ends), last)
    missing: LogGap | None = None
    for index, (file, end, gap) in enumerate(zip(files_read.files, ends, files_read.gaps, strict=True)):
        begin = max(file.header_bytes, files_read.start.position if index == 0 else 0)
        if gap is not None:
            missing = gap if missing is None else LogGap(missing.end_of_previous, gap.start_of_next)
        if index == 0 and files_read.start.position > max(end, file.header_bytes):
            raise shorter_file_error(file, files_read.start, files_read.source.name)
        is_last = index == len(files_read.ends)
        partial_last_block = None
        if is_last and until is not None and is_cut:
            partial_last_block = (max(file.header_bytes, files_read.end.position), until.rows_passed)
        if end > begin and partial_last_block != (begin, skipped if index == 0 else 0):
            yield Segment(
                replicaset_uuid=files_read.replicaset_uuid,
                source=files_read.source.name,
                path=file.path,
                file=file.name,
                number=0,
                begin=begin,
                end=end,
                is_snapshot=file.is_snapshot,
                is_closed=file.is_snapshot or index < len(files_read.ends),
                vclock=file.vclock,
                instance_uuid=file.instance_uuid,
                gap=missing,
                snapshot_vclock=snapshot_vclock_for_file(file, snapshot_vclock),
                is_generation=file.is_snapshot
                and (index > 0 or files_read.start.snapshot_vclock is not None),
                is_log=file.is_log,
                skipped_rows=skipped if index == 0 else 0,
                partial_last_block=partial_last_block,
            )
            missing = None


def shorter_file_error(file: LogFile, entry: OffsetEntry, source: str) -> XlogTruncatedError:
    """Return the error for a file that ends before a position that the stream has passed."""
    return XlogTruncatedError(
        "the file has become shorter than what was read of it",
        file=file.name,
        offset=entry.position,
        source=source,
        advice="the server or a copy has replaced it: start again from a snapshot",
    )


def with_segment_numbers(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the segments numbered by their order in the batch, from 0 on."""
    return tuple(replace(segment, number=index) for index, segment in enumerate(segments))


def logs_within(
    header_vclocks: Sequence[Vclock], after: Vclock | None, upto: Vclock | None
) -> tuple[int, int]:
    """Return the slice (begin, end) of the logs that may have rows above `after` and at most at `upto`.

    Args:
        header_vclocks: The header VClocks of consecutive logs. The rows of a log are above its own VClock, and at most
            at that of the next log.
        after, upto: The bounds of the rows; None means no bound.
    """
    first, last = 0, len(header_vclocks)
    while after is not None and first + 1 < last and is_at_most(header_vclocks[first + 1], after):
        first += 1
    while upto is not None and last > first and is_at_most(upto, header_vclocks[last - 1]):
        last -= 1
    return first, last


def range_bytes(total_bytes: int, split_bytes: int, min_partitions: int) -> int:
    """Return about how many bytes one task reads: `split_bytes`, or less to get `min_partitions` tasks."""
    return min(split_bytes, max(MIN_RANGE_BYTES, -(-total_bytes // min_partitions)))


def split_segment(segment: Segment, cuts: Iterable[int], at_block_starts: bool = True) -> list[ByteRange]:
    """Split a segment into byte ranges at the positions `cuts`; `at_block_starts` says whether blocks start there.

    The ranges of a vinyl run are in reverse order, because a run has the newest statement of a key first
    (`vy_write_iterator.c`), and rows are read from the oldest to the newest.
    """
    bounds = [segment.begin, *(cut for cut in cuts if segment.begin < cut < segment.end), segment.end]
    found = [ByteRange(segment, begin, end, at_block_starts) for begin, end in pairwise(bounds)]
    return found if segment.space_id is None else found[::-1]


def share_tasks(ranges: Iterable[ByteRange], max_bytes: int) -> list[tuple[ByteRange, ...]]:
    """Return the byte ranges of each task: consecutive ranges are combined up to `max_bytes` bytes."""
    tasks: list[list[ByteRange]] = []
    filled = 0
    for byte_range in ranges:
        length = byte_range.end - byte_range.begin
        if not tasks or filled + length > max_bytes:
            tasks.append([])
            filled = 0
        tasks[-1].append(byte_range)
        filled += length
    return [tuple(task) for task in tasks]


def fair_shares(wanted_bytes: Mapping[str, int], limit_bytes: int) -> dict[str, int]:
    """Divide a limit of bytes fairly: no replicaset gets more than it can read, and the others share the rest.

    The result is at least 1 if any can be read, so that each replicaset advances by a block.
    """
    given = {}
    left_bytes = limit_bytes
    for rank, name in enumerate(sorted(wanted_bytes, key=lambda name: (wanted_bytes[name], name))):
        fair = left_bytes // (len(wanted_bytes) - rank)
        given[name] = min(wanted_bytes[name], max(fair, 1))
        left_bytes = max(0, left_bytes - given[name])
    return given


def budget_end(file_bytes: Sequence[int], budget_bytes: int) -> tuple[int, int]:
    """Return the index of the file in which a budget of bytes (at least 1) ends, and the bytes to read of it."""
    left = max(budget_bytes, 1)
    for index, length in enumerate(file_bytes):
        if length >= left:
            return index, left
        left -= length
    return len(file_bytes) - 1, file_bytes[-1]
