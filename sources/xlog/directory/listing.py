"""The files of a source as plain data, and the order in which they are read: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import XlogError, XlogMissingError
from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.format.vclock import Vclock, are_equal, is_at_most, without_local


@dataclass(frozen=True)
class LogFile:
    """One file of a source: facts from its name, its header and the directory."""

    name: str
    """Base name."""
    path: str
    """Path or URI of the file."""
    size: int
    """Bytes at the time of listing."""
    modified_time: float | None
    """Seconds since 1970 of the last write, or None if the file system does not say."""
    header_bytes: int
    """Length of the text header, and so the position of the first block."""
    vclock: Vclock
    """The instance's vclock before the first row."""
    prev_vclock: Vclock | None
    """The header VClock of the log before this one, if the header has it."""
    instance_uuid: str | None
    """From the header."""
    replicaset_uuid: str | None = None
    """From the header of a spool's file; None for Tarantool's own files, whose headers do not have it."""
    filetype: str = ""
    """The type that the header names, such as SNAP. Empty if the header is damaged; then the file name says whether the
    file is a snapshot."""
    has_vclock: bool = True
    """Whether the header has a VClock; files of Tarantool 1.6.1 do not."""

    @property
    def is_snapshot(self) -> bool:
        """Whether the file is a snapshot."""
        return self.filetype == "SNAP" if self.filetype else self.name.endswith(".snap")

    @property
    def is_log(self) -> bool:
        """Whether the file is a log: its rows are changes with an lsn and a timestamp."""
        return self.filetype in ("", "XLOG") and not self.is_snapshot


@dataclass(frozen=True)
class Listing:
    """The readable files of a source at one moment."""

    source: str
    snapshots: tuple[LogFile, ...]
    logs: tuple[LogFile, ...]
    """Each from the oldest to the newest."""
    is_file: bool = False
    """Whether the source is one file, not a directory."""
    generations: tuple[LogFile, ...] = ()
    """Those of the snapshots from which a spool continues after a gap in its logs."""

    @property
    def ordered_files(self) -> tuple[LogFile, ...]:
        """The logs in their order, each generation before the log that continues it."""
        return tuple(sorted((*self.logs, *self.generations), key=_log_order_key))

    def log_named(self, name: str) -> LogFile:
        """Return the log of a base name; raise XlogMissingError if it is gone, although a batch was planned with it."""
        for file in self.logs:
            if file.name == name:
                return file
        raise XlogMissingError(
            "a log of a planned batch is gone",
            file=name,
            source=self.source,
            advice="bring it back from a backup; the batch is planned again",
        )


def _log_order_key(file: LogFile) -> tuple[str, bool]:
    return file.name.partition(".")[0], not file.is_snapshot


def generations_of(snapshots: Sequence[LogFile], logs: Sequence[LogFile]) -> list[LogFile]:
    """Return the snapshots from which a spool continues after a gap in its logs.

    The daemon stores a server's snapshot in the spool when it begins, and again when no server has the next rows any
    more. In the header of the log after such a snapshot, `PrevVClock` equals `VClock`; this log may not exist yet
    (`sources.spool.spool`).
    """
    found = []
    for file in snapshots:
        is_first = not any(_log_order_key(other) < _log_order_key(file) for other in (*snapshots, *logs))
        after = next((log for log in logs if are_equal(log.vclock, file.vclock)), None)
        is_new = all(_log_order_key(log) < _log_order_key(file) for log in logs)
        # A daemon that was restarted between its snapshot and the next row knows no previous log.
        continues = after is not None and (
            after.prev_vclock is None or are_equal(after.prev_vclock, after.vclock)
        )
        if file.replicaset_uuid is not None and not is_first and (is_new or continues):
            found.append(file)
    return found


@dataclass(frozen=True)
class FileEnd:
    """Where the complete blocks of a file end."""

    position: int
    """The end of the last complete block, in bytes."""
    has_marker: bool
    """Whether the EOF marker follows there."""
    damage: XlogError | None = None
    """Why the rest of a log that another log follows cannot be read, unless the server left the rest out itself."""


def newest_index_at_most(logs: Sequence[LogFile], vclock: Vclock, *, with_local: bool) -> int | None:
    """Return the index of the newest log whose header VClock is at most `vclock`; None if there is none.

    Args:
        with_local: Whether component 0 is compared too. This makes sense only if both vclocks come from one instance.
    """
    for index in range(len(logs) - 1, -1, -1):
        header = logs[index].vclock
        if is_at_most(header if with_local else without_local(header), vclock):
            return index
    return None


def files_from(listing: Listing, entry: OffsetEntry) -> tuple[LogFile, ...]:
    """Return the files from the entry's on, in the order of reading; raise XlogMissingError if the entry's is gone."""
    files = listing.ordered_files
    for index, file in enumerate(files):
        if file.name == entry.file:
            return files[index:]
    for file in listing.snapshots:
        if file.name == entry.file:
            logs = logs_after_snapshot(listing.logs, file)
            rest = files[files.index(logs[0]) :] if logs else ()
            # The next generation, if no log follows this snapshot before it.
            next_ = (
                one
                for one in listing.generations
                if _log_order_key(file) < _log_order_key(one) and one not in rest
            )
            return (file, *next_, *rest)
    raise XlogMissingError(
        "the file that the stream is in is gone",
        file=entry.file,
        offset=entry.position,
        source=listing.source,
        advice="bring it back from a backup, add another member of the replicaset as a source, "
        "or start again from a snapshot",
    )


def logs_after_snapshot(logs: Sequence[LogFile], snapshot: LogFile) -> tuple[LogFile, ...]:
    """Return the logs that continue a snapshot: from the newest one that begins at or before it, or all logs."""
    base = newest_index_at_most(logs, snapshot.vclock, with_local=True)
    return tuple(logs[base or 0 :])


def files_up_to(files: Sequence[LogFile], name: str) -> tuple[LogFile, ...] | None:
    """Return the files up to and including the file `name`; None if it is not among them."""
    for index, file in enumerate(files):
        if file.name == name:
            return tuple(files[: index + 1])
    return None


def may_miss_rows(before: LogFile, end: FileEnd, after: LogFile) -> bool:
    """Return whether rows may be missing between two consecutive files, as far as headers and ends show.

    A log's `PrevVClock` is the VClock of the log before it. Logs of old Tarantool versions do not have it. A log
    without EOF marker was not closed by its server, so it may end before the next log begins. In both cases only the
    lsns of the rows show whether any are missing.
    """
    if before.is_snapshot:
        return not is_at_most(after.vclock, before.vclock)
    if after.prev_vclock is not None and not are_equal(after.prev_vclock, before.vclock):
        return True
    return not end.has_marker and not are_equal(after.vclock, before.vclock)
