"""Gathers facts of each source's files: their headers, their ends, and the newest rows. Reads only."""

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from config.deployment import Config, SourceConfig
from observe.doctor.sources import LogHole, SourceFacts, StartPosition
from pipeline.preview import begin_offsets
from pipeline.source_options import open_log_stream
from pipeline.state import State
from schemas.errors import AggregatorError, SpoolError, XlogError
from schemas.iproto import GROUP_LOCAL, VCLOCK_MAX
from sources.spool.state import read_state
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile, may_miss_rows, newest_index_at_most
from sources.xlog.directory.offset import Offset
from sources.xlog.directory.source import Source
from sources.xlog.format.vclock import is_at_most, vclock_maximum, without_local
from sources.xlog.reader import reader
from sources.xlog.stream.identity import ForeignFiles, replicaset_uuid_of
from sources.xlog.stream.origins import Origins
from warehouse.lock.lock import local_folder

SOURCE_ERRORS = (AggregatorError, OSError, pa.ArrowException, ValueError)
"""Exceptions of reading a source, which become facts."""


def gather_source(
    source: SourceConfig, max_block_bytes: int, spool_paths: frozenset[str] = frozenset()
) -> SourceFacts:
    """Return the facts of a source's files."""
    awaits_daemon = source.path in spool_paths and not any(Path(source.path).glob("*.snap"))
    directory = Directory(
        Source(source.name, source.path, source.replicaset, frozenset(source.origins)),
        max_block_bytes=max_block_bytes,
    )
    try:
        listing = directory.listing()
    except SOURCE_ERRORS as error:
        is_damaged = isinstance(error, XlogError)
        return SourceFacts(
            source.name,
            source.path,
            str(error),
            is_header_damaged=is_damaged,
            awaits_daemon=awaits_daemon and not is_damaged,
        )
    if not listing.logs and not listing.snapshots:
        return SourceFacts(source.name, source.path, awaits_daemon=awaits_daemon)
    files = (*listing.snapshots, *listing.logs)
    replicaset, identity_error = _replicaset_or_error(directory, listing)
    is_spool = files[-1].replicaset_uuid is not None
    end = _end_of_logs(directory, listing)
    return SourceFacts(
        source.name,
        source.path,
        log_count=len(listing.logs),
        snapshot_count=len(listing.snapshots),
        snapshot_vclock=_snapshot_vclock(directory, listing),
        is_spool=is_spool,
        instance_uuids=tuple(sorted({file.instance_uuid for file in files if file.instance_uuid})),
        foreign_files_text=_foreign_files_text(directory, listing, replicaset),
        is_replicaset_configured=source.replicaset is not None,
        replicaset_uuid=replicaset,
        identity_error=identity_error,
        server_version=_server_version(directory, files[-1]),
        end_vclock=end.vclock,
        newest_row_time=end.newest_row_time,
        read_at=time.time(),
        holes=tuple(_find_holes(directory, listing)),
        newest_log_error=end.error,
        spool_error=_spool_error(source.path, max_block_bytes) if is_spool else None,
    )


def start_positions(
    config: Config, state: State, read_offset: Offset
) -> tuple[list[StartPosition], dict[str, str]]:
    """Return where a run starts in each replicaset's logs, and, by name of a source that is not read, the reason."""
    log_stream = open_log_stream(config, state, skip_unreadable=True)
    ends = log_stream.latest(read_offset)
    begins = begin_offsets(log_stream, read_offset, ends)
    positions = [
        StartPosition(uuid, entry.leader, entry.file, entry.position, uuid not in state.replicasets)
        for uuid, entry in sorted(begins.items())
    ]
    return positions, dict(log_stream.unreadable_sources)


def _snapshot_vclock(directory: Directory, listing: Listing) -> dict[int, int] | None:
    newest = directory.newest_complete(listing.snapshots)
    return None if newest is None else without_local(newest.vclock)


def _replicaset_or_error(directory: Directory, listing: Listing) -> tuple[str | None, str | None]:
    """Return (uuid of the source's replicaset, None), or (None, the error) if the replicaset is not known."""
    try:
        return replicaset_uuid_of(directory, listing), None
    except SOURCE_ERRORS as error:
        return None, str(error)


def _foreign_files_text(directory: Directory, listing: Listing, replicaset: str | None) -> str | None:
    if replicaset is None:
        return None
    return ForeignFiles(directory, Origins(directory)).find_contradiction(listing, replicaset)


def _server_version(directory: Directory, file: LogFile) -> str | None:
    try:
        return reader.read_meta(*directory.locate(file.name)).other.get("Version")
    except SOURCE_ERRORS:
        return None


class _LogEnd(NamedTuple):
    """The end of a source's logs: the vclock after the newest row, the time of this row, and an error of reading.

    The time is in seconds since 1970, None without a row. The error is None if the newest log has no damage.
    """

    vclock: dict[int, int]
    newest_row_time: float | None
    error: str | None = None


def _end_of_logs(directory: Directory, listing: Listing) -> _LogEnd:
    """Return the end of the newest log that has rows; right after a server's start, the newest log has none."""
    start = without_local((listing.logs[-1:] or listing.snapshots[-1:])[0].vclock)
    highest, newest = np.zeros(VCLOCK_MAX, np.int64), -1
    try:
        for file in reversed(listing.logs):
            end = directory.ends.end_of(file, closed=file is not listing.logs[-1]).position
            for rows in reader.read_headers(
                *directory.locate(file.name),
                file.header_bytes,
                end,
                at_block_starts=True,
                limits=directory.limits,
            ):
                ids = np.where(rows.group_id == GROUP_LOCAL, 0, np.maximum(rows.replica_id, 0))
                np.maximum.at(highest, ids, rows.lsn)
                newest = max(newest, int(rows.timestamp.max(initial=-1)))
            if newest >= 0:
                break
    except SOURCE_ERRORS as error:
        return _LogEnd(start, None, str(error))
    lsns = {replica_id: int(lsn) for replica_id, lsn in enumerate(highest) if replica_id and lsn > 0}
    return _LogEnd(without_local(vclock_maximum(start, lsns)), None if newest < 0 else newest / 1e6)


def _find_holes(directory: Directory, listing: Listing) -> Iterator[LogHole]:
    if listing.snapshots and listing.logs:
        first, newest = listing.logs[0], listing.snapshots[-1]
        if newest_index_at_most(listing.logs, newest.vclock, with_local=True) is None:
            yield LogHole(newest.name, first.name, without_local(newest.vclock), without_local(first.vclock))
    for before, after in pairwise(listing.ordered_files):
        try:
            if after.is_snapshot or not may_miss_rows(
                before, directory.ends.end_of(before, closed=True), after
            ):
                continue
            end = without_local(before.vclock if before.is_snapshot else directory.ends.end_vclock(before))
        except SOURCE_ERRORS:
            continue  # damage in a closed log is reported by the code that reads its rows
        if not is_at_most(without_local(after.vclock), end):
            yield LogHole(before.name, after.name, end, without_local(after.vclock))


def _spool_error(path: str, max_block_bytes: int) -> str | None:
    folder = local_folder(path)
    if folder is None:
        return None
    try:
        read_state(Path(folder), max_block_bytes)
    except (SpoolError, XlogError, OSError) as error:
        return str(error)
    return None
