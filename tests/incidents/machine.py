"""What incidents need of the machine: disks of a few MiB that can be full or read-only, and a server's own clock."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

FILLER = "filler"

CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += ahead();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    now->tv_sec += ahead();
    return result;
}
"""
"""A library that a process loads first; its clock is as many seconds ahead as the file CLOCK_AHEAD says."""


def _mounted(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a file system of some MiB at a folder while the block runs; skip the test without the right to."""
    folder.mkdir()
    _mounted("-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with (disk / FILLER).open("ab", buffering=0) as file, suppress(OSError):
        size = os.fstat(file.fileno()).st_size
        for step in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step


def make_room(disk: Path) -> None:
    """Take back what `fill` did."""
    (disk / FILLER).unlink(missing_ok=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Have a folder be read-only while the block runs, for all paths that are opened from now on."""
    _mounted("--bind", str(folder), str(folder))
    try:
        _mounted("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


class ServerClock:
    """The clock of a server, which can be ahead of that of the machine."""

    def __init__(self, folder: Path, binary: str) -> None:
        """Make a program that runs `binary` with this clock; without a compiler it is `binary`, and cannot be set."""
        self.program, self._file = binary, folder / "clock_ahead"
        compiler = shutil.which("cc")
        self.can_be_set = compiler is not None
        if compiler is not None:
            source, library = folder / "clock.c", folder / "clock.so"
            source.write_text(CLOCK)
            command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
            subprocess.run(command, check=True, capture_output=True)
            program = folder / "server"
            program.write_text(
                f'#!/bin/sh\nexport CLOCK_AHEAD={self._file} LD_PRELOAD={library}\nexec {binary} "$@"\n'
            )
            program.chmod(0o755)
            self.program = str(program)
        self.set_ahead(0)

    def set_ahead(self, seconds: int) -> None:
        if seconds and not self.can_be_set:
            pytest.skip("there is no C compiler for a server with a clock of its own")
        self._file.write_text(str(seconds))
