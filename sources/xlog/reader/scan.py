"""From a byte range of a file to groups of checked blocks: where to begin and end, what to do about damage.

Every block belongs to the range in which it *starts*. A range that begins at any byte finds its first block
by magic, and proves it by its header and checksum, so that a magic inside compressed data does not fool it.
Since the start of a damaged block cannot be proven, whoever reaches it along the chain of sound blocks
reports it, even behind the end of its own range: so nothing is reported twice, and nothing is passed over.

A tuple that holds a whole sound block as its bytes would be taken for one by a range that begins inside the
block around it: where that may be, ranges begin at known blocks (`extent.block_starts`).

Not here: the blocks' rows (`decoder`), reading (`window`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from schemas.errors import XlogError
from sources.xlog.format.arrays import Blocks
from sources.xlog.format.block import FIXED_HEADER_SIZE, MAGIC_SIZE, Status, damage
from sources.xlog.format.damage import Skipped, meet
from sources.xlog.format.decoder import Decoding, Group
from sources.xlog.format.kernels.chain import BLOCK_END, BLOCK_START, find_magic, walk_blocks
from sources.xlog.reader.window import Window

GROUP_BYTES = 512 * 1024
"""Bytes of the file that are checked, and then decoded, at a time: they stay in the processor's cache."""
GROUP_BLOCKS = 16 * 1024

PROVEN_BYTES = 64 << 20
PROVEN_RATIO = 16
"""A search for a block gives up where false starts have claimed more bytes than this and so many times what it has
looked through: each is proven by a checksum over what it claims, so bytes full of them would take time by the square of
their number."""


@dataclass(frozen=True)
class Range:
    """What to read of a file.

    Parameters
    ----------
    begin, end : int
        Blocks that start in begin <= position < end.
    known : bool
        Whether `begin` is the start of a block; otherwise the first one is searched for.
    ahead : bool
        Whether the block behind the range is looked at, for damage that the range after it cannot see.
    closed : bool
        Whether nothing will be appended any more: then a cut tail is damage, otherwise it is not written yet.

    """

    begin: int
    end: int
    known: bool = True
    ahead: bool = False
    closed: bool = False


class Scanner:
    """Walks the blocks of one range of one file.

    Parameters
    ----------
    window : Window
        The open file.
    how : Decoding
        Its mode and limit.
    skipped : Skipped
        Counts what a lenient mode leaves out.

    """

    def __init__(self, window: Window, how: Decoding, skipped: Skipped) -> None:
        self._window, self._how, self._skipped = window, how, skipped
        self._blocks: Blocks = np.empty((4, GROUP_BLOCKS), np.int64)
        self._one: Blocks = np.empty((4, 1), np.int64)

    def groups(self, part: Range) -> Iterator[Group | XlogError]:
        """Yield groups of sound blocks in order, and between them the errors that were met and counted."""
        position = part.begin if part.known else self.find(part.begin, part.end)
        while 0 <= position < part.end:
            count, position, status = self._step(position, part.end)
            if count:
                yield Group(self._window.bytes, self._window.base, self._blocks, count)
            if status != Status.GROUP:
                error, position = self._stopped(position, status, part)
                if error is not None:
                    yield error
        if part.ahead and 0 <= position < self._window.size:
            status, _ = self._prove(position)
            error, _ = self._stopped(position, status, part) if status != Status.GROUP else (None, -1)
            if error is not None:
                yield error

    def find(self, begin: int, end: int) -> int:
        """Return the first proven start of a block in begin <= position < end, or -1."""
        position, proven = begin, 0
        while position < end:
            offset = self._window.load(position, MAGIC_SIZE)
            last = min(self._window.filled, end + MAGIC_SIZE - 1 - self._window.base)
            found = int(find_magic(self._window.bytes, offset, last))
            if found < 0:
                position = max(self._window.base + last - MAGIC_SIZE + 1, position + 1)
                if last < self._window.filled or self._window.base + last >= self._window.size:
                    return -1
                continue
            position = self._window.base + found
            status, size = self._prove(position)
            if status == Status.GROUP:
                return position
            proven += min(size, self._window.size - position)
            if proven > PROVEN_BYTES + PROVEN_RATIO * (position - begin):
                error = damage(Status.FALSE_STARTS, self._window.file, position)
                meet(error, self._window.size - position, self._how.mode, self._skipped)
                return -1
            position += 1
        return -1

    def _step(self, position: int, end: int) -> tuple[int, int, Status]:
        """Walk one group; return its blocks, the position behind it, and why the walk stopped."""
        window = self._window
        offset = window.load(position, MAGIC_SIZE)
        stop = min(offset + GROUP_BYTES, end - window.base)
        count, at, status = walk_blocks(
            window.bytes, offset, window.filled, stop, self._how.limits.block, True, self._blocks
        )
        if status == Status.PART and count == 0 and window.base + window.filled < window.size:
            # The block does not end in the window: read on, and try again.
            status, _ = self._prove(position)
            return 0, position, status
        if status == Status.PART and window.base + window.filled < window.size:
            status = Status.GROUP
        return count, window.base + at, Status(status)

    def _prove(self, position: int) -> tuple[Status, int]:
        """Return what stands at a position (`GROUP`: a sound block), and the size that its header says."""
        window = self._window
        offset = window.load(position, FIXED_HEADER_SIZE)
        args = (offset + 1, self._how.limits.block)
        count, _, status = walk_blocks(window.bytes, offset, window.filled, *args, False, self._one)
        if count == 0:
            return Status(status), 0
        size = int(self._one[BLOCK_END, 0] - self._one[BLOCK_START, 0])
        if position + size > window.size:
            return Status.PART, size
        offset = window.load(position, size)
        _, _, status = walk_blocks(
            window.bytes, offset, window.filled, offset + 1, self._how.limits.block, True, self._one
        )
        return Status(status), size

    def _stopped(self, position: int, status: Status, part: Range) -> tuple[XlogError | None, int]:
        """Return the error of a walk that stopped, if it is one, and where to go on (-1: nowhere)."""
        window = self._window
        if status == Status.GROUP:
            return None, position
        if status == Status.EOF:
            if position + MAGIC_SIZE == window.size:
                return None, -1
            return self._damage(position + MAGIC_SIZE, Status.AFTER_EOF)
        if status == Status.PART:
            return self._damage(position, Status.TRUNCATED) if part.closed else (None, -1)
        if status == Status.ZEROS:
            written = self._written(position) if part.closed else -1
            return (None, -1) if written < 0 else self._damage(position, Status.MAGIC)
        return self._damage(position, status)

    def _damage(self, position: int, status: Status) -> tuple[XlogError, int]:
        """Raise or count the damage at a position; return it and the next sound block's position."""
        error = damage(status, self._window.file, position)
        meet(error, 0, self._how.mode, self._skipped)
        begin = position if status == Status.AFTER_EOF else position + 1
        following = self.find(begin, self._window.size)
        self._skipped.bytes += (self._window.size if following < 0 else following) - position
        return error, following

    def _written(self, position: int) -> int:
        """Return the position of the first byte behind `position` that is not zero, or -1."""
        while position < self._window.size:
            offset = self._window.load(position, 0)
            ahead = np.flatnonzero(self._window.bytes[offset : self._window.filled])
            if ahead.size:
                return position + int(ahead[0])
            position = self._window.base + self._window.filled
        return -1
