"""Checks the sources: whether each can be read, its replicaset, gaps in its logs, where a run begins. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from observe.doctor.findings import Finding, fail, ok, warn
from sources.xlog.format.vclock import joined, not_beyond

AHEAD_SECONDS = 5.0
"""Clock difference of a server, in seconds, that is reported: times decide between replicasets."""


@dataclass(frozen=True)
class Hole:
    """Two files of a log with missing rows between them.

    Parameters
    ----------
    before, after : str
    had, continues_at : mapping of int to int
        The vclock at the end of the first file; the vclock at the beginning of the second.

    """

    before: str
    after: str
    had: Mapping[int, int]
    continues_at: Mapping[int, int]

    def missing(self, settled: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Return the missing lsns that are not in the tables yet, by replica id."""
        known = joined(self.had, settled)
        return {
            replica_id: (known.get(replica_id, 0) + 1, lsn)
            for replica_id, lsn in sorted(self.continues_at.items())
            if replica_id and lsn > known.get(replica_id, 0)
        }


@dataclass(frozen=True)
class SourceFacts:
    """The facts of a source's files.

    Parameters
    ----------
    name, path : str
    error : str or None
        Why the files cannot be read; the other fields are then unset.
    damaged : bool
        Whether `error` is damage of a file's header.
    logs, snapshots : int
        Number of files.
    snapshot_vclock : mapping of int to int, or None
        The newest complete snapshot's; None without one.
    is_spool : bool
    instances : tuple of str
        Uuids in the headers.
    replicasets : tuple of str
        Uuids in the headers of a spool's files.
    has_replicaset_key : bool
        Whether the configuration has the source's replicaset.
    replicaset : str or None
        The source's replicaset; None if unknown.
    identity_error : str or None
        Why the replicaset is unknown or contradictory.
    server : str or None
        Version of the server that wrote the newest file.
    reached : mapping of int to int
        The vclock after the newest log's last row.
    newest : float or None
        Time of its newest row, in seconds since 1970.
    now : float
        This machine's time at that reading.
    holes : tuple of Hole
    tail_error : str or None
        Damage in the newest log.
    spool_error : str or None
        Damage of a spool.

    """

    name: str
    path: str
    error: str | None = None
    damaged: bool = False
    logs: int = 0
    snapshots: int = 0
    snapshot_vclock: Mapping[int, int] | None = None
    is_spool: bool = False
    instances: tuple[str, ...] = ()
    replicasets: tuple[str, ...] = ()
    has_replicaset_key: bool = False
    replicaset: str | None = None
    identity_error: str | None = None
    server: str | None = None
    reached: Mapping[int, int] = field(default_factory=dict)
    newest: float | None = None
    now: float = 0.0
    holes: tuple[Hole, ...] = ()
    tail_error: str | None = None
    spool_error: str | None = None


@dataclass(frozen=True)
class Begin:
    """Where a run begins in a replicaset.

    Parameters
    ----------
    replicaset : str
    source, file : str
        The leader's source, and its file.
    position : int
        Byte offset.
    is_new : bool
        Whether the tables do not have the replicaset yet.

    """

    replicaset: str
    source: str
    file: str
    position: int
    is_new: bool


def check_sources(
    found: Sequence[SourceFacts],
    settled: Mapping[str, Mapping[int, int]],
    begins: Sequence[Begin],
    unfollowed: Mapping[str, str],
    *,
    starts_with_snapshot: bool,
) -> list[Finding]:
    """Return the findings about the sources.

    Parameters
    ----------
    found : sequence of SourceFacts
    settled : mapping of str to mapping
        The position in the tables, by replicaset uuid.
    begins : sequence of Begin
    unfollowed : mapping of str to str
        Source to the reason why it is not followed.
    starts_with_snapshot : bool
        Whether a new source begins at a snapshot.

    """
    findings: list[Finding] = []
    for one in found:
        wants_snapshot = starts_with_snapshot and one.replicaset not in settled
        own = list(_source(one, settled.get(one.replicaset or "", {}), wants_snapshot=wants_snapshot))
        if one.name in unfollowed and not any(finding.level == "fail" for finding in own):
            text = f"it is not followed: {unfollowed[one.name]}"
            own.append(fail("source_not_followed", f"source {one.name}", text, "see the message"))
        findings += own
    findings += _twice(found)
    findings += [_begin(begin) for begin in begins]
    return findings


def _source(one: SourceFacts, settled: Mapping[int, int], *, wants_snapshot: bool) -> Iterator[Finding]:
    subject = f"source {one.name}"
    if one.error is not None:
        name = "header_damaged" if one.damaged else "source_unreadable"
        advice = (
            "copy the file again from its server"
            if one.damaged
            else "bring the path back, give this user the right to read it, or correct `sources`"
        )
        yield fail(name, subject, one.error, advice)
        return
    if not one.logs and not one.snapshots:
        yield fail(
            "source_empty",
            subject,
            f"{one.path} holds no .snap and no .xlog",
            "name the folder of the server's logs (wal_dir, memtx_dir)",
        )
        return
    shown = ", ".join(f"{i}: {lsn}" for i, lsn in sorted(one.reached.items()) if i)
    yield ok(
        "source",
        subject,
        f"{'spool, ' if one.is_spool else ''}{one.snapshots} snapshots, {one.logs} logs up to {{{shown}}}, "
        f"Tarantool {one.server or 'unknown'}, replicaset {one.replicaset or 'unknown'}",
    )
    yield from _identity(one, subject)
    begin = (one.snapshot_vclock or {}) if wants_snapshot else {}
    yield from _whole(one, subject, joined(settled, begin))
    if not one.logs:
        yield warn(
            "no_logs",
            subject,
            "it has snapshots and no log: nothing can be followed",
            "set wal_mode = 'write' on the server, or name the folder of its logs (wal_dir)",
        )
    if wants_snapshot and one.snapshot_vclock is None:
        yield fail(
            "no_snapshot",
            subject,
            "there is no complete snapshot to begin with",
            "box.snapshot() on the server, or start: logs",
        )
    yield from _clock(one, subject)


def _identity(one: SourceFacts, subject: str) -> Iterator[Finding]:
    several = one.replicasets if one.is_spool else one.instances
    if len(several) > 1:
        what = "replicasets" if one.is_spool else "instances"
        yield fail(
            "mixed_replicasets",
            subject,
            f"files of several {what} are in one folder: {', '.join(several)}",
            "give each its own folder and source",
        )
    elif one.identity_error is not None:
        name = "other_replicaset" if one.has_replicaset_key else "replicaset_unknown"
        advice = (
            "correct the source's path, or its key `replicaset`"
            if one.has_replicaset_key
            else "set the source's key `replicaset`"
        )
        yield fail(name, subject, one.identity_error, advice)


def _whole(one: SourceFacts, subject: str, settled: Mapping[int, int]) -> Iterator[Finding]:
    if one.spool_error is not None:
        yield fail("spool_damaged", subject, one.spool_error, "begin a new spool: move this folder away")
    elif one.tail_error is not None:
        yield fail("log_damaged", subject, one.tail_error, "copy the file again from its server")
    for hole in one.holes:
        missing = hole.missing(settled)
        if missing:
            lsns = ", ".join(f"{first} to {last} of replica id {i}" for i, (first, last) in missing.items())
            yield fail(
                "log_gap",
                subject,
                f"lsns {lsns} are missing between {hole.before} and {hole.after}",
                "bring the log back, or add a member that has it to `sources`; then aggregator repair",
            )
    if one.logs and settled and not not_beyond({i: n for i, n in settled.items() if i}, one.reached):
        yield warn(
            "source_behind",
            subject,
            "the tables have rows that its logs do not reach",
            "is its copy running? Was the server restored from an older state?",
        )


def _clock(one: SourceFacts, subject: str) -> Iterator[Finding]:
    ahead = 0.0 if one.newest is None else one.newest - one.now
    if ahead > AHEAD_SECONDS:
        yield warn(
            "clock_ahead",
            subject,
            f"its newest row is {ahead:.0f} s ahead of this machine's clock: its rows win over newer ones",
            "set the clocks by NTP; a policy with a `sequence` does not depend on them",
        )


def _twice(found: Sequence[SourceFacts]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for one in found:
        for uuid in one.instances if not one.is_spool else ():
            if uuid in seen:
                yield warn(
                    "instance_twice",
                    f"source {one.name}",
                    f"it is of the same instance as the source {seen[uuid]}",
                    "one of them is enough, unless one has logs that the other lacks",
                )
            seen.setdefault(uuid, one.name)


def _begin(begin: Begin) -> Finding:
    verb = "begins" if begin.is_new else "continues"
    text = f"{verb} in {begin.file} at {begin.position} of {begin.source}"
    return ok("begin", f"replicaset {begin.replicaset}", text)
