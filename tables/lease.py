"""The file of a lease, on a store that has no locks: through Hadoop where Spark runs, through `pyarrow.fs` else.

Only Hadoop creates a file where none is in one step; `pyarrow.fs` cannot. Who takes a lease through it commits to
`_rid` next, which only one of two can.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import pyarrow.fs as pafs


class LeaseFile(Protocol):
    """What a lease needs of a store."""

    def age(self) -> float | None:
        """Return the seconds since it was written, None where it is not there."""

    def read(self) -> str:
        """Return its text."""

    def write(self, text: str, *, overwrite: bool) -> None:
        """Write it; without `overwrite` only where it is not there."""

    def delete(self) -> None:
        """Remove it."""


class HadoopFile:
    """A file that Spark's Hadoop opens.

    Parameters
    ----------
    fs, path
        Hadoop's `FileSystem` and `Path`.

    """

    def __init__(self, fs: Any, path: Any) -> None:
        self._fs, self._path = fs, path

    def age(self) -> float | None:
        """Return the seconds since it was written, None where it is not there."""
        if not self._fs.exists(self._path):
            return None
        modified: int = self._fs.getFileStatus(self._path).getModificationTime()
        return time.time() - modified / 1000

    def read(self) -> str:
        """Return its text."""
        stream = self._fs.open(self._path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, text: str, *, overwrite: bool) -> None:
        """Write it; without `overwrite` only where it is not there."""
        stream = self._fs.create(self._path, overwrite)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self) -> None:
        """Remove it."""
        self._fs.delete(self._path, False)


class ArrowFile:
    """A file that `pyarrow.fs` opens.

    Parameters
    ----------
    fs : pyarrow.fs.FileSystem
    path : str

    """

    def __init__(self, fs: pafs.FileSystem, path: str) -> None:
        self._fs, self._path = fs, path

    def age(self) -> float | None:
        """Return the seconds since it was written, None where it is not there."""
        info = self._fs.get_file_info(self._path)
        if info.type == pafs.FileType.NotFound:
            return None
        modified: int = info.mtime_ns
        return time.time() - modified / 1e9

    def read(self) -> str:
        """Return its text."""
        with self._fs.open_input_stream(self._path) as stream:
            return bytes(stream.read()).decode()

    def write(self, text: str, *, overwrite: bool) -> None:
        """Write it; without `overwrite` only where it is not there, as far as the store tells."""
        if not overwrite and self.age() is not None:
            raise FileExistsError(self._path)
        self._fs.create_dir(self._path.rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(self._path) as stream:
            stream.write(text.encode())

    def delete(self) -> None:
        """Remove it."""
        self._fs.delete_file(self._path)
