"""Writes log files that Tarantool itself reads: header, blocks of whole transactions, end marker.

A file is written under the name `<name>.inprogress` and renamed in one step: a `.snap` when it is complete, a
`.xlog` as soon as its header is there, so that readers may follow it. Local files only.

After a write that failed the file is as it was before. Where even that is not certain, and after any failed fsync,
whose pages the kernel may have dropped, the writer never writes again (`is_sound`): what is behind `durable` may be
lost.

Not here: encoding of rows (`encode`), of blocks (`block`), of the header (`meta`).
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
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write after which another may succeed."""


class Fsync(StrEnum):
    """When a file's bytes are forced to the disk."""

    NEVER = "never"
    CLOSE = "close"
    BLOCK = "block"


class XlogWriter:
    """Writes one file; also a context manager that closes it, or leaves it unfinished after an exception.

    Parameters
    ----------
    path : Path
        The final name, such as `00000000000000000042.xlog`.
    meta : Meta
        The header.
    fsync : Fsync
        `BLOCK` before `flush` returns, `CLOSE` at the end only.
    compress : bool, optional
        Of every block; by default what Tarantool does (above 2 KiB).
    replace : bool
        Whether a file of that name is replaced, in one step, when this one gets its name.

    Raises
    ------
    FileExistsError
        There is a file of that name: a log with rows is never written over.

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
        """Bytes of the file that are whole: header and blocks."""
        self.durable = 0
        """Those of them that are surely on the disk, as far as it is asked for."""
        self.is_sound = True
        """Whether the file ends at `position`; if not, nothing is written any more."""
        self._fsync, self._compress = fsync, compress
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._name = path.with_name(path.name + INPROGRESS)
        self._file = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            self._append(format_meta(meta))
            if meta.filetype == "XLOG":
                self._force(self.position)  # else a power failure may leave the name without the header
                self._publish()
        except OSError:
            self.abandon()
            raise

    @classmethod
    def resume(
        cls, path: Path, position: int, fsync: Fsync = Fsync.CLOSE, compress: bool | None = None
    ) -> XlogWriter:
        """Return a writer that goes on in a log that was left without end marker.

        Parameters
        ----------
        path : Path
            The log.
        position : int
            Where its whole blocks end, in bytes; what lies behind is cut off.
        fsync, compress
            As of the class.

        """
        writer = cls.__new__(cls)
        writer.path = writer._name = path
        writer.position, writer.durable, writer.is_sound = position, 0, True
        writer._fsync, writer._compress = fsync, compress
        writer._pending, writer._pending_size = [], 0
        writer._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(writer._file, position)
            os.lseek(writer._file, position, os.SEEK_SET)
            writer._force(position)
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
        """Write whole transactions as one block at once; where there is no room, nothing has changed.

        Raises
        ------
        OSError
            They are not written.

        """
        self.flush()
        self._write_block(rows)

    def flush(self) -> None:
        """Write the block that is being filled; afterwards other processes can read it."""
        if not self._pending:
            return
        self._write_block(b"".join(self._pending))
        self._pending, self._pending_size = [], 0

    def close(self) -> None:
        """Write what is left and the end marker, and give the file its final name."""
        self.flush()
        end = self.position
        self._append(EOF_MARKER)
        self._force(end)
        if self._name != self.path:
            self._publish()
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is: no end marker, and what was not flushed is not written."""
        file, self._file = self._file, -1
        if file >= 0:
            # What counts was forced to the disk before; a descriptor is closed even where this fails.
            with contextlib.suppress(OSError):
                os.close(file)

    def _write_block(self, rows: bytes) -> None:
        self._append(encode_block(rows, self._compress))
        if self._fsync is not Fsync.CLOSE:
            self._force(self.position)

    def _append(self, data: bytes) -> None:
        """Write at the end; what was written only in part is taken back, so that the file stays whole."""
        if not self.is_sound:
            raise OSError(errno.EIO, "an earlier write failed, and the end of the file is uncertain")
        self.is_sound = False  # until all is written: whatever ends this halfway
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.ftruncate(self._file, self.position)
            os.lseek(self._file, self.position, os.SEEK_SET)
            self.is_sound = error.errno in NO_ROOM
            raise
        self.position += len(data)
        self.is_sound = True

    def _force(self, durable: int) -> None:
        """Force the file to the disk, where that is asked for; `durable` bytes of it are blocks."""
        if self._fsync is not Fsync.NEVER:
            self.is_sound = False
            os.fsync(self._file)
            self.is_sound = True
        self.durable = durable

    def _publish(self) -> None:
        self._name = self._name.rename(self.path)
        if self._fsync is not Fsync.NEVER:
            force_directory(self.path.parent)


def force_directory(path: Path) -> None:
    """Force a folder's names to the disk: files that were made, renamed or removed."""
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
