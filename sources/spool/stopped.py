"""Finds spools without a running daemon: masters may retain logs for them, which takes disk space.

A daemon locks a file of its spool while it runs, so the lock shows whether a daemon is running. A running daemon
reports in its own status which logs masters retain.
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

KEEPS_LOGS_SINCE = (3, 3)
"""From this version on a server retains logs for a disconnected anonymous replica (`replication_anon_ttl`)."""


@dataclass(frozen=True)
class StoppedSpool:
    """A spool without a running daemon.

    Parameters
    ----------
    directory : str
        The spool.
    instance_uuid : str
        The uuid under which its daemon subscribed.
    written : float
        Time of the last write to its newest file, seconds since 1970 UTC.
    keeps_logs : bool
        Whether the masters' version retains logs for its daemon.

    """

    directory: str
    instance_uuid: str
    written: float
    keeps_logs: bool


def stopped_spools(directories: Iterable[Path]) -> list[StoppedSpool]:
    """Return the spools among some directories that have no running daemon."""
    spools = (_stopped_spool(directory) for directory in directories)
    return [spool for spool in spools if spool is not None]


def _stopped_spool(directory: Path) -> StoppedSpool | None:
    try:
        if _is_locked(directory / LOCK):
            return None
        files = [*spool_state.spool_files(directory, ".snap"), *spool_state.spool_files(directory, ".xlog")]
    except (OSError, AggregatorError):  # not a spool, or a damaged one, which the job reports
        return None
    newest = max(files, key=lambda file: (file.path.stem, file.path.suffix), default=None)
    uuid = None if newest is None else newest.meta.instance_uuid
    if newest is None or uuid is None:
        return None
    release = tuple(map(int, re.findall(r"\d+", newest.meta.other.get("Version", ""))[:2]))
    keeps = release >= KEEPS_LOGS_SINCE
    return StoppedSpool(str(directory), uuid, newest.modified, keeps)


def _is_locked(path: Path) -> bool:
    """Return whether a process has locked a file; raises OSError if the file is missing."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
