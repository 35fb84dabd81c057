"""Whether there is room for a snapshot: looked at before one is fetched, and while it is written.

No server says how large its snapshot is. So what is known represents it: the newest snapshot of the spool, and how far
the last attempt came which found no room. Not here: rows that find no room (`sources.spool.spool`).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from schemas.errors import SpoolFullError
from sources.spool import state as spool_state

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class Room:
    """The room of one spool's file system.

    Parameters
    ----------
    directory : Path
        Of the spool.
    reserve : int
        Bytes that stay free.

    """

    def __init__(self, directory: Path, reserve: int) -> None:
        self._directory, self._reserve = directory, reserve
        self._reached = 0

    def check(self, written: int = 0) -> None:
        """Refuse a snapshot, or the rest of one that is partly written, where there is no room.

        Raises
        ------
        SpoolFullError

        """
        needed = max(self._expected() - written, 0) + self._reserve
        free = self._free()
        if free < needed:
            raise self.refusal(written, f"{free} bytes are free, {needed} are needed")

    def refusal(self, written: int, why: str) -> SpoolFullError:
        """Return the error of a snapshot that finds no room, and remember how far it came: the next needs more."""
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
