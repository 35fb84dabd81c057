"""Buffers a part of a file in memory, and opens file systems. The reader reads files only by this module."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.fs

from schemas.errors import XlogMissingError, XlogTruncatedError


def arrow_uri(path: str) -> str:
    """Return a URI with the scheme `s3://` that pyarrow knows, in place of Hadoop's `s3a://` and `s3n://`."""
    scheme, separator, rest = path.partition("://")
    return f"s3{separator}{rest}" if scheme in ("s3a", "s3n") else path


def open_fs(path: str) -> tuple[pa.fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    Args:
        path: A local path, a URI that `pyarrow.fs` opens (`s3://`, `hdfs://`, `file://`, ...), or Hadoop's URI for S3.
    """
    if "://" not in path:
        return pa.fs.LocalFileSystem(), str(Path(path).absolute())
    fs, inner = pa.fs.FileSystem.from_uri(arrow_uri(path))
    return fs, str(inner)


def base_name(path: str) -> str:
    """Return the base name of a path, as in the column `file`."""
    return PurePosixPath(path).name


class FileBuffer:
    """A part of a file in memory: the first `filled` bytes of `bytes` are the file's, from position `base` on.

    Raises:
        XlogMissingError: If the file does not exist.
    """

    def __init__(self, fs: pa.fs.FileSystem, path: str, capacity: int) -> None:
        self.file = base_name(path)
        try:
            self._source = fs.open_input_file(path)
        except FileNotFoundError:
            raise XlogMissingError("the file is gone", file=path) from None
        self.size: int = self._source.size()
        """Bytes of the file when it was opened; later appends are not seen."""
        self._capacity = capacity
        self.bytes = np.empty(max(1, min(capacity, self.size)), np.uint8)
        self.base = 0
        self.filled = 0

    def __enter__(self) -> FileBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def resize(self, capacity: int) -> None:
        """Set how many bytes are read at a time from now on."""
        self._capacity = capacity

    def load(self, position: int, need_bytes: int = 0) -> int:
        """Load the file from `position` on, and return the offset in `bytes` of the byte at `position`.

        Args:
            need_bytes: Number of bytes that the buffer has from `position` on afterwards, unless the file ends before.
                0 means as many as fit.
        """
        offset = position - self.base
        have = self.filled - offset if 0 <= offset <= self.filled else 0
        if need_bytes and have >= min(need_bytes, self.size - position):
            return offset
        wanted = min(max(need_bytes, self._capacity), self.size - position)
        have = min(have, wanted)
        kept = self.bytes[offset : offset + have]
        if wanted > self.bytes.size or self.bytes.size > self._capacity >= wanted:
            self.bytes = np.empty(max(1, wanted), np.uint8)
        self.bytes[:have] = kept
        self.base, self.filled = position, have
        self._fill_up_to(wanted)
        return 0

    def _fill_up_to(self, wanted_bytes: int) -> None:
        target = self.bytes.data
        self._source.seek(self.base + self.filled)
        while self.filled < wanted_bytes:
            count = self._source.readinto(target[self.filled : wanted_bytes])
            if count == 0:
                position = self.base + self.filled
                raise XlogTruncatedError("the file became shorter", file=self.file, offset=position)
            self.filled += count
