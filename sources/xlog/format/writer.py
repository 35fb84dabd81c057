"""Writes log files that Tarantool itself can read: header, blocks of whole transactions, end marker.

A file is created with the name `<name>.inprogress` and renamed atomically: a `.snap` when it is complete, a `.xlog` as
soon as it has its header, so that readers can follow it. Only local files are written.

After a failed write the file is truncated to its length before. If that fails too, or if an fsync fails (the kernel may
have dropped the pages), the writer refuses further writes (`is_sound`), and bytes after `durable` may be lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from sources.xlog.format.block import EOF_MARKER, FLUSH_THRESHOLD, encode_block
from sources.xlog.format.meta import Meta, format_meta

INPROGRESS = ".inprogress"
NO_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a failed write that mean that there is no space: a later write may succeed."""


class Fsync(StrEnum):
    """When a file's bytes are forced to the disk: never, when the file is closed, or after each block."""

    NEVER = "never"
    CLOSE = "close"
    BLOCK = "block"


class XlogWriter:
    """Writes one file.

    It is also a context manager, which closes the file, or leaves it without end marker after an exception.

    Args:
        fsync: When bytes are forced to the disk. With `BLOCK`, this is done before `flush` returns.
        compress: Whether to compress every block; by default as Tarantool does (above 2 KiB).
        replace: Whether an existing file of that name is replaced, atomically: the new file has a temporary name until
            its header is written (a log), or until it is closed (a snapshot).

    Raises:
        FileExistsError: If a file of that name exists, and `replace` is False.
    """

    def __init__(
        self,
        path: Path,
        meta: Meta,
        fsync: Fsync = Fsync.CLOSE,
        compress: bool | None = None,
        *,
        replace: bool = False,
    ) -> None:
        if path.exists() and not replace:
            raise FileExistsError(path)
        self.path = path
        self.position = 0
        """Number of bytes of the header and the complete blocks."""
        self.durable = 0
        """How many of these bytes were forced to the disk; with `NEVER`, they are only assumed to be."""
        self.is_sound = True
        """Whether the file is known to end at `position`; if not, nothing more is written."""
        self._fsync, self._compress = fsync, compress
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._name = path.with_name(path.name + INPROGRESS)
        self._file = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            self._append(format_meta(meta))
            if meta.filetype == "XLOG":
                self._sync(self.position)  # otherwise a power failure may leave the name without the header
                self._rename_to_final()
        except OSError:
            self.abandon()
            raise

    @classmethod
    def resume(
        cls, path: Path, position: int, fsync: Fsync = Fsync.CLOSE, compress: bool | None = None
    ) -> XlogWriter:
        """Return a writer that continues a log without end marker."""
        writer = cls.__new__(cls)
        writer.path = writer._name = path
        writer.position, writer.durable, writer.is_sound = position, 0, True
        writer._fsync, writer._compress = fsync, compress
        writer._pending, writer._pending_size = [], 0
        writer._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(writer._file, position)
            os.lseek(writer._file, position, os.SEEK_SET)
            writer._sync(position)
        except OSError:
            writer.abandon()
            raise
        return writer

    def __enter__(self) -> XlogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    @property
    def is_in_place(self) -> bool:
        """Whether the written file still has its name, and ends where it was written to."""
        own = os.fstat(self._file)
        try:
            named = self._name.stat()
        except FileNotFoundError:
            return False
        return (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino) and named.st_size == self.position

    def write(self, transaction: Iterable[bytes]) -> None:
        """Add the encoded rows of one whole transaction to the block that is being filled.

        The block is written when it has grown to `FLUSH_THRESHOLD`, or by `flush`.
        """
        rows = b"".join(transaction)
        self._pending.append(rows)
        self._pending_size += len(rows)
        if self._pending_size >= FLUSH_THRESHOLD:
            self.flush()

    def write_block(self, rows: bytes) -> None:
        """Write whole transactions as one block, without delay; after an OSError the file is as it was."""
        self.flush()
        self._write_block(rows)

    def flush(self) -> None:
        """Write the block that is being filled; afterwards other processes can read it."""
        if not self._pending:
            return
        self._write_block(b"".join(self._pending))
        self._pending, self._pending_size = [], 0

    def close(self) -> None:
        """Write the remaining rows and the end marker, and give the file its final name."""
        self.flush()
        end = self.position
        self._append(EOF_MARKER)
        self._sync(end)
        if self._name != self.path:
            self._rename_to_final()
        self.abandon()

    def abandon(self) -> None:
        """Close the file without writing an end marker or the rows that were not flushed."""
        file, self._file = self._file, -1
        if file >= 0:
            # All durable bytes were forced to the disk before; the descriptor is closed even if this fails.
            with contextlib.suppress(OSError):
                os.close(file)

    def _write_block(self, rows: bytes) -> None:
        self._append(encode_block(rows, self._compress))
        if self._fsync is not Fsync.CLOSE:
            self._sync(self.position)

    def _append(self, data: bytes) -> None:
        """Write at the end; after a partial write, truncate the file to its last complete block."""
        if not self.is_sound:
            raise OSError(errno.EIO, "an earlier write failed, and the end of the file is uncertain")
        self.is_sound = False  # until all is written, in case this is interrupted
        try:
            write_all(self._file, data)
        except OSError as error:
            os.ftruncate(self._file, self.position)
            os.lseek(self._file, self.position, os.SEEK_SET)
            self.is_sound = error.errno in NO_SPACE_ERRNOS
            raise
        self.position += len(data)
        self.is_sound = True

    def _sync(self, durable: int) -> None:
        """Force the file to the disk unless `fsync` is NEVER, and set `durable`."""
        if self._fsync is not Fsync.NEVER:
            self.is_sound = False
            os.fsync(self._file)
            self.is_sound = True
        self.durable = durable

    def _rename_to_final(self) -> None:
        self._name = self._name.rename(self.path)
        if self._fsync is not Fsync.NEVER:
            sync_directory(self.path.parent)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes to a file descriptor; a single system call may write only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def sync_directory(path: Path) -> None:
    """Force a directory's entries to the disk: files that were created, renamed or removed."""
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
