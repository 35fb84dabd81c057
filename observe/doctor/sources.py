"""Checks the sources: whether each can be read, its replicaset, gaps in its logs, where a run starts. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from observe.doctor.findings import Finding, fail, ok, warn
from sources.xlog.format.vclock import is_at_most, vclock_maximum

MAX_CLOCK_AHEAD_SECONDS = 5.0
"""Seconds by which a server's clock may be ahead without a warning; policies compare times of replicasets."""


@dataclass(frozen=True)
class LogHole:
    """Two successive files of a log between which rows are missing.

    A hole in the logs of one source is not a gap if the tables have the missing rows from another source.
    """

    file_before: str
    file_after: str
    """Names of the two files."""
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
    """Whether the configuration has the key `replicaset` for the source."""
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
