"""How far a file is written and where its blocks start: from its text header and block headers alone.

What the driver of a query asks, many times a minute: no row is decoded, no checksum computed, and the data of
large blocks is not even read.

Not here: rows (`reader`), directories.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs

from schemas.errors import XlogMissingError
from sources.xlog.format.arrays import Blocks
from sources.xlog.format.block import BLOCK_LIMIT, MAGIC_SIZE, Status, damage
from sources.xlog.format.damage import Skipped
from sources.xlog.format.decoder import Decoding, Limits
from sources.xlog.format.kernels.chain import BLOCK_START, walk_blocks
from sources.xlog.format.meta import META_LIMIT, Meta, parse_meta
from sources.xlog.reader.scan import Scanner
from sources.xlog.reader.window import Window, base_name

SMALL_WINDOW, LARGE_WINDOW = 4 * 1024, 1 << 20
HEADERS_AT_ONCE = 16 * 1024


class WholeEnd(NamedTuple):
    """How far a file is written.

    Parameters
    ----------
    position : int
        Behind the last whole block, in bytes; what follows is the end marker, not written yet, or nothing.
    has_eof_marker : bool
        Whether the end marker stands there: the file is closed. (Only one without any block may be opened
        again by a restarted server, which overwrites the marker: `xlog_open` in `src/box/xlog.c`.)

    """

    position: int
    has_eof_marker: bool


def read_meta(fs: pa.fs.FileSystem, path: str) -> Meta:
    """Return a file's text header.

    Raises
    ------
    XlogMissingError
        The file is not there.
    XlogMetaIncompleteError
        The header is not written wholly yet.
    XlogMetaError
        The header is wrong.

    """
    try:
        with fs.open_input_file(path) as source:
            return parse_meta(source.read_at(min(META_LIMIT, source.size()), 0), base_name(path))
    except FileNotFoundError:
        raise XlogMissingError("the file is gone", file=path) from None


def end_of_whole_blocks(
    fs: pa.fs.FileSystem, path: str, begin: int = 0, limit: int = BLOCK_LIMIT
) -> WholeEnd:
    """Return how far a file is written, walking its block headers from `begin`.

    Parameters
    ----------
    fs, path
        The file, as `open_fs` returns them.
    begin : int
        The start of a block, such as the position that an earlier call returned; 0 for the first one.
    limit : int
        The longest block, in bytes.

    Raises
    ------
    XlogMagicError, XlogHeaderError
        Something else than a block stands where one must start, or bytes follow the end marker. A cut block
        at the end is no error: it is not written yet.

    """
    with Window(fs, path, SMALL_WINDOW) as window:
        *_, (position, status, _) = _walk(window, _first(fs, path, begin), limit)
        return WholeEnd(position, status is Status.EOF)


def block_starts(
    fs: pa.fs.FileSystem,
    path: str,
    begin: int,
    end: int | None,
    every: int,
    limit: int = BLOCK_LIMIT,
) -> list[int]:
    """Return starts of blocks that cut `begin <= position < end` into ranges of about `every` bytes.

    Parameters
    ----------
    fs, path
        The file.
    begin : int
        The start of a block, or 0 for the first one: the first of the result, if a whole block is there.
    end : int, optional
        None: up to the last whole block.
    every : int
        Bytes between two starts at least; from 1.

    Raises
    ------
    XlogMagicError, XlogHeaderError
        As `end_of_whole_blocks`.

    """
    starts: list[int] = []
    target = begin
    with Window(fs, path, SMALL_WINDOW) as window:
        last = window.size if end is None else end
        for position, _, found in _walk(window, _first(fs, path, begin), limit):
            at = np.searchsorted(found, target)
            while at < found.size and found[at] < last:
                starts.append(int(found[at]))
                target = starts[-1] + every
                at = np.searchsorted(found, target)
            if position >= last:
                break
    return starts


def block_boundary(
    fs: pa.fs.FileSystem,
    path: str,
    near: int,
    begin: int | None = None,
    end: int | None = None,
    limit: int = BLOCK_LIMIT,
) -> int:
    """Return the first start of a block from `near` on, or `end` if there is none before it.

    Parameters
    ----------
    fs, path
        The file.
    near : int
        Any byte.
    begin : int, optional
        The start of a block at or before `near`, 0 for the first one: then the walk goes from block to block
        and cannot err. Without it the block is found by its magic and proven by its checksum; a sound block
        inside a tuple would do too.
    end : int, optional
        By default the end of the file.
    limit : int
        The longest block, in bytes.

    """
    with Window(fs, path, LARGE_WINDOW if begin is None else SMALL_WINDOW) as window:
        last = window.size if end is None else min(end, window.size)
        if begin is None:
            found = Scanner(window, Decoding(limits=Limits(limit)), Skipped()).find(near, last)
            return last if found < 0 else found
        for position, _, starts in _walk(window, _first(fs, path, begin), limit):
            at = np.searchsorted(starts, near)
            if at < starts.size:
                return min(int(starts[at]), last)
            if position >= last:
                break
        return last


def _first(fs: pa.fs.FileSystem, path: str, begin: int) -> int:
    return begin if begin > 0 else read_meta(fs, path).length


def _walk(window: Window, position: int, limit: int) -> Iterator[tuple[int, Status, Blocks]]:
    """Yield (position reached, status there, starts of the blocks passed) until the whole blocks end."""
    blocks = np.empty((4, HEADERS_AT_ONCE), np.int64)
    status = Status.GROUP
    while status is Status.GROUP:
        if position >= window.size:
            yield position, Status.PART, np.empty(0, np.int64)
            return
        offset = window.load(position, MAGIC_SIZE)
        args = (window.bytes, offset, window.filled, window.filled, limit, False, blocks)
        count, at, code = walk_blocks(*args)
        at, status = window.base + at, Status(code)
        if at > window.size:  # the last block is cut
            count, at, status = count - 1, window.base + int(blocks[BLOCK_START, count - 1]), Status.PART
        elif status is Status.PART and window.base + window.filled < window.size:
            status = Status.GROUP
            if count == 0:
                window.load(position)
        _check(window, at, status)
        yield at, status, blocks[BLOCK_START, :count] + window.base
        window.resize(SMALL_WINDOW if at > window.base + window.filled else LARGE_WINDOW)
        position = at


def _check(window: Window, position: int, status: Status) -> None:
    if status is Status.EOF and position + MAGIC_SIZE != window.size:
        raise damage(Status.AFTER_EOF, window.file, position + MAGIC_SIZE)
    if status < 0:
        raise damage(status, window.file, position)
