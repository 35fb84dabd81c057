"""Finds spools that no daemon writes now: masters may keep logs for them, which takes disk space.

A daemon holds the lock of its spool while it runs, so the lock alone shows whether one does. A running daemon reports
in its own status which logs masters keep.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import AggregatorError
from sources.spool import state as spool_state
from sources.spool.acks import LOCK
from sources.spool.state import SpoolFile

KEEPS_LOGS_SINCE = (3, 3)
"""From this version on a server keeps logs for a disconnected anonymous replica (`replication_anon_ttl`)."""


@dataclass(frozen=True)
class StoppedSpool:
    """A spool that no daemon writes.

    Parameters
    ----------
    directory : str
    instance_uuid : str
        The uuid under which the masters know its daemon.
    written : float
        Time of the last write to its newest file, seconds since 1970.
    keeps_logs : bool
        Whether its masters keep logs for it.

    """

    directory: str
    instance_uuid: str
    written: float
    keeps_logs: bool


def stopped_spools(directories: Iterable[Path]) -> list[StoppedSpool]:
    """Return the directories that are spools without a daemon."""
    found = (_stopped_spool(directory) for directory in directories)
    return [one for one in found if one is not None]


def _stopped_spool(directory: Path) -> StoppedSpool | None:
    try:
        if _is_locked(directory / LOCK):
            return None
        files = [*spool_state.spool_files(directory, ".snap"), *spool_state.spool_files(directory, ".xlog")]
    except (OSError, AggregatorError):  # not a spool, or one that the job itself reports as damaged
        return None
    newest = max(files, key=_log_order, default=None)
    uuid = None if newest is None else newest.meta.instance_uuid
    if newest is None or uuid is None:
        return None
    release = tuple(map(int, re.findall(r"\d+", newest.meta.other.get("Version", ""))[:2]))
    keeps = release >= KEEPS_LOGS_SINCE
    return StoppedSpool(str(directory), uuid, newest.modified, keeps)


def _log_order(file: SpoolFile) -> tuple[str, str]:
    return file.path.stem, file.path.suffix


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the lock; raises OSError if the file is missing."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
