"""Checks for free disk space before a snapshot is fetched and while it is written.

No server reports how large its snapshot is. So the size is estimated from the newest snapshot of the spool, and from
the point at which the last attempt ran out of space. `sources.spool.spool` handles rows that do not fit.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from schemas.errors import SpoolFullError
from sources.spool import state as spool_state

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskSpace:
    """Free space of one spool's file system.

    Parameters
    ----------
    directory : Path
        The spool's.
    reserve : int
        Bytes that stay free.

    """

    def __init__(self, directory: Path, reserve: int) -> None:
        self._directory, self._reserve = directory, reserve
        self._known_size = 0

    def check(self, written: int = 0) -> None:
        """Refuse a snapshot, or the rest of a partly written one, if there is no room.

        Raises
        ------
        SpoolFullError

        """
        needed = max(self._expected_size() - written, 0) + self._reserve
        free = self._free_bytes()
        if free < needed:
            raise self.full_error(written, f"{free} bytes are free, {needed} are needed")

    def full_error(self, written: int, why: str) -> SpoolFullError:
        """Return the error of a snapshot that ran out of space; remember how far it came, since the next needs more."""
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
