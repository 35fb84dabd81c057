"""Reads the state of a spool from its files: its vclock, the end of its last log, and whether its daemon runs.

A killed daemon leaves at most an incomplete block at the end of its last log, or an unfinished snapshot. Readers ignore
both, and both are removed. The directory must be local.

A daemon locks a file of its spool while it runs. For a spool without a running daemon (`stopped_spools`), masters may
retain logs, which takes their disk space; for other spools, the daemon's status has the logs that masters retain.

`spool` writes the files, `disk_space` chooses the files to remove.
"""

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyarrow.fs import LocalFileSystem

from schemas.errors import AggregatorError, SpoolError, XlogError, XlogMetaIncompleteError
from sources.spool.acks import LOCK_FILE
from sources.xlog.format.block import BLOCK_LIMIT, EOF_MARKER
from sources.xlog.format.meta import REPLICASET_KEY, Meta
from sources.xlog.format.vclock import rows_ahead, vclock_maximum, without_local
from sources.xlog.format.writer import INPROGRESS
from sources.xlog.reader import reader

logger = logging.getLogger(__name__)

REWOUND_PREFIX = "rewound-"
"""Prefix of a folder in a spool with the files of an earlier spool, moved there after an instance lost rows."""
_FILE_NAME = re.compile(r"\d{20}\.(?:xlog|snap)\Z")
_LOCAL_FS = LocalFileSystem()


@dataclass(frozen=True)
class SpoolFile:
    """One snapshot or log of a spool, complete or growing."""

    path: Path
    meta: Meta
    size: int
    """Size in bytes."""
    modified_at: float
    """Time of the last write to the file, seconds since 1970 UTC."""


@dataclass(frozen=True)
class LogTail:
    """The last log of a spool, and where it ends."""

    path: Path
    meta: Meta
    end: int
    """Position in the file, in bytes, at which the complete blocks end."""
    is_closed: bool


@dataclass(frozen=True)
class SpoolState:
    """The vclock, the last log and the uuids of a spool."""

    vclock: Mapping[int, int] | None = None
    """The spool's vclock; None if the spool is empty."""
    tail: LogTail | None = None
    """The last log; None if there is no log."""
    has_gap: bool = False
    """Whether rows are missing between the last log and `vclock`, because a newer snapshot follows the log."""
    instance_uuid: str | None = None
    replicaset_uuid: str | None = None
    """Uuids of the daemon as a subscriber, and of the replicaset, from the header of the newest file."""


def file_name(vclock: Mapping[int, int], suffix: str) -> str:
    """Return the name of a file that begins at a vclock: the sum of its lsns in 20 digits, and the suffix."""
    return f"{sum(vclock.values()):020}{suffix}"


def spool_files(
    directory: Path, suffix: str, cached_metas: dict[Path, Meta] | None = None
) -> list[SpoolFile]:
    """Return the files of a spool with a suffix (`.snap` or `.xlog`), in log order; add to the cached headers."""
    files = []
    metas = {} if cached_metas is None else cached_metas
    for path in sorted(directory.iterdir()):
        if path.suffix == suffix and _FILE_NAME.match(path.name):
            stat = path.stat()
            meta = metas.get(path) or reader.read_meta(_LOCAL_FS, str(path))
            if stat.st_size > meta.length + len(EOF_MARKER):
                metas[path] = meta
            files.append(SpoolFile(path, meta, stat.st_size, stat.st_mtime))
    return files


def refuse_foreign_directory(directory: Path) -> None:
    """Raise an error if a directory has logs but is not a spool; the caller has changed nothing in it yet.

    A spool has a file `lock`. A copy of a spool may lack it, but each header names the replicaset. No spool has a
    `.vylog`.

    Raises:
        SpoolError: The directory is a log directory of Tarantool.
    """
    if not directory.is_dir():
        return
    suffixes = {path.name.removesuffix(INPROGRESS).rpartition(".")[2] for path in directory.iterdir()}
    is_foreign = "vylog" in suffixes
    if suffixes & {"xlog", "snap"} and not (directory / LOCK_FILE).is_file():
        try:
            files = [*spool_files(directory, ".snap"), *spool_files(directory, ".xlog")]
            is_foreign = (
                is_foreign or not files or any(REPLICASET_KEY not in file.meta.other for file in files)
            )
        except XlogError:
            is_foreign = True
    if is_foreign:
        raise SpoolError(
            "the directory has logs but is not a spool: nothing in it was changed",
            spool=str(directory),
            advice="name an empty directory; the main job reads a log directory of Tarantool without a spool",
        )


def remove_incomplete_files(directory: Path) -> None:
    """Remove files that were incomplete when the daemon was killed or the power failed."""
    for path in directory.glob(f"*{INPROGRESS}"):
        logger.warning("%s: removed, it is incomplete", path)
        path.unlink()
    logs = sorted(path for path in directory.glob("*.xlog") if _FILE_NAME.match(path.name))
    try:
        if logs:
            reader.read_meta(_LOCAL_FS, str(logs[-1]))
    except XlogMetaIncompleteError:
        logger.warning("%s: removed, its header is incomplete", logs[-1])
        logs[-1].unlink()
    except XlogError:  # damage is reported by the code that reads the state
        pass


def read_state(directory: Path, limit: int = BLOCK_LIMIT) -> SpoolState:
    """Return the state of the spool in a directory; no file is changed.

    `limit` is the longest accepted block, in bytes.

    Raises:
        SpoolError: A file is damaged, except at the end of the last log.
    """
    try:
        snapshots, logs = spool_files(directory, ".snap"), spool_files(directory, ".xlog")
    except XlogError as error:
        raise SpoolError(f"the spool is damaged: {error}", spool=str(directory)) from error
    if not snapshots and not logs:
        return SpoolState()
    newest = (logs or snapshots)[-1].meta
    uuids = newest.instance_uuid, newest.other.get(REPLICASET_KEY)
    if not logs:
        return SpoolState(without_local(snapshots[-1].meta.vclock), None, False, *uuids)
    tail, reached = read_tail(logs[-1].path, logs[-1].meta, limit)
    if snapshots and rows_ahead(snapshots[-1].meta.vclock, reached) > 0:
        return SpoolState(without_local(snapshots[-1].meta.vclock), tail, True, *uuids)
    return SpoolState(reached, tail, False, *uuids)


def read_tail(path: Path, meta: Meta, limit: int = BLOCK_LIMIT) -> tuple[LogTail, dict[int, int]]:
    """Find the end of a log's complete blocks; return it as a `LogTail`, and the vclock after these blocks.

    `meta` is the log's header, and `limit` the longest accepted block, in bytes.
    """
    top = np.zeros(32, np.int64)
    end = None
    try:
        for rows in reader.read_headers(_LOCAL_FS, str(path), limits=reader.Limits(max_block_bytes=limit)):
            np.maximum.at(top, rows.replica_id, rows.lsn)
    except XlogError as error:
        if "offset" not in error.fields:
            raise SpoolError(f"the last log is damaged: {error}", file=str(path)) from error
        end = int(error.fields["offset"])
        logger.warning("%s: read up to byte %d only: %s", path, end, error)
        top = _last_lsns_before(path, end, limit)
    position, has_marker = end, False
    if position is None:
        position, has_marker = reader.end_of_complete_blocks(_LOCAL_FS, str(path), meta.length, limit)
    reached = vclock_maximum(meta.vclock, {id_: int(lsn) for id_, lsn in enumerate(top) if id_ and lsn})
    return LogTail(path, meta, position, has_marker), without_local(reached)


def _last_lsns_before(path: Path, end: int, limit: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    top = np.zeros(32, np.int64)
    limits = reader.Limits(max_block_bytes=limit)
    for rows in reader.read_headers(_LOCAL_FS, str(path), 0, end, at_block_starts=True, limits=limits):
        np.maximum.at(top, rows.replica_id, rows.lsn)
    return top


KEEPS_LOGS_SINCE = (3, 3)
"""From this version on a server retains logs for a disconnected anonymous replica (`replication_anon_ttl`)."""


HUNG_SECONDS = 30.0
"""A daemon renews the time of its spool's lock file every few seconds (`renew_lock`); after this long it hangs."""


def renew_lock(directory: Path) -> None:
    """Show that the daemon that writes a spool is alive: set the time of its lock file."""
    with contextlib.suppress(OSError):  # a full or read-only disk is reported by what writes there
        os.utime(directory / LOCK_FILE)


@dataclass(frozen=True)
class StoppedSpool:
    """A spool without a daemon that runs and shows signs of life."""

    directory: str
    instance_uuid: str
    """The uuid under which the spool's daemon subscribed."""
    written: float
    """Time of the last write to the spool's newest file, seconds since 1970 UTC."""
    keeps_logs: bool
    """Whether masters of this version retain logs for a daemon that does not run."""
    is_hung: bool = False
    """Whether a daemon has locked the spool, but has shown no sign of life for `HUNG_SECONDS`."""


def stopped_spools(directories: Iterable[Path]) -> list[StoppedSpool]:
    """Return those of the given directories that are spools without a running daemon."""
    spools = (_stopped_spool(directory) for directory in directories)
    return [spool for spool in spools if spool is not None]


def _stopped_spool(directory: Path) -> StoppedSpool | None:
    try:
        lock = directory / LOCK_FILE
        is_locked = _is_locked(lock)
        if is_locked and time.time() - lock.stat().st_mtime < HUNG_SECONDS:
            return None
        files = [*spool_files(directory, ".snap"), *spool_files(directory, ".xlog")]
    except (OSError, AggregatorError):  # not a spool, or a damaged one, which the job reports
        return None
    newest = max(files, key=lambda file: (file.path.stem, file.path.suffix), default=None)
    uuid = None if newest is None else newest.meta.instance_uuid
    if newest is None or uuid is None:
        return None
    release = tuple(map(int, re.findall(r"\d+", newest.meta.other.get("Version", ""))[:2]))
    keeps = release >= KEEPS_LOGS_SINCE
    return StoppedSpool(str(directory), uuid, newest.modified_at, keeps, is_locked)


def _is_locked(path: Path) -> bool:
    """Return whether a process has locked a file; raises OSError if the file is missing."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
