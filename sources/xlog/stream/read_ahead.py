"""Computes how far a batch can read in one source's files, and how far it reads within a budget of bytes.

A `ReadAhead` is computed from the list of files, their headers and their ends. Rows are read only to find out whether
any are missing between two files, if the first file has no EOF marker or the second one has no PrevVClock. A batch
always ends at the end of a complete block; this position is in the canonical form of offsets
(`sources.xlog.directory.offset`).

A generation (a spool's snapshot after a gap) is read in one batch, which begins with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.errors import XlogRewrittenError
from sources.xlog.directory.directory import REWRITTEN_ADVICE, Directory
from sources.xlog.directory.listing import Listing, LogFile, files_from, files_up_to, may_miss_rows
from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.format.vclock import Vclock, is_at_most, without_local
from sources.xlog.stream.failover import entry_at
from sources.xlog.stream.plan import budget_end, shorter_file_error, snapshot_vclock_after
from sources.xlog.stream.segment import LogGap


@dataclass(frozen=True)
class ReadAhead:
    """The files of one source that the stream can read next."""

    directory: Directory
    entry: OffsetEntry
    """Where the stream is."""
    files: tuple[LogFile, ...]
    """From the entry's file to the last one that may be read."""
    end_position: int
    """Where the complete blocks of the last file end, in bytes."""

    def first_unread_byte(self, file_index: int) -> int:
        """Return the position of the first byte to read of the file with this index."""
        return max(self.files[file_index].header_bytes, self.entry.position if file_index == 0 else 0)

    @property
    def unread_bytes(self) -> list[int]:
        """Number of bytes left to read in each file; the EOF marker counts, except in the last file."""
        last = len(self.files) - 1
        ends = [self.end_position if index == last else file.size for index, file in enumerate(self.files)]
        return [max(0, end - self.first_unread_byte(index)) for index, end in enumerate(ends)]

    def entry_after(self, budget_bytes: int | None = None) -> OffsetEntry:
        """Return the entry after about `budget_bytes` more bytes, but at least one block; None means all bytes."""
        unread_bytes = self.unread_bytes
        if budget_bytes is not None and self.files[0].is_snapshot and self.entry.snapshot_vclock is not None:
            budget_bytes = max(budget_bytes, unread_bytes[0])
        while budget_bytes is not None and budget_bytes < sum(unread_bytes):
            found = self._within_budget(unread_bytes, budget_bytes)
            if found != self.entry:
                return found
            budget_bytes *= 2  # the budget ended in a marker or an unfinished block
        return self.canonical_entry(len(self.files) - 1, self.end_position)

    def _within_budget(self, unread_bytes: Sequence[int], budget_bytes: int) -> OffsetEntry:
        index, taken = budget_end(unread_bytes, budget_bytes)
        file, target = self.files[index], self.first_unread_byte(index) + taken
        is_last = index == len(self.files) - 1
        end = self.end_position if is_last else self.directory.ends.end_of(file, closed=True).position
        position = (
            end
            if target >= end
            else self.directory.ends.block_start_from(file, self.first_unread_byte(index), target, end)
        )
        return self.canonical_entry(index, position)

    def canonical_entry(self, file_index: int, position: int) -> OffsetEntry:
        """Return the canonical entry of a position in the file with this index.

        The end of a file becomes the start of the next file, unless there is a gap between the two. Before a gap the
        entry remains at the end of the file, so the batch with the first rows after the gap also has the gap.
        """
        snapshot_vclock = snapshot_vclock_after(self.entry, self.files[0])
        while file_index > 0 and position <= self.files[file_index].header_bytes:
            file_index, position = (
                file_index - 1,
                self.directory.ends.end_of(self.files[file_index - 1], closed=True).position,
            )
        while file_index + 1 < len(self.files) and self._continues_in_next(file_index, position):
            file_index, position = file_index + 1, 0
        file = self.files[file_index]
        found = checked_entry_at(self.directory, file, position, snapshot_vclock)
        if not file.is_snapshot:
            return found
        return replace(
            found, snapshot_vclock=without_local(file.vclock) if file_index else self.entry.snapshot_vclock
        )

    def _continues_in_next(self, file_index: int, position: int) -> bool:
        """Return whether a position is the end of a file that the next file follows without a gap."""
        file = self.files[file_index]
        if max(position, file.header_bytes) < self.directory.ends.end_of(file, closed=True).position:
            return False
        if self.files[file_index + 1].is_snapshot:
            return True
        return gap_between(self.directory, file, self.files[file_index + 1]) is None


def checked_entry_at(
    directory: Directory, file: LogFile, position: int, snapshot_vclock: Vclock | None = None
) -> OffsetEntry:
    """Return the canonical entry of a position in a file, with the checksum of what is before it."""
    found = entry_at(directory.source.name, file, position, snapshot_vclock)
    if not found.position:
        return found
    return replace(found, checksum=directory.ends.checksum_before(file, found.position))


def refuse_changed_history(directory: Directory, file: LogFile, entry: OffsetEntry) -> None:
    """Raise an error if a file does not have what was read of it up to an entry.

    Raises:
        XlogTruncatedError: If the file is shorter than the entry's position.
        XlogRewrittenError: If its header has another VClock, or the bytes before the position differ.
    """
    if entry.position > file.size:
        raise shorter_file_error(file, entry, directory.source.name)
    if without_local(file.vclock) != entry.vclock:
        raise XlogRewrittenError(
            f"the file begins at {without_local(file.vclock)}, the one that was read began at {dict(entry.vclock)}",
            file=file.name,
            offset=entry.position,
            source=directory.source.name,
            advice=REWRITTEN_ADVICE,
        )
    if entry.checksum is not None:
        directory.ends.refuse_rewritten(file, entry.position, entry.checksum)


def read_ahead_of(
    directory: Directory, listing: Listing, entry: OffsetEntry, fixed_end: OffsetEntry | None = None
) -> ReadAhead:
    """Return the files that the stream can read from an entry on.

    Raises:
        XlogMissingError: If the entry's file is gone.
        XlogTruncatedError, XlogRewrittenError: If the entry's file does not have any more what was read of it.
        XlogError: If the last file is damaged.
    """
    files = files_from(listing, entry)
    refuse_changed_history(directory, files[0], entry)
    sound = _up_to_damage(directory, _up_to_generation(files), entry)
    if sound is not None:
        return sound
    within_end = files_up_to(files, fixed_end.file) if fixed_end is not None else None
    if fixed_end is not None and within_end is None:
        # The stream is in a snapshot that was not the newest when the end was fixed. A snapshot does not grow.
        end = (
            directory.ends.end_of(files[0], closed=True).position if files[0].is_snapshot else entry.position
        )
        return ReadAhead(directory, entry, files[:1], end)
    ahead = _up_to_generation(within_end or files)
    if len(ahead) > 1 and ahead[-1].is_snapshot:
        return ReadAhead(directory, entry, ahead, 0)
    if fixed_end is not None and within_end is not None:
        passed = entry.position if len(within_end) == 1 else 0
        return ReadAhead(
            directory, entry, within_end, max(fixed_end.position, within_end[-1].header_bytes, passed)
        )
    last = files[-1]
    begin = entry.position if len(files) == 1 else 0
    position = directory.ends.end_of(last, closed=last.is_snapshot, begin=begin).position
    return ReadAhead(directory, entry, files, position)


def _up_to_damage(directory: Directory, files: tuple[LogFile, ...], entry: OffsetEntry) -> ReadAhead | None:
    """Return what can be read before the first damaged log that is followed by another one; None if none is damaged.

    Raises:
        XlogError: If the entry is at the damage, or if files are read once.
    """
    for index, file in enumerate(files[:-1]):
        end = directory.ends.end_of(file, closed=True)
        if end.damage is None:
            continue
        position = max(entry.position if index == 0 else 0, file.header_bytes)
        if position >= end.position or directory.ignores_growth:
            raise end.damage
        return ReadAhead(directory, entry, files[: index + 1], end.position)
    return None


def _up_to_generation(files: tuple[LogFile, ...]) -> tuple[LogFile, ...]:
    """Return the files up to and including the next generation, at whose start the batch ends."""
    stop = next((index for index, file in enumerate(files) if index and file.is_snapshot), len(files))
    return files[: stop + 1]


def newest_entry(directory: Directory, listing: Listing) -> OffsetEntry | None:
    """Return the entry at the current end of a source's files; None if it has none."""
    snapshot = directory.newest_complete(listing.snapshots)
    files = listing.ordered_files or (listing.snapshots if listing.is_file else (snapshot,))
    newest = files[-1] if files else None
    if newest is None:
        return None
    end = directory.ends.end_of(newest, closed=newest.is_snapshot)
    return entry_at(directory.source.name, newest, end.position)


def gap_between(directory: Directory, before: LogFile, after: LogFile) -> LogGap | None:
    """Return the gap between two consecutive files, or None if no rows are missing."""
    if not may_miss_rows(before, directory.ends.end_of(before, closed=True), after):
        return None
    reached = before.vclock if before.is_snapshot else directory.ends.end_vclock(before)
    return None if is_at_most(after.vclock, reached) else LogGap(reached, after.vclock)
