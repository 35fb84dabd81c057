"""The key copies of a process: small ones in memory, the others in a folder of the local disk.

Any process may add copies to the folder, and anybody may remove or damage them at any time. A copy is used only if its
size, its checksum and its name are right when it is opened, and it is opened again if its file has changed since.
Lookups do without a copy that cannot be stored. If the folder exceeds its limit, the least recently used copies are
removed. A copy that is mapped stays readable after its file is removed.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import time
import uuid as uuids
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path

import pyarrow as pa

from pipeline.lookup.copy_folder import KEPT_FREE_BYTES, SUFFIX, free_bytes, stored_files
from pipeline.lookup.key_copy import CopyError, CopyName, KeyCopy, copy_of_rows, encode_copy, open_copy

log = logging.getLogger(__name__)

SMALL_BYTES = 1 << 20
"""Smaller copies stay in memory: to make one again takes as long as to open a stored one."""

MEMORY_BYTES = 64 << 20
"""The small copies have at most this size together."""

DEFAULT_LIMIT_BYTES = 16 << 30

TOUCH_SECONDS = 60.0
"""How exactly the folder knows when a copy was used."""

FULL_SHARE = 0.9
"""Copies are removed until the folder has at most this share of its limit."""


@dataclass(frozen=True)
class CopyFolder:
    """Where a process stores key copies."""

    path: str | None = None
    """A folder of the local disk; None: only small copies are kept, in memory."""
    limit_bytes: int = DEFAULT_LIMIT_BYTES


Stamp = tuple[int, int, int]
"""What changes with a file's content: inode, size, time of the last change."""


@dataclass
class CopyCounts:
    """What a process, or one batch, has done with key copies."""

    used: int = 0
    """Searches of a data file by its copy."""
    missed: int = 0
    """Searches of a data file that had no copy yet: one was made, or the file was read."""
    made: int = 0
    refused: int = 0
    """Stored copies that were damaged, or of something else."""
    failed: int = 0
    """Copies that could not be stored."""

    def since(self, before: CopyCounts) -> CopyCounts:
        """Return what was done after an earlier count."""
        return CopyCounts(*(getattr(self, one.name) - getattr(before, one.name) for one in fields(self)))

    @classmethod
    def total(cls, counts: Iterable[CopyCounts]) -> CopyCounts:
        """Return what several processes have done together."""
        listed = list(counts)
        return cls(*(sum(getattr(count, one.name) for count in listed) for one in fields(cls)))


@dataclass
class _OpenCopy:
    copy: KeyCopy
    path: str
    stamp: Stamp
    touched: float


@dataclass
class KeyCopies:
    """The copies that one process uses."""

    folder: Path | None = None
    """Where copies are stored; None: only small ones are kept, in memory."""
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    counts: CopyCounts = field(default_factory=CopyCounts)
    _small: OrderedDict[CopyName, KeyCopy] = field(default_factory=OrderedDict)
    _small_bytes: int = 0
    _open: dict[CopyName, _OpenCopy] = field(default_factory=dict)
    _stored_bytes: int | None = None
    _has_warned: bool = False

    def get(self, name: CopyName) -> KeyCopy | None:
        """Return a copy if there is one that can be believed."""
        found = self._small.get(name)
        if found is not None:
            self._small.move_to_end(name)
        elif self.folder is not None:
            found = self._stored(self.folder, name)
        if found is not None:
            self.counts.used += 1
        return found

    def make(self, name: CopyName, read: Callable[[], pa.Table]) -> KeyCopy | None:
        """Make the copy of a data file, whose rows `read` returns; return None if it can be stored nowhere."""
        return self.add(name, read())

    def add(self, name: CopyName, rows: pa.Table) -> KeyCopy | None:
        """Make the copy of a data file with these rows; return None if it can be stored nowhere."""
        copy = copy_of_rows(name.key, rows.select(list(name.columns)))
        self.counts.made += 1
        if copy.stored_bytes < SMALL_BYTES:
            self._keep_small(name, copy)
            return copy
        return None if self.folder is None else self._store(self.folder, name, copy)

    def _keep_small(self, name: CopyName, copy: KeyCopy) -> None:
        self._small[name] = copy
        self._small_bytes += copy.stored_bytes
        while self._small_bytes > MEMORY_BYTES:
            _, oldest = self._small.popitem(last=False)
            self._small_bytes -= oldest.stored_bytes

    def _stored(self, folder: Path, name: CopyName) -> KeyCopy | None:
        known = self._open.get(name)
        path = str(folder / _file_name(name)) if known is None else known.path
        try:
            info = os.stat(path)  # noqa: PTH116 — called for each file of a lookup, and faster than a Path's
        except OSError:
            # A removed file stays mapped. Its name may get another copy, which is then opened.
            return None if known is None else known.copy
        stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
        if known is None or known.stamp != stamp:
            self._open.pop(name, None)
            copy = self._opened(Path(path), name)
            if copy is None:
                return None
            known = self._open[name] = _OpenCopy(copy, path, stamp, 0.0)
        if time.monotonic() - known.touched > TOUCH_SECONDS:
            known.touched = time.monotonic()
            _touch(Path(path), info)
        return known.copy

    def _opened(self, path: Path, name: CopyName) -> KeyCopy | None:
        try:
            with pa.memory_map(str(path)) as file:
                return open_copy(file.read_buffer(), name)
        except (OSError, pa.ArrowException):
            return None
        except (CopyError, ValueError, LookupError, TypeError) as error:
            self.counts.refused += 1
            log.warning("a key copy is not used and made again: %s (file %s)", error, path)
            _remove(path)
            return None

    def _store(self, folder: Path, name: CopyName, copy: KeyCopy) -> KeyCopy | None:
        path = folder / _file_name(name)
        part = folder / f".{path.name}.{uuids.uuid4()}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._make_room(folder, copy.stored_bytes)
            with part.open("xb") as stream:
                for piece in encode_copy(name, copy):
                    stream.write(piece)
            part.replace(path)
        except OSError as error:
            _remove(part)
            self.counts.failed += 1
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "key copies cannot be stored, so lookups take longer: %s (folder %s)", error, folder
                )
            return None
        self._has_warned = False
        return self._stored(folder, name)

    def _make_room(self, folder: Path, wanted_bytes: int) -> None:
        """Remove the least recently used copies if the folder would exceed its limit, or fill its disk."""
        spare = free_bytes(folder) - KEPT_FREE_BYTES - wanted_bytes
        if self._stored_bytes is not None:
            self._stored_bytes += wanted_bytes
            if self._stored_bytes <= self.limit_bytes and spare >= 0:
                return
        files = sorted(stored_files(folder), key=lambda one: one[1].st_atime_ns)
        total = sum(info.st_size for _, info in files) + wanted_bytes
        limit = min(self.limit_bytes, total + spare)
        if total > limit:
            for path, info in files:
                if total <= FULL_SHARE * limit:
                    break
                _remove(path)
                total -= info.st_size
        self._stored_bytes = total
        if total > limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _file_name(name: CopyName) -> str:
    text = "\0".join((name.table, name.path, str(name.size), name.key, *name.columns))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest() + SUFFIX


def _touch(path: Path, info: os.stat_result) -> None:
    try:
        os.utime(path, ns=(time.time_ns(), info.st_mtime_ns))
    except OSError:
        log.debug("the time of use of %s cannot be stored", path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        log.debug("%s cannot be removed", path)
