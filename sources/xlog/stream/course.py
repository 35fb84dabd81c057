"""How far the stream can go in one source's files, and how far it goes within a budget of bytes.

A generation (a spool's snapshot behind a hole) begins a batch of its own, and is not cut: what it lacks is gone.

A `Course` is found from the directory, headers and ends alone. Its end, and every cut of it, is just past a
whole block, in the one form that offsets have (`sources.xlog.directory.offset`). Rows are read only to tell whether any
are missing between two files of which one was not closed or does not name the other.

Not here: which source leads (`sources.xlog.stream.takeover`), how replicasets share a budget
(`sources.xlog.stream.plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile, files_from, may_miss_rows, upto
from sources.xlog.directory.offset import Entry
from sources.xlog.format.vclock import not_beyond, shared
from sources.xlog.stream.plan import reach, shrunk, since_from
from sources.xlog.stream.segment import Gap
from sources.xlog.stream.takeover import entry_at


@dataclass(frozen=True)
class Course:
    """The files that are ahead of an entry.

    Parameters
    ----------
    directory : Directory
        Of the leader.
    entry : Entry
        Where the stream is.
    files : tuple of LogFile
        From the entry's file to the last one that may be read.
    position : int
        Bytes; where the whole blocks of the last file end.

    """

    directory: Directory
    entry: Entry
    files: tuple[LogFile, ...]
    position: int

    def begin(self, index: int) -> int:
        """Return the position of the first byte to read of a file."""
        return max(self.files[index].header, self.entry.position if index == 0 else 0)

    @property
    def lengths(self) -> list[int]:
        """Bytes that are left of each file; of a closed one with its EOF marker."""
        last = len(self.files) - 1
        ends = [self.position if index == last else file.size for index, file in enumerate(self.files)]
        return [max(0, end - self.begin(index)) for index, end in enumerate(ends)]

    def advance(self, budget: int | None = None) -> Entry:
        """Return where the stream is after reading about `budget` bytes, or all; a whole block at least."""
        lengths = self.lengths
        if budget is not None and self.files[0].is_snapshot and self.entry.since is not None:
            budget = max(budget, lengths[0])
        while budget is not None and budget < sum(lengths):
            found = self._within(lengths, budget)
            if found != self.entry:
                return found
            budget *= 2  # went into a marker or a torn tail, where no block is
        return self.entry_of(len(self.files) - 1, self.position)

    def _within(self, lengths: Sequence[int], budget: int) -> Entry:
        index, taken = reach(lengths, budget)
        file, near = self.files[index], self.begin(index) + taken
        is_last = index == len(self.files) - 1
        end = self.position if is_last else self.directory.ends.of(file, closed=True).position
        position = end if near >= end else self.directory.ends.cut(file, self.begin(index), near, end)
        return self.entry_of(index, position)

    def entry_of(self, index: int, position: int) -> Entry:
        """Return the canonical entry of a place: the end of a file is the start of the next one, if nothing lacks.

        The stream waits before a hole until a row behind it is read, so that one batch sees both sides of it.
        """
        since = since_from(self.entry, self.files[0])
        while index > 0 and position <= self.files[index].header:
            index, position = index - 1, self.directory.ends.of(self.files[index - 1], closed=True).position
        while index + 1 < len(self.files) and self._passes(index, position):
            index, position = index + 1, 0
        file = self.files[index]
        found = entry_at(self.directory.source.name, file, position, since)
        if not file.is_snapshot:
            return found
        return replace(found, since=shared(file.vclock) if index else self.entry.since)

    def _passes(self, index: int, position: int) -> bool:
        file = self.files[index]
        if max(position, file.header) < self.directory.ends.of(file, closed=True).position:
            return False
        if self.files[index + 1].is_snapshot:
            return True
        return gap_between(self.directory, file, self.files[index + 1]) is None


def course_of(directory: Directory, listing: Listing, entry: Entry, pin: Entry | None = None) -> Course:
    """Return what is ahead of an entry.

    Parameters
    ----------
    directory, listing
        Of the source that leads.
    entry : Entry
        Where the stream is.
    pin : Entry, optional
        Nothing beyond this place of the same source is read.

    Raises
    ------
    XlogMissingError
        If the entry's file is gone.
    XlogTruncatedError
        If a file is shorter than what was read of it.
    XlogError
        If the last file is damaged.

    """
    files = files_from(listing, entry)
    if entry.position > files[0].size:
        raise shrunk(files[0], entry, directory.source.name)
    pinned = upto(files, pin.file) if pin is not None else None
    if pin is not None and pinned is None:
        # A snapshot that the stream is in does not grow: another one, or none, was the newest when the end was fixed.
        own = directory.ends.of(files[0], closed=True).position if files[0].is_snapshot else entry.position
        return Course(directory, entry, files[:1], own)
    ahead = _up_to_generation(pinned or files)
    if len(ahead) > 1 and ahead[-1].is_snapshot:
        return Course(directory, entry, ahead, 0)
    if pin is not None and pinned is not None:
        passed = entry.position if len(pinned) == 1 else 0
        return Course(directory, entry, pinned, max(pin.position, pinned[-1].header, passed))
    last = files[-1]
    begin = entry.position if len(files) == 1 else 0
    position = directory.ends.of(last, closed=last.is_snapshot, begin=begin).position
    return Course(directory, entry, files, position)


def _up_to_generation(files: tuple[LogFile, ...]) -> tuple[LogFile, ...]:
    """Return the files up to the next generation, which is included: the batch ends where it begins."""
    stop = next((index for index, file in enumerate(files) if index and file.is_snapshot), len(files))
    return files[: stop + 1]


def newest_entry(directory: Directory, listing: Listing) -> Entry | None:
    """Return the end of a source as of now: nothing that is written later is before it."""
    snapshot = directory.newest_complete(listing.snapshots)
    files = listing.course or (listing.snapshots if listing.is_file else (snapshot,))
    newest = files[-1] if files else None
    if newest is None:
        return None
    end = directory.ends.of(newest, closed=newest.is_snapshot)
    return entry_at(directory.source.name, newest, end.position)


def gap_between(directory: Directory, before: LogFile, after: LogFile) -> Gap | None:
    """Return what is missing between two files that are read one after the other."""
    if not may_miss_rows(before, directory.ends.of(before, closed=True), after):
        return None
    reached = before.vclock if before.is_snapshot else directory.ends.reached(before)
    return None if not_beyond(after.vclock, reached) else Gap(reached, after.vclock)
