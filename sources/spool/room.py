"""Checks for free disk space before a snapshot is fetched and while it is written.

No server reports how large its snapshot is. So the size is estimated: from the newest snapshot of the spool, and from
how many bytes were written when the last attempt ran out of space. `sources.spool.spool` handles a full disk for rows
of logs.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from schemas.errors import SpoolFullError
from sources.spool import state as spool_state

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskSpace:
    """Compares the free space of a spool's file system with the estimated size of a snapshot.

    `reserve` is how much space must remain free, in bytes.
    """

    def __init__(self, directory: Path, reserve: int) -> None:
        self._directory, self._reserve = directory, reserve
        self._known_size = 0

    def check(self, written: int = 0) -> None:
        """Check that a snapshot fits on the disk; `written` bytes of it are already there.

        Raises
        ------
        SpoolFullError
            There is too little free space.

        """
        needed = max(self._expected_size() - written, 0) + self._reserve
        free = self._free_bytes()
        if free < needed:
            raise self.full_error(written, f"{free} bytes are free, {needed} are needed")

    def full_error(self, written: int, why: str) -> SpoolFullError:
        """Return the error for a snapshot that ran out of space after `written` bytes; the next check requires more."""
        if written:
            self._known_size = max(self._known_size, written + 1)
        progress = f" after {written} bytes" if written else ""
        return SpoolFullError(
            f"there is no room for a snapshot{progress}: {why}",
            spool=str(self._directory),
            advice="free space there, or move the spool to a larger file system",
        )

    def _expected_size(self) -> int:
        snapshots = spool_state.spool_files(self._directory, ".snap")
        return max(self._known_size, snapshots[-1].size if snapshots else 0)

    def _free_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize
