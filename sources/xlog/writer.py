"""Writes log files that Tarantool itself reads: header, blocks of whole transactions, end marker.

A file is written under the name `<name>.inprogress` and renamed in one step: a `.snap` when it is complete, a
`.xlog` as soon as its header is there, so that readers may follow it. Local files only.

Not here: encoding of rows (`encode`), of blocks (`block`), of the header (`meta`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from sources.xlog.block import EOF_MARKER, FLUSH_THRESHOLD, encode_block
from sources.xlog.meta import Meta, format_meta

INPROGRESS = ".inprogress"


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
    replaces : bool
        Whether there may be a file of that name, which has no rows.

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
        replaces: bool = False,
    ) -> None:
        if path.exists() and not replaces:
            raise FileExistsError(path)
        self.path = path
        self.position = 0
        """Bytes of the file that are whole: header and blocks."""
        self._fsync, self._compress = fsync, compress
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._name = path.with_name(path.name + INPROGRESS)
        self._file = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._append(format_meta(meta))
            if meta.filetype == "XLOG":
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
        writer.position = position
        writer._fsync, writer._compress = fsync, compress
        writer._pending, writer._pending_size = [], 0
        writer._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(writer._file, position)
        os.lseek(writer._file, position, os.SEEK_SET)
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
        self._append(encode_block(rows, self._compress))
        if self._fsync is Fsync.BLOCK:
            os.fsync(self._file)

    def flush(self) -> None:
        """Write the block that is being filled; afterwards other processes can read it."""
        if not self._pending:
            return
        self._append(encode_block(b"".join(self._pending), self._compress))
        self._pending, self._pending_size = [], 0
        if self._fsync is Fsync.BLOCK:
            os.fsync(self._file)

    def close(self) -> None:
        """Write what is left and the end marker, and give the file its final name."""
        self.flush()
        self._append(EOF_MARKER)
        if self._fsync is not Fsync.NEVER:
            os.fsync(self._file)
        os.close(self._file)
        if self._name != self.path:
            self._publish()

    def abandon(self) -> None:
        """Close the file as it is: no end marker, and what was not flushed is not written."""
        os.close(self._file)

    def _append(self, data: bytes) -> None:
        """Write at the end; what was written only in part is taken back, so that the file stays whole."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self.position)
            os.lseek(self._file, self.position, os.SEEK_SET)
            raise
        self.position += len(data)

    def _publish(self) -> None:
        self._name = self._name.rename(self.path)
        if self._fsync is not Fsync.NEVER:
            directory = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
