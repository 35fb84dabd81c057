"""Reads the state of a spool from its files: its vclock, where the next row is written, whether its daemon runs.

A killed daemon leaves at most an incomplete block at the end of its last log, or an unfinished snapshot. No reader has
read either, and both are removed. The directory is local.

A daemon locks a file of its spool while it runs. Masters may retain logs for a spool without a running daemon
(`stopped_spools`), which takes disk space there; a running daemon reports in its own status which logs masters retain.

`spool` writes the files, `disk_space` removes them.
"""

from __future__ import annotations

import fcntl
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyarrow.fs import LocalFileSystem

from schemas.errors import AggregatorError, SpoolError, XlogError, XlogMetaIncompleteError
from sources.spool.acks import LOCK
from sources.xlog.format.block import BLOCK_LIMIT, EOF_MARKER
from sources.xlog.format.meta import REPLICASET_KEY, Meta
from sources.xlog.format.vclock import rows_ahead, vclock_maximum, without_local
from sources.xlog.format.writer import INPROGRESS
from sources.xlog.reader import reader

logger = logging.getLogger(__name__)

SET_ASIDE = "rewound-"
"""Prefix of the name of a folder in a spool: it has the files of the spool before this one."""
_NAME = re.compile(r"\d{20}\.(?:xlog|snap)\Z")
_FILES = LocalFileSystem()


@dataclass(frozen=True)
class SpoolFile:
    """One complete or growing file of a spool.

    Parameters
    ----------
    path : Path
    meta : Meta
        The file's header.
    size : int
        Size in bytes.
    modified : float
        Time of the last write, seconds since 1970 UTC.

    """

    path: Path
    meta: Meta
    size: int
    modified: float


@dataclass(frozen=True)
class LogTail:
    """The last log of a spool, and where it ends.

    Parameters
    ----------
    path : Path
    meta : Meta
        The log's header.
    position : int
        End of the log's complete blocks, in bytes.
    is_closed : bool
        Whether the log ends with the end marker.

    """

    path: Path
    meta: Meta
    position: int
    is_closed: bool


@dataclass(frozen=True)
class SpoolState:
    """The vclock, the last log and the uuids of a spool.

    Parameters
    ----------
    vclock : mapping or None
        The spool's vclock; None if the spool is empty.
    tail : LogTail or None
        The last log; None if there is no log.
    has_gap : bool
        Whether rows are missing between the last log and `vclock`, because a newer snapshot follows the log.
    instance_uuid, replicaset_uuid : str or None
        The subscriber's uuid and that of the replicaset, from the newest header.

    """

    vclock: Mapping[int, int] | None = None
    tail: LogTail | None = None
    has_gap: bool = False
    instance_uuid: str | None = None
    replicaset_uuid: str | None = None


def file_name(vclock: Mapping[int, int], suffix: str) -> str:
    """Return the name of a file that begins at a vclock: its signature in 20 digits."""
    return f"{sum(vclock.values()):020}{suffix}"


def spool_files(
    directory: Path, suffix: str, cached_metas: dict[Path, Meta] | None = None
) -> list[SpoolFile]:
    """Return the files of a spool with a suffix (`.snap` or `.xlog`), in log order.

    `cached_metas` has headers that were read before, and gets new ones: the header of a file with rows does not change.
    """
    files = []
    metas = {} if cached_metas is None else cached_metas
    for path in sorted(directory.iterdir()):
        if path.suffix == suffix and _NAME.match(path.name):
            stat = path.stat()
            meta = metas.get(path) or reader.read_meta(_FILES, str(path))
            if stat.st_size > meta.length + len(EOF_MARKER):
                metas[path] = meta
            files.append(SpoolFile(path, meta, stat.st_size, stat.st_mtime))
    return files


def refuse_foreign_directory(directory: Path) -> None:
    """Raise an error if a directory has logs but is not a spool, before anything in it is changed.

    A spool has a file `lock`; a copy of a spool names the replicaset in each header. A spool never has a `.vylog`.

    Raises
    ------
    SpoolError
        The directory is a log directory of Tarantool.

    """
    if not directory.is_dir():
        return
    suffixes = {path.name.removesuffix(INPROGRESS).rpartition(".")[2] for path in directory.iterdir()}
    is_foreign = "vylog" in suffixes
    if suffixes & {"xlog", "snap"} and not (directory / LOCK).is_file():
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
    logs = sorted(path for path in directory.glob("*.xlog") if _NAME.match(path.name))
    try:
        if logs:
            reader.read_meta(_FILES, str(logs[-1]))
    except XlogMetaIncompleteError:
        logger.warning("%s: removed, its header is incomplete", logs[-1])
        logs[-1].unlink()
    except XlogError:  # damage is reported by the code that reads the state
        pass


def read_state(directory: Path, limit: int = BLOCK_LIMIT) -> SpoolState:
    """Return the state of the spool in a directory; no file is changed.

    Blocks may have up to `limit` bytes.

    Raises
    ------
    SpoolError
        A file is damaged, except at the end of the last log.

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
    """Return the end of a log's complete blocks as a `LogTail`, and the vclock after them."""
    top = np.zeros(32, np.int64)
    end = None
    try:
        for rows in reader.read_headers(_FILES, str(path), limits=reader.Limits(max_block_bytes=limit)):
            np.maximum.at(top, rows.replica_id, rows.lsn)
    except XlogError as error:
        if "offset" not in error.fields:
            raise SpoolError(f"the last log is damaged: {error}", file=str(path)) from error
        end = int(error.fields["offset"])
        logger.warning("%s: read up to byte %d only: %s", path, end, error)
        top = _lsns_before(path, end, limit)
    position, has_marker = end, False
    if position is None:
        position, has_marker = reader.end_of_complete_blocks(_FILES, str(path), meta.length, limit)
    reached = vclock_maximum(meta.vclock, {id_: int(lsn) for id_, lsn in enumerate(top) if id_ and lsn})
    return LogTail(path, meta, position, has_marker), without_local(reached)


def _lsns_before(path: Path, end: int, limit: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    top = np.zeros(32, np.int64)
    limits = reader.Limits(max_block_bytes=limit)
    for rows in reader.read_headers(_FILES, str(path), 0, end, at_block_starts=True, limits=limits):
        np.maximum.at(top, rows.replica_id, rows.lsn)
    return top


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
        files = [*spool_files(directory, ".snap"), *spool_files(directory, ".xlog")]
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
