"""Gathers facts of the sources' files, and checks them: damage, replicaset, gaps, where a run starts. Reads only."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from config.deployment import Config, SourceConfig
from observe.doctor.findings import Finding, fail, ok, warn
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

MAX_CLOCK_AHEAD_SECONDS = 5.0
"""Seconds by which a server's clock may be ahead without a warning; policies compare times of replicasets."""


@dataclass(frozen=True)
class LogHole:
    """Two successive files of a log between which rows are missing.

    A hole in the logs of one source is not a gap if the tables have the missing rows from another source.
    """

    file_before: str
    file_after: str
    vclock_before: Mapping[int, int]
    vclock_after: Mapping[int, int]
    """The vclock at the end of the first file, and at the start of the second."""

    def missing_lsn_ranges(self, settled_vclock: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Return, by replica id, the range (first, last) of the lsns that neither the files nor the tables have."""
        known = vclock_maximum(self.vclock_before, settled_vclock)
        return {
            replica_id: (known.get(replica_id, 0) + 1, lsn)
            for replica_id, lsn in sorted(self.vclock_after.items())
            if replica_id and lsn > known.get(replica_id, 0)
        }


@dataclass(frozen=True)
class SourceFacts:
    """The facts of a source's files."""

    name: str
    path: str
    error: str | None = None
    """Why the files cannot be read; then the other fields have no values."""
    is_header_damaged: bool = False
    """Whether `error` is about a damaged header of a file."""
    log_count: int = 0
    snapshot_count: int = 0
    """Number of `.xlog` files and of `.snap` files."""
    snapshot_vclock: Mapping[int, int] | None = None
    is_spool: bool = False
    instance_uuids: tuple[str, ...] = ()
    foreign_files_text: str | None = None
    """Which files are of other replicasets than the source, as text; None if no such file is known."""
    is_replicaset_configured: bool = False
    replicaset_uuid: str | None = None
    identity_error: str | None = None
    """Why the replicaset is unknown, or how it differs from the one in the configuration; else None."""
    server_version: str | None = None
    """Version of the server that wrote the newest file."""
    end_vclock: Mapping[int, int] = field(default_factory=dict)
    """The vclock after the last row of the newest log that has rows."""
    newest_row_time: float | None = None
    """Time of the newest row, in seconds since 1970; None if no row was found."""
    read_at: float = 0.0
    """This machine's time when the newest row was read, in seconds since 1970."""
    holes: tuple[LogHole, ...] = ()
    newest_log_error: str | None = None
    spool_error: str | None = None
    """Damage of a spool; None without damage, or if the source is not a spool."""
    awaits_daemon: bool = False
    """Whether the source is a spool of the section `subscribe` to which the daemon has not written yet."""


@dataclass(frozen=True)
class StartPosition:
    """Where a run starts to read a replicaset's logs."""

    replicaset_uuid: str
    source: str
    file: str
    """Name of the leader (the source that is read), and of the log file."""
    byte_offset: int
    is_new_replicaset: bool
    """Whether the tables do not have the replicaset yet."""


def check_sources(
    sources: Sequence[SourceFacts],
    settled_vclocks: Mapping[str, Mapping[int, int]],
    positions: Sequence[StartPosition],
    unread_sources: Mapping[str, str],
    *,
    starts_with_snapshot: bool,
) -> list[Finding]:
    """Return the findings about the sources.

    Args:
        starts_with_snapshot: Whether a new replicaset is read from its newest snapshot.
    """
    findings: list[Finding] = []
    for source in sources:
        wants_snapshot = starts_with_snapshot and source.replicaset_uuid not in settled_vclocks
        own_findings = list(
            _check_source(
                source, settled_vclocks.get(source.replicaset_uuid or "", {}), wants_snapshot=wants_snapshot
            )
        )
        if source.name in unread_sources and not any(finding.level == "fail" for finding in own_findings):
            text = f"it is not followed: {unread_sources[source.name]}"
            own_findings.append(fail("source_not_followed", f"source {source.name}", text, "see the message"))
        findings += own_findings
    findings += _check_shared_instances(sources)
    findings += [_start_finding(position) for position in positions]
    return findings


def _check_source(
    source: SourceFacts, settled_vclock: Mapping[int, int], *, wants_snapshot: bool
) -> Iterator[Finding]:
    subject = f"source {source.name}"
    if source.awaits_daemon:
        text = f"the daemon has not begun the spool {source.path} yet, so a run has nothing to read there"
        yield fail("spool_not_begun", subject, text, "start `aggregator subscribe` with this file first")
        return
    if source.error is not None:
        name = "header_damaged" if source.is_header_damaged else "source_unreadable"
        advice = (
            "copy the file again from its server"
            if source.is_header_damaged
            else "bring the path back, give this user the right to read it, or correct `sources`"
        )
        yield fail(name, subject, source.error, advice)
        return
    if not source.log_count and not source.snapshot_count:
        yield fail(
            "source_empty",
            subject,
            f"{source.path} has no .snap and no .xlog files",
            "name the folder of the server's logs (wal_dir, memtx_dir)",
        )
        return
    shown = ", ".join(f"{i}: {lsn}" for i, lsn in sorted(source.end_vclock.items()) if i)
    yield ok(
        "source",
        subject,
        f"{'spool, ' if source.is_spool else ''}{source.snapshot_count} snapshots, {source.log_count} logs "
        f"up to {{{shown}}}, Tarantool {source.server_version or 'unknown'}, "
        f"replicaset {source.replicaset_uuid or 'unknown'}",
    )
    yield from _check_identity(source, subject)
    begin = (source.snapshot_vclock or {}) if wants_snapshot else {}
    yield from _check_completeness(source, subject, vclock_maximum(settled_vclock, begin))
    if not source.log_count and not source.is_spool:  # a spool has no log before the first row
        yield warn(
            "no_logs",
            subject,
            "it has snapshots and no log, so later changes cannot be read",
            "set wal_mode = 'write' on the server, or name the folder of its logs (wal_dir)",
        )
    if wants_snapshot and source.snapshot_vclock is None:
        yield fail(
            "no_snapshot",
            subject,
            "there is no complete snapshot to begin with",
            "box.snapshot() on the server, or start: logs",
        )
    yield from _check_clock(source, subject)


def _check_identity(source: SourceFacts, subject: str) -> Iterator[Finding]:
    if source.foreign_files_text is not None:
        yield fail(
            "mixed_replicasets",
            subject,
            f"files of several replicasets are in one folder: {source.foreign_files_text}",
            "give each replicaset a folder and a source of its own",
        )
    elif source.identity_error is not None:
        name = "other_replicaset" if source.is_replicaset_configured else "replicaset_unknown"
        advice = (
            "correct the source's path, or its key `replicaset`"
            if source.is_replicaset_configured
            else "set the source's key `replicaset`"
        )
        yield fail(name, subject, source.identity_error, advice)


def _check_completeness(
    source: SourceFacts, subject: str, settled_vclock: Mapping[int, int]
) -> Iterator[Finding]:
    if source.spool_error is not None:
        yield fail("spool_damaged", subject, source.spool_error, "begin a new spool: move this folder away")
    elif source.newest_log_error is not None:
        yield fail("log_damaged", subject, source.newest_log_error, "copy the file again from its server")
    for hole in source.holes:
        missing = hole.missing_lsn_ranges(settled_vclock)
        if missing:
            lsns = ", ".join(f"{first} to {last} of replica id {i}" for i, (first, last) in missing.items())
            yield fail(
                "log_gap",
                subject,
                f"lsns {lsns} are missing between {hole.file_before} and {hole.file_after}",
                "bring the log back, or add a member that has it to `sources`; then aggregator repair",
            )
    if (
        source.log_count
        and settled_vclock
        and not is_at_most({i: n for i, n in settled_vclock.items() if i}, source.end_vclock)
    ):
        yield warn(
            "source_behind",
            subject,
            "the tables have rows that its logs do not reach",
            "is its copy running? Was the server restored from an older state?",
        )


def _check_clock(source: SourceFacts, subject: str) -> Iterator[Finding]:
    ahead = 0.0 if source.newest_row_time is None else source.newest_row_time - source.read_at
    if ahead > MAX_CLOCK_AHEAD_SECONDS:
        yield warn(
            "clock_ahead",
            subject,
            f"its newest row is {ahead:.0f} s ahead of this machine's clock, so its rows may win over newer rows",
            "set the clocks by NTP; a policy with a `sequence` does not depend on them",
        )


def _check_shared_instances(sources: Sequence[SourceFacts]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for source in sources:
        for uuid in source.instance_uuids if not source.is_spool else ():
            if uuid in seen:
                yield warn(
                    "instance_twice",
                    f"source {source.name}",
                    f"it has logs of the same instance as the source {seen[uuid]}",
                    "remove one of them from `sources`, unless each has logs that the other lacks",
                )
            seen.setdefault(uuid, source.name)


def _start_finding(start: StartPosition) -> Finding:
    verb = "begins" if start.is_new_replicaset else "continues"
    text = f"{verb} in {start.file} at byte {start.byte_offset} of {start.source}"
    return ok("begin", f"replicaset {start.replicaset_uuid}", text)


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
