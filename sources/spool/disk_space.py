"""Keeps a spool within its disk: chooses the files that can be removed, and checks for room for a snapshot.

If there are readers (configured, or with an acknowledgement), a file stays until all readers have acknowledged its
rows, however large the spool grows: a full disk stops the stream but loses no rows. Without readers, limits of size and
age apply. The last log always stays. A snapshot stays as long as the log that continues from it, and as long as new
readers may need one (`SpoolRetention.snapshot`).

No server reports how large its snapshot is. So the size is estimated: from the newest snapshot of the spool, and from
how many bytes were written when the last attempt ran out of space. `spool` handles a full disk for rows of logs.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.errors import SpoolFullError
from sources.spool.acks import ReaderAck
from sources.spool.options import SpoolRetention
from sources.spool.state import SpoolFile, spool_files
from sources.xlog.format.vclock import is_at_most, without_local

logger = logging.getLogger(__name__)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a write that mean that the disk is full."""


def removable_files(
    snapshots: Sequence[SpoolFile],
    logs: Sequence[SpoolFile],
    acks: Mapping[str, ReaderAck],
    keep: SpoolRetention,
    now: float,
) -> list[Path]:
    """Return the files that can be removed, from snapshots and logs in log order; `now` is seconds since 1970 UTC."""
    closed = logs[:-1]
    counting_acks = {
        name: a for name, a in acks.items() if name in keep.readers or now - a.modified < keep.forget
    }
    if counting_acks or keep.readers:
        old_logs = _acknowledged_logs(closed, logs, counting_acks, keep.readers)
    else:
        old_logs = _logs_beyond_limits(snapshots, logs, keep, now)
    if keep.snapshot:
        newest = snapshots[-1] if snapshots else None
        old_logs = [] if newest is None else [f for f in old_logs if _ends_before_snapshot(f, logs, newest)]
    first = logs[len(old_logs)] if logs else None
    old_snapshots = [s for s in snapshots if first is not None and _precedes_log(s, first)]
    if keep.snapshot and snapshots:
        old_snapshots = [s for s in old_snapshots if s is not snapshots[-1]]
    return [file.path for file in (*old_snapshots, *old_logs)]


def _acknowledged_logs(
    closed: Sequence[SpoolFile],
    logs: Sequence[SpoolFile],
    acks: Mapping[str, ReaderAck],
    readers: frozenset[str],
) -> list[SpoolFile]:
    if readers - acks.keys():
        return []
    old_logs = []
    for file, following in zip(closed, logs[1:], strict=True):
        if not all(is_at_most(without_local(following.meta.vclock), ack.vclock) for ack in acks.values()):
            break
        old_logs.append(file)
    return old_logs


def _logs_beyond_limits(
    snapshots: Sequence[SpoolFile], logs: Sequence[SpoolFile], keep: SpoolRetention, now: float
) -> list[SpoolFile]:
    total = sum(file.size for file in (*snapshots, *logs))
    old_logs = []
    for file in logs[:-1]:
        too_old = keep.age is not None and now - file.modified > keep.age
        too_large = keep.size is not None and total > keep.size
        if not (too_old or too_large):
            break
        old_logs.append(file)
        total -= file.size
    return old_logs


def _ends_before_snapshot(file: SpoolFile, logs: Sequence[SpoolFile], snapshot: SpoolFile) -> bool:
    following = logs[logs.index(file) + 1]
    return is_at_most(without_local(following.meta.vclock), without_local(snapshot.meta.vclock))


def _precedes_log(snapshot: SpoolFile, log: SpoolFile) -> bool:
    before, first = without_local(snapshot.meta.vclock), without_local(log.meta.vclock)
    return before != first and is_at_most(before, first)


def remove_files(paths: Sequence[Path]) -> None:
    """Delete files in this order."""
    for path in paths:
        logger.info("%s: removed, no reader needs it", path)
        path.unlink(missing_ok=True)


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
        """Return the error for a snapshot that ran out of space; the next `check` expects more than `written` bytes."""
        if written:
            self._known_size = max(self._known_size, written + 1)
        progress = f" after {written} bytes" if written else ""
        return SpoolFullError(
            f"there is no room for a snapshot{progress}: {why}",
            spool=str(self._directory),
            advice="free space there, or move the spool to a larger file system",
        )

    def _expected_size(self) -> int:
        snapshots = spool_files(self._directory, ".snap")
        return max(self._known_size, snapshots[-1].size if snapshots else 0)

    def _free_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize
