"""Simulates a failing disk: counts the writing calls of a spool, makes one of them fail, or cuts the power.

A power failure removes everything that fsync did not flush: bytes of files, and names in folders. `cut_power` changes
the local files in this way.
"""

import errno
import os
import shutil
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest


class Fault(Enum):
    """What happens at the failing call."""

    EIO = "a device error"
    NO_ROOM = "no room"
    SHORT = "a write of half, then no room"
    POWER = "a power cut"
    POWER_NAMES_KEPT = "a power cut after which all names are there, but not all bytes"
    KILL = "a kill"


class Stop(BaseException):
    """Raised where the process is killed or loses power."""


_WRITING = os.O_WRONLY | os.O_RDWR


class Disk:
    """Counts the system calls that write in a folder, and lets one of them fail.

    Args:
        folder: Only what lies below it counts.
        step: The step that fails, from 0 on.
        lasting: How many steps fail, for errors.
    """

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        fault: Fault | None = None,
        step: int = -1,
        lasting: int = 1,
    ) -> None:
        self.folder, self.fault, self.step, self.lasting = folder, fault, step, lasting
        self.steps = 0
        self._is_gone = False
        self._paths: dict[int, str] = {}
        self._files: dict[int, int] = {}
        """For each inode the number of its file, since the system reuses inodes."""
        self._made = 0
        self._bytes: dict[int, bytes] = {}
        """For each file number, the content that is on the disk."""
        self._names: dict[str, dict[str, int]] = {}
        """For each folder, {name: file number} on the disk."""
        self._real = {name: getattr(os, name) for name in ("open", "write", "fsync", "ftruncate", "close")}
        self._real |= {name: getattr(os, name) for name in ("rename", "unlink")}
        for name in self._real:
            patch.setattr(os, name, getattr(self, f"_{name}"))

    def cut_power(self) -> None:
        """Restore the folder's state on the disk, as after a power failure."""
        keeps_names = self.fault is Fault.POWER_NAMES_KEPT
        for folder, _, names in list(os.walk(self.folder)):
            left = self._listed(Path(folder)) if keeps_names else self._names.get(folder, {})
            for name in names:
                self._real["unlink"](f"{folder}/{name}")
            for name, number in left.items():
                (Path(folder) / name).write_bytes(self._bytes.get(number, b""))

    def _listed(self, folder: Path) -> dict[str, int]:
        return {p.name: self._files.get(p.stat().st_ino, -1) for p in folder.iterdir() if p.is_file()}

    def _step(self, path: str, act: Callable[[], Any], write: tuple[int, bytes] | None = None) -> Any:
        if not path.startswith(str(self.folder)):
            return act()
        number, self.steps = self.steps, self.steps + 1
        if self._is_gone:  # a process that has ended does not clean up
            raise Stop
        if self.fault is None or not self.step <= number < self.step + self.lasting:
            return act()
        if self.fault in (Fault.POWER, Fault.POWER_NAMES_KEPT, Fault.KILL):
            self._is_gone = True
            raise Stop
        if self.fault is Fault.SHORT:
            if write is None:
                return act()
            if number == self.step:
                return self._real["write"](write[0], write[1][: len(write[1]) // 2])
        code = errno.EIO if self.fault is Fault.EIO else errno.ENOSPC
        raise OSError(code, os.strerror(code), path)

    def _open(self, path: Any, flags: int, mode: int = 0o777, **other: Any) -> int:
        name = os.fspath(path)
        if not isinstance(name, str) or not flags & (_WRITING | os.O_CREAT):
            file = self._real["open"](path, flags, mode, **other)
        else:
            is_new = not Path(name).exists()
            file = self._step(name, lambda: self._real["open"](path, flags, mode, **other))
            if is_new:
                self._made += 1
                self._files[os.fstat(file).st_ino] = self._made
        self._paths[file] = name if isinstance(name, str) else ""
        return int(file)

    def _close(self, file: int) -> None:
        self._paths.pop(file, None)
        self._real["close"](file)

    def _write(self, file: int, data: Any) -> Any:
        whole = bytes(data)
        path = self._paths.get(file, "")
        return self._step(path, lambda: self._real["write"](file, whole), (file, whole))

    def _ftruncate(self, file: int, size: int) -> None:
        self._step(self._paths.get(file, ""), lambda: self._real["ftruncate"](file, size))

    def _fsync(self, file: int) -> None:
        path = self._paths.get(file, "")
        self._step(path, lambda: self._remember(file, path))

    def _remember(self, file: int, path: str) -> None:
        if Path(path).is_dir():
            self._names[path] = self._listed(Path(path))
        else:
            self._bytes[self._files[os.fstat(file).st_ino]] = Path(f"/proc/self/fd/{file}").read_bytes()

    def _rename(self, source: Any, target: Any) -> None:
        self._step(os.fspath(source), lambda: self._real["rename"](source, target))

    def _unlink(self, path: Any) -> None:
        self._step(os.fspath(path), lambda: self._real["unlink"](path))


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
