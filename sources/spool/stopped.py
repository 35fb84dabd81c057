"""Which spools no daemon writes now: masters may keep their logs for such a one, which costs them disk.

A daemon holds the lock of its spool for as long as it runs, so the lock alone says whether one does. Not here: what the
masters keep (the daemon's own status says it while it runs).
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
"""From it on a server keeps its logs for an anonymous replica that is away (`replication_anon_ttl`)."""


@dataclass(frozen=True)
class StoppedSpool:
    """A spool that no daemon writes.

    Parameters
    ----------
    directory : str
    instance_uuid : str
        Under which its daemon is known to the masters.
    written : float
        When its newest file was written last, seconds since 1970.
    keeps_logs : bool
        Whether its masters keep their logs for it.

    """

    directory: str
    instance_uuid: str
    written: float
    keeps_logs: bool


def stopped_spools(directories: Iterable[Path]) -> list[StoppedSpool]:
    """Return those of some directories that are spools without a daemon; others are left out."""
    found = (_stopped(directory) for directory in directories)
    return [one for one in found if one is not None]


def _stopped(directory: Path) -> StoppedSpool | None:
    try:
        if _is_locked(directory / LOCK):
            return None
        files = [*spool_state.files_of(directory, ".snap"), *spool_state.files_of(directory, ".xlog")]
    except (OSError, AggregatorError):  # no spool, or one that the job itself names as damaged
        return None
    newest = max(files, key=_place, default=None)
    uuid = None if newest is None else newest.meta.instance_uuid
    if newest is None or uuid is None:
        return None
    release = tuple(map(int, re.findall(r"\d+", newest.meta.other.get("Version", ""))[:2]))
    keeps = release >= KEEPS_LOGS_SINCE
    return StoppedSpool(str(directory), uuid, newest.modified, keeps)


def _place(file: SpoolFile) -> tuple[str, str]:
    return file.path.stem, file.path.suffix


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the lock; raises OSError where there is none."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
