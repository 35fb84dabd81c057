"""Chooses the leader among the sources of a replicaset, and the position where it begins: pure functions of listings.

A member of a replicaset writes all rows of the replicaset to its log, in the order in which it applied them. So only
one source of a replicaset, the leader, is read; the others are on standby. The offset names the leader. It remains the
leader until its source is removed, cannot be read, or is behind. The new leader begins with the newest of its logs
whose header VClock is at most that of the file in which the old leader stopped. So every row that was not read from the
old leader is in this log or a later one. Some rows are read twice; readers of the stream drop them by vclock.

The batch of a failover reads nothing: it ends where the new leader begins. So a batch never depends on two leaders, and
the offsets are enough to repeat it.

A server may have removed the file that the stream is in. Then the stream restarts at a later position: in a log that
has all rows after the settled vclock (all rows up to it are applied, or dropped for good) or, if there is none, in a
snapshot that replaces all earlier rows (a generation). That batch reads nothing either.

A server that lost the end of its log, or was restored from an older state, has another history than the one that was
read. The stream notices it by the offset's checksum and VClock, by a shorter file, or by a file that is gone although
older ones are there. Then it reads the files again (`start_of_changed_history`). Rows that differ from those that were
settled are divergences (`pipeline.changelog.divergence`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.errors import AggregatorError, SourceError, XlogGapError
from sources.xlog.directory.listing import Listing, LogFile, newest_index_at_most
from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.format.vclock import Vclock, are_equal, is_at_most, vclock_maximum, without_local
from sources.xlog.options import XlogOptions
from sources.xlog.stream.plan import snapshot_vclock_for_file


@dataclass(frozen=True)
class MemberFiles:
    """One source of a replicaset at one moment."""

    name: str
    listing: Listing | None
    """None if the source cannot be read."""
    initial_snapshot: LogFile | None = None
    """The snapshot that a new stream begins with; None if it begins with a log."""
    error: AggregatorError | None = None
    """Why the source cannot be read."""
    complete_snapshots: tuple[LogFile, ...] = ()
    """The complete snapshots, in the order of the log; empty unless a snapshot may fill a gap."""


def entry_at(
    source: str, file: LogFile, position: int = 0, snapshot_vclock: Vclock | None = None
) -> OffsetEntry:
    """Return the canonical entry of a position in a file: a position in the text header becomes 0."""
    canonical = position if position > file.header_bytes else 0
    return OffsetEntry(
        source,
        file.name,
        canonical,
        without_local(file.vclock),
        snapshot_vclock_for_file(file, snapshot_vclock),
    )


def initial_entry_of_file(member: MemberFiles) -> OffsetEntry | None:
    """Return where a source of one file begins, whatever `start` says; None if the file is empty."""
    if member.listing is None:
        raise member.error or SourceError("the source cannot be read", source=member.name)
    files = (*member.listing.logs, *member.listing.snapshots)
    return entry_at(member.name, files[0]) if files else None


def initial_entry(member: MemberFiles, uuid: str, options: XlogOptions) -> OffsetEntry:
    """Return where a replicaset that is new to the stream begins, in the files of one member.

    Raises:
        SourceError: If there is no file to begin with, or if `start` is `snapshot` and there is no complete snapshot.
        XlogGapError: If all logs begin beyond the vclock that `startVclock` names.
    """
    if member.listing is None:
        raise member.error or SourceError("the source cannot be read", source=member.name)
    logs = member.listing.logs
    _refuse_without_vclock(member, options)
    if uuid in options.start_vclock:
        index = newest_index_at_most(logs, options.start_vclock[uuid], with_local=False)
        if index is None:
            generation = _replacing_snapshot(member, options.start_vclock[uuid])
            if generation is not None:
                return generation
            raise XlogGapError(
                f"no log reaches back to the vclock {dict(options.start_vclock[uuid])}",
                source=member.name,
                file=logs[0].name if logs else None,
                advice="bring older logs back, or take a snapshot of the server: box.snapshot()",
            )
        return entry_at(member.name, logs[index])
    if options.start_from == "snapshot":
        if member.initial_snapshot is None:
            raise SourceError(
                "there is no complete snapshot", source=member.name, advice="wait, or use start=logs"
            )
        return entry_at(member.name, member.initial_snapshot)
    if member.initial_snapshot is not None:
        return entry_at(member.name, member.initial_snapshot)
    files = logs or (member.listing.snapshots if member.listing.is_file else ())
    if not files:
        raise SourceError("there is no log file", source=member.name, advice="check the source's path")
    return entry_at(member.name, files[0])


def _replacing_snapshot(member: MemberFiles, applied: Vclock) -> OffsetEntry | None:
    """Return the entry of a member's snapshot with all rows up to the vclock `applied`, or None if it has none.

    It is the oldest such snapshot that the logs continue; if they continue none, it is the newest one.
    """
    listing = member.listing
    logs = listing.logs if listing is not None else ()
    # Rows of local spaces are the instance's own, so component 0 does not count.
    ahead = [
        file
        for file in member.complete_snapshots
        if is_at_most(without_local(applied), without_local(file.vclock))
    ]
    continued = [f for f in ahead if newest_index_at_most(logs, f.vclock, with_local=True) is not None]
    found = continued[0] if continued else ahead[-1] if ahead else None
    if found is None:
        return None
    return replace(entry_at(member.name, found), snapshot_vclock=without_local(found.vclock))


def entry_after_removed_file(
    entry: OffsetEntry, members: Sequence[MemberFiles], settled: Vclock
) -> OffsetEntry | None:
    """Return the entry of the leader's log in which the stream continues after the file of `entry` was removed.

    The result is None if the leader's logs do not have all rows after `settled`.

    Args:
        settled: All rows up to this vclock are applied, or dropped for good, so they need not be read.
    """
    leader = next((member for member in members if member.name == entry.leader), None)
    logs = leader.listing.logs if leader is not None and leader.listing is not None else ()
    index = newest_index_at_most(logs, settled, with_local=False)
    if index is None or logs[index].name < entry.file:
        return None  # only old files are left: see `start_of_changed_history`
    return replace(entry_at(entry.leader, logs[index], 0, entry.snapshot_vclock), is_restart=True)


def start_of_changed_history(entry: OffsetEntry, members: Sequence[MemberFiles]) -> OffsetEntry | None:
    """Return the entry at which the leader's files are read again, because they do not have what was read of them.

    The daemon truncates and rewrites only the last log of a spool, so a spool is read from the start of this log. A
    server that was restored may have written any log again, so its logs are read from the oldest one; rows that are
    settled are only compared. A snapshot is read again whole, as a generation.

    The result is None if no file is left from which the stream can continue without a gap.
    """
    leader = next((member for member in members if member.name == entry.leader), None)
    if leader is None or leader.listing is None:
        return None
    if entry.is_snapshot:
        snapshot = next((file for file in leader.complete_snapshots if file.name == entry.file), None)
        if snapshot is None:
            return None
        begin = entry_at(entry.leader, snapshot)
        return replace(begin, snapshot_vclock=without_local(snapshot.vclock), is_restart=True)
    logs = leader.listing.logs
    first = newest_index_at_most(logs, entry.vclock, with_local=False)
    if first is None:
        return None
    if logs[first].replicaset_uuid is None:
        first = 0
    return replace(entry_at(entry.leader, logs[first], 0, entry.snapshot_vclock), is_restart=True)


def generation_entry(
    entry: OffsetEntry, members: Sequence[MemberFiles], settled: Vclock
) -> OffsetEntry | None:
    """Return the entry of a snapshot from which the stream continues, because no member has the next rows, or None.

    A snapshot of the leader is preferred. One that is older than `settled`, up to which all rows are applied or dropped
    for good, would undo changes, so it is not used.
    """
    applied = vclock_maximum(entry.vclock, settled)
    for member in sorted(members, key=lambda member: member.name != entry.leader):
        found = _replacing_snapshot(member, applied)
        if found is not None and not are_equal(found.vclock, entry.vclock):
            return replace(found, is_restart=True)
    return None


def _refuse_without_vclock(member: MemberFiles, options: XlogOptions) -> None:
    """Raise an error if a file has no VClock, and the options need VClocks to choose the file to begin with."""
    if member.listing is None or not (
        options.with_replicaset or options.start_from != "logs" or options.start_vclock or options.from_vclock
    ):
        return
    for file in (*member.listing.logs, *member.listing.snapshots):
        if not file.has_vclock:
            raise SourceError(
                "the header has no VClock, so it is unknown which rows come before the file",
                source=member.name,
                file=file.name,
                advice="read the directory from its first log (start=logs, by its path), or each file by its own path",
            )


def entry_of_successor(
    entry: OffsetEntry, member: MemberFiles, vclock_before_gap: Vclock | None = None
) -> OffsetEntry | None:
    """Return the entry at which a member continues in place of the leader, or None if its logs begin later.

    If the stream is in the leader's snapshot, the member begins with its own snapshot. If the leader's log had a gap,
    the member begins before the gap if it can.
    """
    if member.listing is None:
        return None
    if entry.is_snapshot:
        return None if member.initial_snapshot is None else entry_at(member.name, member.initial_snapshot)
    logs = member.listing.logs
    index = newest_index_at_most(logs, entry.vclock, with_local=False)
    if vclock_before_gap is not None and index is not None:
        before = newest_index_at_most(logs, vclock_before_gap, with_local=False)
        index = 0 if before is None else min(index, before)
    snapshot_vclock = (
        None if entry.snapshot_vclock is None else without_local(entry.snapshot_vclock)
    )  # component 0 counts the old leader's own rows
    return None if index is None else entry_at(member.name, logs[index], 0, snapshot_vclock)


def newest_signature(member: MemberFiles) -> int:
    """Return the sum of the lsns of a member's newest log header, without component 0; -1 without logs."""
    logs = member.listing.logs if member.listing is not None else ()
    return sum(without_local(logs[-1].vclock).values()) if logs else -1


def successor_entries(
    entry: OffsetEntry, members: Sequence[MemberFiles], vclock_before_gap: Vclock | None = None
) -> list[OffsetEntry]:
    """Return the entries at which the other members can continue; that of the most advanced member is the first."""
    others = sorted((m for m in members if m.name != entry.leader), key=newest_signature, reverse=True)
    return [
        found
        for found in (entry_of_successor(entry, member, vclock_before_gap) for member in others)
        if found is not None
    ]


def last_write_time(member: MemberFiles) -> float | None:
    """Return the time of the last write to a member's newest log, in seconds since 1970; None if it is not known."""
    logs = member.listing.logs if member.listing is not None else ()
    return logs[-1].modified_time if logs else None


def names_of_members_ahead(
    leader: MemberFiles, members: Sequence[MemberFiles], max_lag_seconds: float
) -> list[str]:
    """Return the names of the members whose last write is more than `max_lag_seconds` seconds after the leader's.

    Each member writes every row of the replicaset, so a healthy leader is not far behind. The caller compares vclocks
    to find out whether the leader really lacks rows: rows of local spaces are in the log of one member only.
    """
    own = last_write_time(leader)
    if own is None:
        return []
    writes: Mapping[str, float | None] = {
        m.name: last_write_time(m) for m in members if m.name != leader.name
    }
    return [name for name, moment in writes.items() if moment is not None and moment - own > max_lag_seconds]
