"""Reads one source's files once more, as batches of the writer, to fill a gap or to load a span of time (backfill).

Rows that are already settled are dropped, so files may be read twice and in any order. A span of time selects the files
that may contain its rows. These are read completely, so no transaction is divided. A replicaset that the tables do not
have yet is read from its start: a day without the days before it is not the state of any server.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.source_options import open_log_stream
from schemas.errors import ConfigurationError, SourceError
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import LogFile
from sources.xlog.directory.offset import OffsetEntry, to_text
from sources.xlog.reader import reader
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.failover import entry_at
from sources.xlog.stream.log_stream import LogStream

ReportProgress = Callable[[int, int, int], None]
"""Called after each batch with the bytes read so far, the bytes in total, and the rows of the batch."""


@dataclass(frozen=True)
class TimeSpan:
    """A span of time, without `until` itself; None leaves its begin or end open. Times have a time zone."""

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ConfigurationError("the span of time ends before it begins", advice="see --from and --to")


def first_row_time(directory: Directory, file: LogFile) -> datetime | None:
    """Return the timestamp of the first row of a log that has one; None if no row has one."""
    fs, path = directory.locate(file.name)
    for batch in reader.read_rows(fs, path, limits=directory.limits):
        stamps = [stamp for stamp in batch["timestamp"].to_pylist() if stamp is not None]
        if stamps:
            first: datetime = stamps[0]
            return first.astimezone(UTC)
    return None


def logs_in_span(files: list[tuple[LogFile, datetime | None]], span: TimeSpan) -> tuple[int, int]:
    """Return the logs that may contain rows of a span: (begin, end) of `files`, with their first rows' times."""
    first, last = 0, len(files)
    for index, (_, time) in enumerate(files):
        if time is None:
            continue
        if span.since is not None and time <= span.since:
            first = index
        if span.until is not None and time >= span.until:
            last = min(last, index)
    return first, max(first, last)


def read_source_again(
    config: Config,
    writer: BatchWriter,
    source: str,
    span: TimeSpan,
    report_progress: ReportProgress,
    cores: int = 1,
) -> int:
    """Read a source's files of a span again, in batches, and return the number of rows read.

    Raises:
        ConfigurationError: There is no such source.
        SourceError: The source has no log to read.
    """
    log_stream = source_log_stream(config, writer, source, cores)
    begin = log_stream.latest({})
    for uuid, entry in begin.items():
        known = writer.state.replicasets.get(uuid)
        start, end = _offset_range(
            log_stream, source, uuid, entry, span if known is not None else TimeSpan(None, span.until)
        )
        return sum(
            _process_in_batches(
                writer, log_stream, uuid, start, end, report_progress, config.max_bytes_per_trigger
            )
        )
    raise SourceError("there is nothing to read", source=source)


def source_log_stream(config: Config, writer: BatchWriter, source: str, cores: int = 1) -> LogStream:
    """Return the log stream of one source alone."""
    own = tuple(one for one in config.sources if one.name == source)
    if not own:
        names = ", ".join(one.name for one in config.sources)
        raise ConfigurationError(f"{source!r} is not a source; there are {names}", advice="see --source")
    # Batches need not end at points: the rows' first batches did.
    alone = config.model_copy(update={"sources": own, "instants": None})
    return open_log_stream(alone, writer.state, cores=cores)


def _offset_range(
    log_stream: LogStream, source: str, uuid: str, entry: OffsetEntry, span: TimeSpan
) -> tuple[OffsetEntry, OffsetEntry]:
    """Return the offsets at which to begin and to end. The begin is not before `entry`: earlier rows are settled."""
    directory = log_stream.directory(source)
    logs = directory.listing().logs
    timed = [(file, first_row_time(directory, file)) for file in logs] if span != TimeSpan() else []
    first, last = logs_in_span(timed, span) if timed else (0, len(logs))
    start = entry
    if not entry.is_snapshot:
        settled = next((i for i, file in enumerate(logs) if file.name == entry.file), 0)
        if last <= settled and last < len(logs):  # the whole span is before `entry`
            return entry, entry
        start = entry_at(source, logs[first]) if first > settled else entry
    end = log_stream.latest({uuid: start})[uuid]
    if last < len(logs) and (end.is_snapshot or logs[last].name <= end.file):
        end = entry_at(source, logs[last])
    return start, end


def _process_in_batches(
    writer: BatchWriter,
    log_stream: LogStream,
    uuid: str,
    start: OffsetEntry,
    end: OffsetEntry,
    report_progress: ReportProgress,
    limit_bytes: int,
) -> Iterator[int]:
    """Process the logs of a replicaset from `start` to `end` in batches, and yield the number of rows of each."""
    total_bytes = sum(s.end - s.begin for s in segments_between(log_stream, {uuid: start}, {uuid: end}))
    done, number = 0, 0
    while start != end:
        step = log_stream.latest({uuid: start}, limit_bytes)[uuid]
        step = end if step.file >= end.file and not step.is_snapshot else step
        segments = segments_between(log_stream, {uuid: start}, {uuid: step})
        texts = (to_text({uuid: start}), to_text({uuid: step}))
        rows = 0
        if segments:
            name = BatchName(f"backfill {writer.state.epoch + 1}", number, texts)
            rows, _ = writer.process(segments, name)
        done += sum(segment.end - segment.begin for segment in segments)
        report_progress(done, max(total_bytes, done), rows)
        yield rows
        if step == start:
            return
        start, number = step, number + 1
