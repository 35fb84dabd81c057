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


class Room:
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
        self._reached = 0

    def check(self, written: int = 0) -> None:
        """Refuse a snapshot, or the rest of a partly written one, if there is no room.

        Raises
        ------
        SpoolFullError

        """
        needed = max(self._expected() - written, 0) + self._reserve
        free = self._free()
        if free < needed:
            raise self.refusal(written, f"{free} bytes are free, {needed} are needed")

    def refusal(self, written: int, why: str) -> SpoolFullError:
        """Return the error of a snapshot that ran out of space; remember how far it came, since the next needs more."""
        if written:
            self._reached = max(self._reached, written + 1)
        reached = f" after {written} bytes" if written else ""
        return SpoolFullError(
            f"there is no room for a snapshot{reached}: {why}",
            spool=str(self._directory),
            advice="free space there, or move the spool to a larger file system",
        )

    def _expected(self) -> int:
        snapshots = spool_state.files_of(self._directory, ".snap")
        return max(self._reached, snapshots[-1].size if snapshots else 0)

    def _free(self) -> int:
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize
