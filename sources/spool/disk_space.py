"""Chooses the files of a spool that can be removed, and checks whether a snapshot fits on its disk.

If there are readers (configured, or with an acknowledgement), a file stays until all readers have acknowledged its
rows, however large the spool grows: a full disk stops the stream but loses no rows. Without readers, the limits of size
and age apply (`SpoolRetention`). The last log always stays. A snapshot stays as long as the log that continues from it,
and as long as new readers may need one (`SpoolRetention.keeps_snapshot`).

No server reports how large its snapshot is. So the size is estimated: at least the size of the spool's newest snapshot,
and more than any earlier attempt had written when it ran out of space. `spool` handles a disk that is full when rows of
logs are written.
"""

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

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a write that mean that the disk is full."""


def removable_files(
    snapshots: Sequence[SpoolFile],
    logs: Sequence[SpoolFile],
    acks: Mapping[str, ReaderAck],
    retention: SpoolRetention,
    now: float,
) -> list[Path]:
    """Return the paths of the files that can be removed, snapshots first, each in log order."""
    closed_logs = logs[:-1]
    counting_acks = {
        name: a
        for name, a in acks.items()
        if name in retention.required_readers or now - a.modified_at < retention.reader_expiry_seconds
    }
    if counting_acks or retention.required_readers:
        old_logs = _acknowledged_logs(closed_logs, logs, counting_acks, retention.required_readers)
    else:
        old_logs = _logs_beyond_limits(snapshots, logs, retention, now)
    if retention.keeps_snapshot:
        newest = snapshots[-1] if snapshots else None
        old_logs = [] if newest is None else [f for f in old_logs if _ends_before_snapshot(f, logs, newest)]
    first = logs[len(old_logs)] if logs else None
    old_snapshots = [s for s in snapshots if first is not None and _precedes_log(s, first)]
    if retention.keeps_snapshot and snapshots:
        old_snapshots = [s for s in old_snapshots if s is not snapshots[-1]]
    return [file.path for file in (*old_snapshots, *old_logs)]


def _acknowledged_logs(
    closed_logs: Sequence[SpoolFile],
    logs: Sequence[SpoolFile],
    acks: Mapping[str, ReaderAck],
    readers: frozenset[str],
) -> list[SpoolFile]:
    if readers - acks.keys():
        return []
    old_logs = []
    for file, following in zip(closed_logs, logs[1:], strict=True):
        if not all(is_at_most(without_local(following.meta.vclock), ack.vclock) for ack in acks.values()):
            break
        old_logs.append(file)
    return old_logs


def _logs_beyond_limits(
    snapshots: Sequence[SpoolFile], logs: Sequence[SpoolFile], retention: SpoolRetention, now: float
) -> list[SpoolFile]:
    total = sum(file.size for file in (*snapshots, *logs))
    old_logs = []
    for file in logs[:-1]:
        too_old = retention.max_age_seconds is not None and now - file.modified_at > retention.max_age_seconds
        too_large = retention.max_bytes is not None and total > retention.max_bytes
        if not (too_old or too_large):
            break
        old_logs.append(file)
        total -= file.size
    return old_logs


def _ends_before_snapshot(log: SpoolFile, logs: Sequence[SpoolFile], snapshot: SpoolFile) -> bool:
    following = logs[logs.index(log) + 1]
    return is_at_most(without_local(following.meta.vclock), without_local(snapshot.meta.vclock))


def _precedes_log(snapshot: SpoolFile, log: SpoolFile) -> bool:
    before, first = without_local(snapshot.meta.vclock), without_local(log.meta.vclock)
    return before != first and is_at_most(before, first)


def remove_files(paths: Sequence[Path]) -> None:
    """Delete files, in the given order."""
    for path in paths:
        logger.info("%s: removed, no reader needs it", path)
        path.unlink(missing_ok=True)


class DiskSpace:
    """Compares the free space of a spool's file system with the estimated size of the next snapshot."""

    def __init__(self, directory: Path, reserve: int) -> None:
        self._directory, self._reserve = directory, reserve
        self._last_failed_bytes = 0

    def check_snapshot_fits(self, written_bytes: int = 0) -> None:
        """Raise SpoolFullError if the rest of a snapshot does not fit on the disk."""
        needed = max(self._expected_bytes() - written_bytes, 0) + self._reserve
        free = self._free_bytes()
        if free < needed:
            raise self.full_error(written_bytes, f"{free} bytes are free, {needed} are needed")

    def full_error(self, written_bytes: int, reason: str) -> SpoolFullError:
        """Return the error for a snapshot that ran out of space after `written_bytes`; later estimates are larger."""
        if written_bytes:
            self._last_failed_bytes = max(self._last_failed_bytes, written_bytes + 1)
        progress = f" after {written_bytes} bytes" if written_bytes else ""
        return SpoolFullError(
            f"there is no room for a snapshot{progress}: {reason}",
            spool=str(self._directory),
            advice="free space there, or move the spool to a larger file system",
        )

    def _expected_bytes(self) -> int:
        snapshots = spool_files(self._directory, ".snap")
        return max(self._last_failed_bytes, snapshots[-1].size if snapshots else 0)

    def _free_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize
