"""Says an error in one line: what is wrong, where, and what to do; also an error that Spark or another error hides."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from schemas.errors import AggregatorError

if TYPE_CHECKING:
    from observe.doctor.machine import Disk

_WRAPPED_ERROR = re.compile(r"schemas\.errors\.(\w+): (.+)")
"""An error of the aggregator in the text of an error of Spark: its class and its message."""

_DISK_REASONS = {
    errno.ENOSPC: "there is no room on the disk",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EROFS: "the disk is read-only",
}
_DISK_ERROR = re.compile(r"\[Errno (\d+)\]|\(os error (\d+)\)|errno (\d+)|(No space left on device)")
"""An error of the disk in the texts of Python, delta-rs, Arrow and Java."""

_PATH = re.compile(r"(?<![\w/])/(?!proc/|usr/)[\w.%=~@-]+(?:/[\w.%=~@-]+)+")
_CODE = re.compile(r"\.(?:py|rs|cc|java|scala)\b|/site-packages/|/lib/python")

JAVA_ENDED = "Spark's Java process has ended: killed, or out of memory? Its last lines say; start again"

FULL_BYTES = 16 << 20
"""A disk with less free space than this is named as one that is full."""


def first_error(error: BaseException) -> BaseException:
    """Return the error that ended the work: errors of cleaning up, raised while it was handled, would hide it."""
    while (
        error.__cause__ is None
        and not error.__suppress_context__
        and isinstance(error.__context__, Exception)
    ):
        error = error.__context__
    return error


def error_text(error: BaseException) -> str | None:
    """Return the line of an error of the aggregator or of a disk, also if Spark has wrapped it; None for others."""
    first = first_error(error)
    if isinstance(first, AggregatorError):
        return str(first)
    disk = _disk_error_text(first)
    if disk is not None:
        return disk
    if any(type(one).__name__ == "Py4JNetworkError" for one in _chain(error)):
        return JAVA_ENDED
    found = _WRAPPED_ERROR.findall(str(first))
    return f"{found[-1][1]} [{found[-1][0]}]" if found else None


def other_error_text(error: BaseException) -> str:
    """Return the first line of an error, with its class."""
    first = first_error(error)
    return f"{type(first).__name__}: {str(first).partition(chr(10))[0]}"


def _disk_error_text(error: BaseException) -> str | None:
    number = next(_disk_error_numbers(error), None)
    if number is None:
        return None
    where = _path_in(error) or _folders_that_fail(number)
    place = f" ({where})" if where else ""
    advice = (
        "make it writable, then start again"
        if number == errno.EROFS
        else "free disk space there (`aggregator maintain` removes old files), then start again"
    )
    return f"{_DISK_REASONS[number]}{place}: {advice}; what was committed is complete, the rest is repeated"


def _disk_error_numbers(error: BaseException) -> Iterator[int]:
    for one in _chain(error):
        if isinstance(one, OSError) and one.errno in _DISK_REASONS:
            yield one.errno
        for numbers in _DISK_ERROR.findall(str(one)):
            number = next((int(text) for text in numbers[:3] if text), errno.ENOSPC if numbers[3] else 0)
            if number in _DISK_REASONS:
                yield number


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _path_in(error: BaseException) -> str | None:
    for one in _chain(error):
        if isinstance(one, OSError) and one.filename:
            return os.fsdecode(one.filename) if isinstance(one.filename, bytes | str) else None
        for line in str(one).splitlines():
            if _DISK_ERROR.search(line) and not _CODE.search(line):
                found = _PATH.search(line)
                if found:
                    return found.group()
    return None


def _folders_that_fail(number: int) -> str:
    """Return the folders of the command's configuration whose disk is full, or read-only, as an error says."""
    context = click.get_current_context(silent=True)
    file = None if context is None else context.params.get("config")
    found: list[str] = []
    if file is not None:
        with suppress(Exception):  # this must not hide the error
            from config.deployment import load
            from observe.doctor.machine import disks_of

            config = load(file)
            found = [
                f"{disk.subject} {disk.path}"
                for disk in disks_of(config, config.subscribe)
                if (_is_read_only(disk.path) if number == errno.EROFS else _is_full(disk))
            ]
    return ", ".join(found)


def _is_full(disk: Disk) -> bool:
    return disk.free_bytes < FULL_BYTES or disk.free_inodes == 0


def _is_read_only(path: str) -> bool:
    from observe.doctor.machine import nearest_existing_folder

    return bool(os.statvfs(nearest_existing_folder(path)).f_flag & os.ST_RDONLY)
