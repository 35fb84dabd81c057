"""Writes a spool: snapshots and rotated logs, with each row once and in order.

A log is named after the vclock after which its rows begin; a closed log ends with Tarantool's end marker. When `append`
returns, the rows are in the file, in complete blocks. The option `fsync` decides how soon they are on the disk; all
rows up to `durable_vclock` certainly are. If the disk is full, rows wait in memory for `write_waiting_rows`, and the
daemon stops reading. After any other write error, the log is truncated to its durable part and closed, the next log
begins at `durable_vclock`, and rows above it must be fetched again. So no row follows a missing one.

Only one process writes a spool, since it locks the file `lock` there. The directory must be local. `state` reads the
files when the daemon starts; `disk_space` chooses the files to remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from schemas.errors import SpoolBrokenError, SpoolError, SpoolFullError
from sources.spool import state as spool_state
from sources.spool.acks import ACKS_FOLDER, LOCK_FILE
from sources.spool.options import SpoolOptions
from sources.spool.state import LogTail, SpoolState, file_name
from sources.xlog.format.arrays import Bytes
from sources.xlog.format.block import EOF_MARKER
from sources.xlog.format.damage import transaction_limit_error
from sources.xlog.format.meta import (
    PEER_VERSIONS_KEY,
    REPLICASET_KEY,
    Meta,
    format_peer_versions,
    peer_versions,
)
from sources.xlog.format.vclock import is_at_most, rows_ahead, vclock_maximum, without_local
from sources.xlog.format.writer import NO_SPACE_ERRNOS, Fsync, XlogWriter, sync_directory, write_all

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerVersions:
    """Versions of the servers that sent the rows of a log."""

    main_version: str
    by_replica_id: Mapping[int, str] = field(default_factory=dict)
    """{replica id: version} for ids whose rows come from a peer with another version than `main_version`."""

    @staticmethod
    def from_meta(meta: Meta, file: str) -> ServerVersions:
        """Return the versions that the header `meta` of a file names; `file` is its name in errors."""
        return ServerVersions(meta.other.get("Version", ""), peer_versions(meta, file))

    def header_lines(self) -> dict[str, str]:
        """Return {key: value} of the header lines that name these versions."""
        peers = {PEER_VERSIONS_KEY: format_peer_versions(self.by_replica_id)} if self.by_replica_id else {}
        return {"Version": self.main_version, **peers}


@dataclass(frozen=True)
class FlushPoint:
    """A position in the open log: bytes before it are written, but may not be on the disk yet."""

    path: Path
    position: int
    vclock: Mapping[int, int]
    """The spool's vclock at the position."""
    truncation_count: int
    """`Spool.truncation_count` when the point was made."""

    def flush(self) -> None:
        """Flush the log to the disk; may run in any thread.

        It opens the file itself: the kernel reports a write error once per descriptor, so with a shared descriptor
        another fsync could receive the error.
        """
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


class Spool:
    """Writes one spool; as a context manager it locks the spool and closes the open log at the end.

    A missing directory is created.

    Raises:
        SpoolError: Another process writes the spool, or its files are damaged.
    """

    def __init__(self, directory: Path, options: SpoolOptions | None = None) -> None:
        self.directory = directory
        self.options = options or SpoolOptions()
        self.versions = ServerVersions("2.6.0")
        """Versions of the servers that send the next rows. Rows of different versions are in different logs."""
        self.replicaset_uuid: str | None = None
        """The replicaset's uuid, which each header names, so that the logs identify the replicaset."""
        self.vclock: dict[int, int] | None = None
        """The vclock after the last written row; None if the spool is empty."""
        self.durable_vclock: dict[int, int] | None = None
        """The vclock that survives a power failure, as far as `fsync` requires; only this may be acknowledged."""
        self.instance_uuid: str | None = None
        """The subscriber's uuid, which the headers name as the instance."""
        self._lock = -1
        self._writer: XlogWriter | None = None
        self._tail: LogTail | None = None
        self._has_gap = False
        self._unwritten: list[tuple[Bytes, dict[int, int], ServerVersions]] = []
        self._log_to_truncate: tuple[Path, int] | None = None
        """After a write error: the log that must be truncated before the next write, and to which length in bytes."""
        self.truncation_count = 0
        """How often the spool was truncated; each time, rows above `vclock` must be fetched again first."""

    def __enter__(self) -> Spool:
        spool_state.refuse_foreign_directory(self.directory)
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._lock = lock_file(self.directory / LOCK_FILE)
        try:
            self._unwritten.clear()
            self._finish_truncation()
            spool_state.remove_incomplete_files(self.directory)
            self._restore_state(spool_state.read_state(self.directory, self.options.max_block_bytes))
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            self._unlock()

    def abandon(self) -> None:
        """Release the spool without an end marker in the open log, as if the process were killed."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    @property
    def durable_end(self) -> tuple[Path, int] | None:
        """Path of the open log, and how many of its bytes are certainly on the disk; None if no log is open."""
        writer = self._writer
        return None if writer is None else (writer.path, writer.durable)

    @property
    def is_full(self) -> bool:
        """Whether rows wait for free disk space."""
        return bool(self._unwritten)

    def begin_at(self, vclock: Mapping[int, int]) -> None:
        """Begin an empty spool at a vclock, without a snapshot; the next appended rows are above it."""
        if self.vclock is not None:
            raise SpoolError("the spool is not empty", spool=str(self.directory))
        self.vclock = self.durable_vclock = without_local(vclock)

    def append(self, rows: Bytes, vclock: Mapping[int, int]) -> None:
        """Write complete transactions, whose rows come from servers of `self.versions`.

        Args:
            rows: The rows, encoded as in a log. The caller ensures that they continue from `self.vclock`.
            vclock: The spool's vclock after these rows.

        Raises:
            SpoolFullError: The disk is full; the rows wait in memory, and `write_waiting_rows` writes them.
            TransactionLimitError: The rows are longer than a block may be; they are not written.
        """
        if rows.size > self.options.max_block_bytes:
            raise transaction_limit_error(self.options.max_block_bytes, spool=str(self.directory))
        self._unwritten.append((rows, dict(vclock), self.versions))
        self.write_waiting_rows()

    def write_waiting_rows(self) -> None:
        """Write the rows that wait in memory.

        Raises:
            SpoolFullError: The disk is still full.
            SpoolBrokenError: Writing failed: the log is truncated, `vclock` is now lower, and rows above it must be
                fetched again.
        """
        self._finish_truncation()
        try:
            while self._unwritten:
                rows, vclock, versions = self._unwritten[0]
                self._open_log(versions).write_block(rows.tobytes())
                self.vclock = without_local(vclock_maximum(self.vclock or {}, vclock))
                if self.options.fsync is not Fsync.CLOSE:
                    self.durable_vclock = self.vclock
                del self._unwritten[0]
                if self._writer is not None and self._writer.position >= self.options.rotate_bytes:
                    self._close_log()
        except OSError as error:
            raise self._handle_write_error(error) from error

    def flush_point(self) -> FlushPoint | None:
        """Return the end of the written rows, up to which the log must be flushed; None if all rows are flushed."""
        writer = self._writer
        if writer is None or self.durable_vclock == self.vclock:
            return None
        return FlushPoint(writer.path, writer.position, self.vclock or {}, self.truncation_count)

    def record_flush(self, point: FlushPoint) -> None:
        """Record that the log was flushed up to a point; ignored if the spool has been truncated since."""
        writer = self._writer
        if (
            writer is not None
            and writer.path == point.path
            and self.truncation_count == point.truncation_count
        ):
            writer.durable, self.durable_vclock = point.position, dict(point.vclock)

    def record_flush_failure(self, error: OSError) -> SpoolError:
        """Record that flushing failed: truncate the log to its durable part, and return the error to raise."""
        if self._writer is not None:
            self._writer.is_sound = False
        return self._handle_write_error(error)

    def create_snapshot(
        self, vclock: Mapping[int, int], versions: ServerVersions | None = None
    ) -> XlogWriter:
        """Return a writer of a new snapshot at a vclock; after closing it, the caller calls `continue_from`.

        With `versions`, the snapshot is only one more file: the logs continue as they are. An existing snapshot of the
        same vclock is replaced when the writer is closed.
        """
        path, options = self.directory / file_name(without_local(vclock), ".snap"), self.options
        meta = self._new_meta("SNAP", without_local(vclock), versions or self.versions)
        return XlogWriter(path, meta, options.fsync, options.compress, replace=True)

    def continue_from(self, vclock: Mapping[int, int]) -> None:
        """Continue from a complete snapshot at a vclock: the next rows are above it; rows before it may be missing."""
        self.close()
        before, self.vclock = self.vclock, without_local(vclock)
        if before is not None and not is_at_most(before, self.vclock):
            raise SpoolError(f"a snapshot at {self.vclock} is older than the spool at {before}")
        self._has_gap = before is not None and rows_ahead(self.vclock, before) > 0
        self.durable_vclock = self.vclock

    def move_files_to(self, folder_name: str) -> Path:
        """Move all files into a new folder inside the spool, and return the folder; then the spool is empty.

        The last log is moved last: if the daemon is killed meanwhile, its restart finds the same vclock or an empty
        spool. Acknowledgements are moved too, because no reader has read the files that are written next.
        """
        self.close()
        folder = self.directory / folder_name
        folder.mkdir()
        with contextlib.suppress(FileNotFoundError):
            (self.directory / ACKS_FOLDER).rename(folder / ACKS_FOLDER)
        for suffix in (".snap", ".xlog"):
            for file in spool_state.spool_files(self.directory, suffix):
                file.path.rename(folder / file.path.name)
        sync_directory(folder)
        sync_directory(self.directory)
        self._unwritten.clear()
        self.vclock, self.durable_vclock, self._tail, self._has_gap = None, None, None, False
        return folder

    def close(self) -> None:
        """Close the open log with its end marker."""
        writer = self._writer
        if writer is None:
            return
        try:
            writer.close()
        except OSError as error:
            logger.warning("%s: the end marker could not be written: %s", writer.path, error)
            if writer.is_sound:
                self._writer = None
                writer.abandon()
            else:
                self._truncate()
            return
        self._writer, self.durable_vclock = None, self.vclock

    def _restore_state(self, state: SpoolState) -> None:
        self.vclock = None if state.vclock is None else dict(state.vclock)
        self._tail, self._has_gap = state.tail, state.has_gap
        self.instance_uuid, self.replicaset_uuid = state.instance_uuid, state.replicaset_uuid
        tail = state.tail
        if tail is not None and not tail.is_closed and not state.has_gap:
            options = self.options
            self._writer = XlogWriter.resume(tail.path, tail.end, options.fsync, options.compress)
        if self.options.fsync is not Fsync.NEVER:
            if tail is not None and self._writer is None:
                FlushPoint(tail.path, tail.end, {}, 0).flush()
            sync_directory(self.directory)
        self.durable_vclock = self.vclock

    def _open_log(self, versions: ServerVersions) -> XlogWriter:
        if self._writer is not None:
            if self._writer.is_sound and not self._writer.is_in_place:
                raise self._give_up_changed_log(self._writer)
            if self._has_versions(versions):
                return self._writer
            self._end_log_of_other_version()
        vclock, options = self.vclock or {}, self.options
        path = self.directory / file_name(vclock, ".xlog")
        previous = self._tail.meta.vclock if self._tail is not None else None
        is_again = self._tail is not None and self._tail.path == path
        if self._tail is not None and is_again:
            previous = self._tail.meta.prev_vclock
        if self._has_gap:
            # New rows do not continue from the previous log, and a reader must see that.
            previous = vclock
        if self._tail is not None and is_again and self._has_versions(versions):
            # A closed log without a row: its end marker is overwritten, as a restarted server does.
            self._writer = XlogWriter.resume(path, self._tail.meta.length, options.fsync, options.compress)
        else:
            meta = self._new_meta("XLOG", vclock, versions, previous)
            # An existing file of this name can only be a log without rows.
            self._writer = XlogWriter(path, meta, options.fsync, options.compress, replace=True)
            self._tail = LogTail(path, replace(meta, length=self._writer.position), 0, is_closed=False)
        self._has_gap = False
        return self._writer

    def _give_up_changed_log(self, writer: XlogWriter) -> SpoolBrokenError:
        """Leave a log that somebody else has changed as it is; the spool must be entered again."""
        writer.abandon()
        self._writer = None
        self._unwritten.clear()
        self.truncation_count += 1
        return SpoolBrokenError(
            "the open log was replaced, removed or changed by somebody else: the spool continues from its files",
            file=str(writer.path),
            advice="change or restore a spool only while its daemon is stopped",
        )

    def _has_versions(self, versions: ServerVersions) -> bool:
        return (
            self._tail is not None
            and ServerVersions.from_meta(self._tail.meta, self._tail.path.name) == versions
        )

    def _end_log_of_other_version(self) -> None:
        """Close the open log before rows of other server versions; a log without rows is left to be replaced."""
        writer, tail = self._writer, self._tail
        if writer is not None and tail is not None and writer.position <= tail.meta.length:
            self._writer = None
            writer.abandon()
        else:
            self._close_log()

    def _close_log(self) -> None:
        """Close the open log; raise OSError if that fails, because the rows of the next log would follow a gap."""
        if self._writer is not None:
            self._writer.close()
            self._writer, self.durable_vclock = None, self.vclock

    def _new_meta(
        self,
        kind: str,
        vclock: Mapping[int, int],
        versions: ServerVersions,
        prev_vclock: Mapping[int, int] | None = None,
    ) -> Meta:
        if self.instance_uuid is None:
            raise SpoolError("the spool has no instance uuid", spool=str(self.directory))
        other = versions.header_lines()
        if self.replicaset_uuid is not None:
            other[REPLICASET_KEY] = self.replicaset_uuid
        return Meta(kind, "0.13", self.instance_uuid, vclock, prev_vclock, other)

    def _handle_write_error(self, error: OSError) -> SpoolError:
        writer = self._writer
        if error.errno in NO_SPACE_ERRNOS and (writer is None or writer.is_sound):
            return SpoolFullError(
                f"the disk is full: {error.strerror}; rows wait on the server",
                spool=str(self.directory),
                advice="free space, or let readers acknowledge the rows that they have read",
            )
        self._truncate()
        return SpoolBrokenError(
            f"the spool cannot be written: {error}; rows above {self.vclock} are fetched again",
            spool=str(self.directory),
        )

    def _truncate(self) -> None:
        self._unwritten.clear()
        self.truncation_count += 1
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.abandon()
        self._log_to_truncate = writer.path, writer.durable
        self.vclock = self.durable_vclock
        with contextlib.suppress(SpoolBrokenError):  # tried again before the next write
            self._finish_truncation()

    def _finish_truncation(self) -> None:
        """Truncate the log of the last write error, if that has not succeeded yet."""
        if self._log_to_truncate is None:
            return
        path, position = self._log_to_truncate
        try:
            _truncate_log(path, position)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise SpoolBrokenError(f"a log cannot be truncated: {error}", file=str(path)) from error
        self._log_to_truncate = None
        if self._tail is not None and self._tail.path == path:
            self._tail = replace(self._tail, end=position, is_closed=True)


def _truncate_log(path: Path, position: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(file, position)
        os.lseek(file, position, os.SEEK_SET)
        write_all(file, EOF_MARKER)
        os.fsync(file)
    finally:
        os.close(file)


def lock_file(path: Path) -> int:
    """Lock a spool by its file, and return the descriptor, which holds the lock; raise SpoolError if another has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise SpoolError(
            "another process writes the spool", spool=str(path.parent), advice="stop it first"
        ) from error
    os.utime(file)  # a sign of life, see `spool_state.renew_lock`
    return file
