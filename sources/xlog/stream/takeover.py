"""Which source of a replicaset leads, and where it begins: pure choices from listings.

A member's log holds all rows of its replicaset in the order in which it applied them, so one source of a
replicaset is read and the others stand by. The leader is in the offset: it stays until its source is removed,
cannot be followed, or is behind. Its stand-in begins at the newest of its own logs whose header VClock is not
beyond the one of the file where the leader stopped: every row that the leader had not passed is in that log
or a later one, and rows that it had passed come twice (whoever reads the stream drops them by vclock).

A takeover's own batch reads nothing: it ends where the stand-in begins. So what a batch reads never depends
on two leaders, and a replay needs the offsets alone.

A server may have collected the file in which the stream is. Then the stream restarts at a later place: in a log that
has all rows behind what is settled, or else in a snapshot, as a generation. That batch reads nothing either.

Not here: opening or listing anything (`sources.xlog.stream.follow`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.errors import AggregatorError, SourceError, XlogGapError
from sources.xlog.directory.listing import Listing, LogFile, newest_not_beyond
from sources.xlog.directory.offset import Entry
from sources.xlog.format.vclock import Vclock, joined, not_beyond, same, shared
from sources.xlog.options import XlogOptions
from sources.xlog.stream.plan import since_of


@dataclass(frozen=True)
class Member:
    """One source of a replicaset at one moment.

    Parameters
    ----------
    name : str
        Of the source.
    listing : Listing or None
        None where it cannot be read.
    snapshot : LogFile or None
        Its newest complete snapshot; asked for only where a stream may begin with one.
    error : AggregatorError or None
        Why it cannot be read.
    complete : tuple of LogFile
        Its complete snapshots, in the order of the log; asked for only where a hole may be bridged by one.

    """

    name: str
    listing: Listing | None
    snapshot: LogFile | None = None
    error: AggregatorError | None = None
    complete: tuple[LogFile, ...] = ()


def entry_at(source: str, file: LogFile, position: int = 0, since: Vclock | None = None) -> Entry:
    """Return the canonical entry of a place in a file."""
    canonical = position if position > file.header else 0
    return Entry(source, file.name, canonical, shared(file.vclock), since_of(file, since))


def beginning_of_file(member: Member) -> Entry | None:
    """Return where one file that is read by itself begins, whatever `start` says; None if nothing is written of it."""
    if member.listing is None:
        raise member.error or SourceError("the source cannot be read", source=member.name)
    files = (*member.listing.logs, *member.listing.snapshots)
    return entry_at(member.name, files[0]) if files else None


def beginning(member: Member, uuid: str, options: XlogOptions) -> Entry:
    """Return where a replicaset that is new to the stream begins, in this member's files.

    Raises
    ------
    SourceError
        If there is no file to begin with, or no complete snapshot where one is asked for.
    XlogGapError
        If all logs begin beyond the vclock that `startVclock` names.

    """
    if member.listing is None:
        raise member.error or SourceError("the source cannot be read", source=member.name)
    logs = member.listing.logs
    _refuse_without_vclock(member, options)
    if uuid in options.start_vclock:
        index = newest_not_beyond(logs, options.start_vclock[uuid], local=False)
        if index is None:
            generation = _generation(member, options.start_vclock[uuid])
            if generation is not None:
                return generation
            raise XlogGapError(
                f"no log reaches back to the vclock {dict(options.start_vclock[uuid])}",
                source=member.name,
                file=logs[0].name if logs else None,
                advice="bring older logs back, or take a snapshot of the server: box.snapshot()",
            )
        return entry_at(member.name, logs[index])
    if options.start == "snapshot":
        if member.snapshot is None:
            raise SourceError(
                "there is no complete snapshot", source=member.name, advice="wait, or use start=logs"
            )
        return entry_at(member.name, member.snapshot)
    if member.snapshot is not None:
        return entry_at(member.name, member.snapshot)
    files = logs or (member.listing.snapshots if member.listing.is_file else ())
    if not files:
        raise SourceError("there is no log file", source=member.name, advice="check the source's path")
    return entry_at(member.name, files[0])


def _generation(member: Member, had: Vclock) -> Entry | None:
    """Return the snapshot of a member that bridges what is missing behind a vclock, None where it has none.

    It is the oldest one from which the logs go on, so that as little as possible is in no log; else the newest.
    """
    listing = member.listing
    logs = listing.logs if listing is not None else ()
    # A snapshot says nothing of rows of local spaces.
    ahead = [file for file in member.complete if not_beyond(shared(had), shared(file.vclock))]
    continued = [f for f in ahead if newest_not_beyond(logs, f.vclock, local=True) is not None]
    found = continued[0] if continued else ahead[-1] if ahead else None
    if found is None:
        return None
    return replace(entry_at(member.name, found), since=shared(found.vclock))


def later_log(entry: Entry, members: Sequence[Member], settled: Vclock) -> Entry | None:
    """Return where the leader goes on without a loss although the file of an entry is gone, None where it cannot.

    Parameters
    ----------
    entry : Entry
    members : sequence of Member
    settled : mapping of int to int
        Rows up to it need not be read.

    """
    leader = next((member for member in members if member.name == entry.leader), None)
    logs = leader.listing.logs if leader is not None and leader.listing is not None else ()
    index = newest_not_beyond(logs, settled, local=False)
    if index is None or logs[index].name < entry.file:
        return None
    return replace(entry_at(entry.leader, logs[index], 0, entry.since), restart=True)


def cut_back(entry: Entry, members: Sequence[Member]) -> Entry | None:
    """Return the beginning of a spool's log that has become shorter than an entry, None where it is no spool's."""
    leader = next((member for member in members if member.name == entry.leader), None)
    logs = leader.listing.logs if leader is not None and leader.listing is not None else ()
    found = next((log for log in logs if log.name == entry.file and log.replicaset_uuid is not None), None)
    return None if found is None else replace(entry_at(entry.leader, found, 0, entry.since), restart=True)


def generation(entry: Entry, members: Sequence[Member], settled: Vclock) -> Entry | None:
    """Return the snapshot with which a stream goes on whose next rows no member has, None where there is none.

    Parameters
    ----------
    entry : Entry
        In a file that is gone.
    members : sequence of Member
        The leader's own snapshot comes first, then the others' in the order given.
    settled : mapping of int to int
        A snapshot that is behind it would undo what is known.

    """
    had = joined(entry.vclock, settled)
    for member in sorted(members, key=lambda member: member.name != entry.leader):
        found = _generation(member, had)
        if found is not None and not same(found.vclock, entry.vclock):
            return replace(found, restart=True)
    return None


def _refuse_without_vclock(member: Member, options: XlogOptions) -> None:
    """Raise where a choice among a directory's files needs their VClocks, and one does not tell it."""
    if member.listing is None or not (
        options.with_replicaset or options.start != "logs" or options.start_vclock or options.from_vclock
    ):
        return
    for file in (*member.listing.logs, *member.listing.snapshots):
        if not file.has_vclock:
            raise SourceError(
                "the header has no VClock, so nothing tells which rows come before the file",
                source=member.name,
                file=file.name,
                advice="read the directory from its first log (start=logs, by its path), or each file by its own path",
            )


def stand_in(entry: Entry, member: Member, held: Vclock | None = None) -> Entry | None:
    """Return where a member goes on for the one that `entry` names, or None where its logs do not cover it.

    A leader that is lost inside its snapshot is followed by the stand-in's own snapshot. Where the leader's log
    had a hole, the stand-in begins before it if it can.

    Parameters
    ----------
    entry : Entry
    member : Member
    held : mapping of int to int, optional
        The vclock before the hole.

    """
    if member.listing is None:
        return None
    if entry.is_snapshot:
        return None if member.snapshot is None else entry_at(member.name, member.snapshot)
    logs = member.listing.logs
    index = newest_not_beyond(logs, entry.vclock, local=False)
    if held is not None and index is not None:
        before = newest_not_beyond(logs, held, local=False)
        index = 0 if before is None else min(index, before)
    since = None if entry.since is None else shared(entry.since)  # local rows are the leader's own
    return None if index is None else entry_at(member.name, logs[index], 0, since)


def progress(member: Member) -> int:
    """Return how far a member's newest log header is: the sum of its lsns without component 0."""
    logs = member.listing.logs if member.listing is not None else ()
    return sum(shared(logs[-1].vclock).values()) if logs else -1


def successors(entry: Entry, members: Sequence[Member], held: Vclock | None = None) -> list[Entry]:
    """Return where the other members would go on, the one that is farthest first, then in the order given."""
    others = sorted((m for m in members if m.name != entry.leader), key=progress, reverse=True)
    return [found for found in (stand_in(entry, member, held) for member in others) if found is not None]


def last_write(member: Member) -> float | None:
    """Return when a member's newest log was written, in seconds since 1970, where that is known."""
    logs = member.listing.logs if member.listing is not None else ()
    return logs[-1].modified if logs else None


def seem_ahead(leader: Member, members: Sequence[Member], max_lag: float) -> list[str]:
    """Return the members that were written more than `max_lag` seconds after the leader was.

    Every row of a replicaset is written by each member, so a healthy leader is not far behind. Whether rows
    are really missing in it is for the vclocks to say; rows of local spaces move one member's clock alone.
    """
    own = last_write(leader)
    if own is None:
        return []
    writes: Mapping[str, float | None] = {m.name: last_write(m) for m in members if m.name != leader.name}
    return [name for name, moment in writes.items() if moment is not None and moment - own > max_lag]
