"""Finds where the files of one source end and where their blocks start, and caches the answers while they are valid.

A closed file does not change, and of a growing one only the new part is walked. Only block headers are read, except by
`FileEnds.end_vclock`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import pyarrow.fs as pafs

from schemas.errors import XlogError
from schemas.iproto import GROUP_LOCAL, VCLOCK_MAX
from sources.xlog.directory.listing import FileEnd, LogFile
from sources.xlog.format.block import BLOCK_LIMIT, EOF_MARKER
from sources.xlog.format.damage import Mode
from sources.xlog.format.vclock import joined
from sources.xlog.reader import reader

SEARCH_AHEAD = 1 << 20
"""Bytes that are searched first for a block start after a given position; then the rest of the file is walked."""

PROBE_BYTES = 1 << 16
LARGE_BLOCK = 1 << 12
"""A file whose blocks have at least this many bytes is split by walking its headers."""

Opened = tuple[pafs.FileSystem, str]


@dataclass
class FileEnds:
    """The ends of one source's files.

    Parameters
    ----------
    opened : callable
        Base name → file system, and path in it.
    mode : Mode
        What to do about damage.
    block : int
        The longest block, in bytes.
    is_final : bool
        Whether files are read once, as they are now: then an incomplete snapshot is damage, not a copy in progress.

    """

    opened: Callable[[str], Opened]
    mode: Mode = Mode.FAILFAST
    block: int = BLOCK_LIMIT
    is_final: bool = False
    _ends: dict[str, tuple[int, FileEnd]] = field(default_factory=dict)
    _reached: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)
    _complete: dict[str, tuple[int, bool]] = field(default_factory=dict)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Drop the cached ends of removed files, so that memory does not grow with the log."""
        for known in (self._ends, self._reached, self._complete):
            for name in [name for name in known if name not in names]:
                del known[name]

    def of(self, file: LogFile, *, closed: bool, begin: int = 0) -> FileEnd:
        """Return where the whole blocks of a file end now.

        Parameters
        ----------
        file : LogFile
            As listed.
        closed : bool
            Whether it cannot grow: a snapshot, or a log with a successor.
        begin : int
            The end of a whole block, where the walk begins unless a later end is cached.

        A file that ends with the EOF marker is not walked: reading its rows finds any damage. If `is_final`, a
        snapshot without the marker ends with its last byte, so that reading its rows finds the incomplete block.

        Raises
        ------
        XlogError
            If it is damaged and `mode` is FAILFAST.

        """
        remembered = self._ends.get(file.name)
        if remembered is not None and remembered[0] == file.size:
            return remembered[1]
        if (closed or remembered is None) and self.is_complete(file):
            end = FileEnd(file.size - len(EOF_MARKER), has_marker=True)
        else:
            known = remembered[1].position if remembered is not None else 0
            end = self._walked(file.name, max(known, begin, file.header))
            if self.is_final and file.is_snapshot and not file.name.endswith(".inprogress"):
                end = FileEnd(file.size, has_marker=False)
        self._ends[file.name] = (file.size, end)
        return end

    def _walked(self, name: str, begin: int) -> FileEnd:
        """Return the end of the blocks from `begin` on; a lenient mode continues after damage."""
        filesystem, path = self.opened(name)
        while True:
            try:
                return FileEnd(*reader.end_of_whole_blocks(filesystem, path, begin, self.block))
            except XlogError as error:
                if self.mode is Mode.FAILFAST or "offset" not in error.fields:
                    raise
                damaged = int(error.fields["offset"])
                following = reader.block_boundary(filesystem, path, damaged + 1, limit=self.block)
                size = filesystem.get_file_info(path).size
                if following >= size:
                    # A file without any block is damaged from its first byte on.
                    return FileEnd(damaged if begin else size, has_marker=False)
                begin = following

    def is_complete(self, file: LogFile) -> bool:
        """Return whether a file ends with the EOF marker."""
        remembered = self._complete.get(file.name)
        if remembered is None or remembered[0] != file.size:
            remembered = self._complete[file.name] = (file.size, self._ends_with_marker(file))
        return remembered[1]

    def _ends_with_marker(self, file: LogFile) -> bool:
        if file.size < file.header + len(EOF_MARKER):
            return False
        filesystem, path = self.opened(file.name)
        with filesystem.open_input_file(path) as stream:
            return bool(stream.read_at(len(EOF_MARKER), file.size - len(EOF_MARKER)) == EOF_MARKER)

    def end_vclock(self, file: LogFile) -> dict[int, int]:
        """Return the vclock after the last whole block of a log. Expensive: it reads the headers of all rows."""
        end = self.of(file, closed=False)
        remembered = self._reached.get(file.name)
        if remembered is None or remembered[0] != end.position:
            vclock = joined(file.vclock, self._last_lsns(file, end.position))
            remembered = self._reached[file.name] = (end.position, vclock)
        return remembered[1]

    def _last_lsns(self, file: LogFile, end: int) -> dict[int, int]:
        """Return the highest lsn per vclock component among the rows of a log."""
        highest = np.zeros(VCLOCK_MAX, np.int64)
        filesystem, path = self.opened(file.name)
        for rows in reader.read_headers(
            filesystem,
            path,
            file.header,
            end,
            mode=self.mode,
            exact=True,
            limits=reader.Limits(block=self.block),
        ):
            ids = np.where(rows.group_id == GROUP_LOCAL, 0, np.maximum(rows.replica_id, 0))
            np.maximum.at(highest, ids, rows.lsn)
        return {id_: int(lsn) for id_, lsn in enumerate(highest) if lsn > 0}

    def block_start_from(self, file: LogFile, begin: int, target: int, end: int) -> int:
        """Return the first block start at or after `target`, or `end`.

        Parameters
        ----------
        file : LogFile
            As listed.
        begin, end : int
            Bytes; a block starts at `begin`, and the last block ends at `end`.
        target : int
            Bytes, between them.

        """
        for last in (target + SEARCH_AHEAD, end):
            starts = self.block_starts(file.name, begin, min(last, end), target - begin)
            if len(starts) > 1:
                return starts[1]
        return end

    def has_large_blocks(self, name: str, begin: int, end: int) -> bool:
        """Return whether the first blocks from `begin` are so large that walking their headers skips most bytes."""
        probed = min(end - begin, PROBE_BYTES)
        return len(self.block_starts(name, begin, begin + probed, 1)) * LARGE_BLOCK <= probed

    def block_starts(self, name: str, begin: int, end: int, every: int) -> list[int]:
        """Return block starts that split [begin, end) into ranges of about `every` bytes.

        The walk follows block headers, so bytes of a tuple that look like a block cannot mislead it.
        """
        try:
            return reader.block_starts(*self.opened(name), begin, end, every, self.block)
        except XlogError:
            if self.mode is Mode.FAILFAST:
                raise
            # Block starts after damage are not certain, so one task reads the whole range.
            return [begin]
