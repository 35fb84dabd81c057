"""Plans a batch: the segments between two offsets, and the byte ranges of each task.

Only the offsets decide what is read. The directories are only listed to find where files end, and whether files are
missing.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from schemas.errors import OffsetError, XlogGapError, XlogRewrittenError, XlogTruncatedError
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import LogFile, files_from, files_up_to
from sources.xlog.directory.offset import Offset, OffsetEntry
from sources.xlog.format.damage import Mode
from sources.xlog.format.vclock import is_at_most
from sources.xlog.options import XlogOptions
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.origins import Origins
from sources.xlog.stream.plan import (
    ReplicasetFiles,
    logs_within,
    range_bytes,
    segments_of,
    share_tasks,
    split_segment,
    with_segment_numbers,
)
from sources.xlog.stream.read_ahead import gap_between, refuse_changed_history
from sources.xlog.stream.segment import ByteRange, Segment
from sources.xlog.stream.vinyl import is_end_of_snapshot, run_segments, vinyl_spaces_of

logger = logging.getLogger(__name__)


def _files_up_to_end(files: tuple[LogFile, ...], start: OffsetEntry, end: OffsetEntry) -> tuple[LogFile, ...]:
    found = files_up_to(files, end.file)
    if found is None:
        raise OffsetError(
            "the end of the batch is not after its start",
            file=end.file,
            source=end.leader,
            advice=f"it starts in {start.file}; a file that is gone must be brought back",
        )
    return found


def _replicaset_files(
    log_stream: LogStream, uuid: str, start: OffsetEntry, end: OffsetEntry
) -> ReplicasetFiles:
    directory = log_stream.directory(end.leader)
    files = _files_up_to_end(files_from(directory.listing(), start), start, end)
    refuse_changed_history(directory, files[0], start)
    refuse_changed_history(directory, files[-1], end)
    start, end = _before_torn_block(directory, files[0], start), _before_torn_block(directory, files[-1], end)
    pairs = list(pairwise(files))
    return ReplicasetFiles(
        replicaset_uuid=uuid,
        source=directory.source,
        files=files,
        ends=tuple(directory.ends.end_of(file, closed=True) for file in files[:-1]),
        gaps=(None, *(gap_between(directory, before, after) for before, after in pairs)),
        start=start,
        end=end,
    )


def _before_torn_block(directory: Directory, file: LogFile, entry: OffsetEntry) -> OffsetEntry:
    """Return an entry, moved to the end of its log if the server left out a torn block before it."""
    if file.name not in directory.ends.following_vclocks:
        return entry
    end = directory.ends.end_of(file, closed=True)
    return (
        replace(entry, position=end.position)
        if not end.has_marker and end.position < entry.position
        else entry
    )


def _is_same_position(first: OffsetEntry, last: OffsetEntry) -> bool:
    """Return whether two entries are at the same position, although the state of their instant may differ."""
    if replace(first, instant=None) != replace(last, instant=None):
        return False
    return _rows_passed(first) == _rows_passed(last)


def _rows_passed(entry: OffsetEntry) -> int:
    return entry.instant.rows_passed if entry.instant is not None and entry.instant.is_stream_at_point else 0


def _files_between(log_stream: LogStream, start: Offset, end: Offset) -> Iterator[ReplicasetFiles]:
    for uuid in sorted(end):
        first, last = start.get(uuid), end[uuid]
        if first is not None and _is_same_position(first, last):
            continue
        if first is not None and first.leader == last.leader and not last.is_restart:
            try:
                yield _replicaset_files(log_stream, uuid, first, last)
            except (XlogRewrittenError, XlogTruncatedError) as error:
                if log_stream.options.on_gap != "report":
                    raise
                # The batch was planned before a restart. The next one reads the files again from an earlier position.
                logger.warning("%s: a planned batch reads nothing of it: %s", last.leader, error)
        elif last.position != 0:
            raise OffsetError(
                "a batch in which a replicaset begins, restarts or changes its leader ends where that begins",
                file=last.file,
                offset=last.position,
                source=last.leader,
                advice="give offsets that this source wrote, in their order",
            )


def _within_bounds(segments: list[Segment], options: XlogOptions) -> list[Segment]:
    """Return the segments that may have rows between `fromVclock` and `toVclock`."""
    whole = [segment for segment in segments if segment.is_snapshot or not segment.is_log]
    logs = [segment for segment in segments if segment.is_log and not segment.is_snapshot]
    first, last = logs_within([log.vclock for log in logs], options.from_vclock, options.to_vclock)
    wanted = options.from_vclock
    return whole + [
        replace(log, gap=None)
        if wanted is not None and log.gap is not None and is_at_most(log.gap.start_of_next, wanted)
        else log
        for log in logs[first:last]
    ]


def _refuse_gaps(segments: list[Segment]) -> None:
    for segment in segments:
        if segment.gap is not None:
            after, before = dict(segment.gap.end_of_previous), dict(segment.gap.start_of_next)
            raise XlogGapError(
                f"rows are missing before this file: the one before reaches {after}, it begins at {before}",
                file=segment.file,
                offset=0,
                source=segment.source,
                advice="bring the missing files back, or accept the loss with gaps=report",
            )


def _split_by_origins(log_stream: LogStream, segments: list[Segment]) -> Iterator[Segment]:
    for segment in segments:
        directory = log_stream.directory(segment.source)
        whitelist = directory.source.origin_uuids or log_stream.options.origin_uuids
        if not whitelist or segment.is_snapshot or not segment.is_log:
            yield segment
            continue
        origins = log_stream.origins_by_source.setdefault(segment.source, Origins(directory))
        yield from origins.split_by_origins(directory.listing(), segment, whitelist)


def _with_vinyl_runs(log_stream: LogStream, segments: list[Segment]) -> Iterator[Segment]:
    """Yield the segments, and after the last segment of a snapshot the segments of its vinyl runs."""
    for segment in segments:
        if not segment.is_snapshot:
            yield segment
            continue
        directory = log_stream.directory(segment.source)
        if directory.is_file:
            yield replace(segment, vinyl_space_ids=frozenset())
            continue
        # A deployment continues without spaces that cannot be read, as with any refused space.
        is_strict = not log_stream.options.with_replicaset and log_stream.options.mode is Mode.FAILFAST
        vinyl = vinyl_spaces_of(directory, segment.file, is_strict=is_strict)
        yield replace(segment, vinyl_space_ids=vinyl.space_ids)
        wanted = log_stream.options.space_ids
        if is_end_of_snapshot(directory, segment):
            runs = run_segments(directory, segment, vinyl)
            yield from (run for run in runs if wanted is None or run.space_id in wanted)


def segments_between(log_stream: LogStream, start: Offset, end: Offset) -> tuple[Segment, ...]:
    """Return the segments that a batch reads, with their numbers.

    Raises:
        SourceError: If a source cannot be listed or is not configured any more.
        XlogMissingError: If a file is gone.
        XlogGapError: If rows are missing between two files and `gaps` is `fail`.
        OffsetError: If the offsets are not in order.
    """
    segments: list[Segment] = []
    for files_read in _files_between(log_stream, start, end):
        found = _within_bounds(list(segments_of(files_read)), log_stream.options)
        segments += _with_vinyl_runs(log_stream, found)
    if log_stream.options.on_gap == "fail":
        _refuse_gaps(segments)
    return with_segment_numbers(_split_by_origins(log_stream, segments))


def tasks_of(log_stream: LogStream, segments: Sequence[Segment]) -> list[tuple[ByteRange, ...]]:
    """Return the byte ranges of each task of a batch: large files are split, small ones share a task."""
    options = log_stream.options
    total = sum(segment.end - segment.begin for segment in segments)
    size = range_bytes(total, options.split_bytes, options.min_partitions)
    ranges: list[ByteRange] = []
    for segment in segments:
        ends = log_stream.directory(segment.source).ends
        if segment.end - segment.begin <= size:
            ranges += split_segment(segment, ())
        elif ends.has_large_blocks(segment.file, segment.begin, segment.end):
            ranges += split_segment(
                segment, ends.block_starts(segment.file, segment.begin, segment.end, size)
            )
        else:  # walking the headers would take as long as reading the rows
            ranges += split_segment(segment, range(segment.begin, segment.end, size), at_block_starts=False)
    return share_tasks(ranges, size)
