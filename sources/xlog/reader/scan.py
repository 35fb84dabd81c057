"""Scans a byte range of a file into groups of checked blocks, and reports damage.

Every block belongs to the range in which it *starts*. If a range begins anywhere in the file, its first block is
searched for by the magic, and verified by header and checksum, so that a magic inside compressed data is not taken for
a block. The start of a damaged block cannot be found in this way. So the damage is reported by the reader that comes to
it from the valid block before it, even if that reader's range ends before the damaged block. Thus each damage is
reported exactly once.

Bytes of a tuple may be a valid block, and a search could take them for a block of the file. So the ranges of a segment
with large blocks begin at known block starts (`reader.block_starts`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from schemas.errors import XlogError
from sources.xlog.format.arrays import Blocks
from sources.xlog.format.block import FIXED_HEADER_SIZE, MAGIC_SIZE
from sources.xlog.format.damage import SkippedDamage, WalkStatus, damage_error, raise_or_count
from sources.xlog.format.decoder import BlockGroup, DecodeSettings
from sources.xlog.format.kernels.chain import BLOCK_END, BLOCK_START, find_magic, walk_blocks
from sources.xlog.reader.file_buffer import FileBuffer

GROUP_BYTES = 512 * 1024
"""Bytes of the file that are checked and decoded at a time, so that they stay in the processor's cache."""
GROUP_BLOCKS = 16 * 1024

FALSE_START_BYTES = 64 << 20
FALSE_START_RATIO = 16
"""Limits of a search for a block. A *false start* is a magic with a valid header, but a wrong checksum. The search ends
when the lengths in the headers of false starts add up to more than `FALSE_START_BYTES` plus `FALSE_START_RATIO` times
the number of bytes searched. Otherwise bytes full of false starts would take quadratic time, because each checksum is
computed over the length in the header."""


@dataclass(frozen=True)
class ScanRange:
    """The part of a file to read."""

    begin: int
    end: int
    """The range has the blocks that start at begin <= position < end."""
    begins_at_block: bool = True
    """Whether a block starts at `begin`; otherwise the first block of the range is searched for."""
    next_block_before: int = 0
    """The block after the range is checked too if it begins before this position, because a search from the begin of
    the next range cannot find it if it is damaged."""
    is_closed: bool = False
    """Whether the file cannot grow. Then an incomplete block at its end is damage; otherwise it is still being written.
    """


class Scanner:
    """Finds and checks the blocks of ranges of one file."""

    def __init__(self, buffer: FileBuffer, decoding: DecodeSettings, skipped: SkippedDamage) -> None:
        self._buffer, self._decoding, self._skipped = buffer, decoding, skipped
        self._blocks: Blocks = np.empty((4, GROUP_BLOCKS), np.int64)
        self._one_block: Blocks = np.empty((4, 1), np.int64)

    def groups(self, scan_range: ScanRange) -> Iterator[BlockGroup | XlogError]:
        """Yield groups of valid blocks in order, and between them the errors for the damage that is left out."""
        position = (
            scan_range.begin
            if scan_range.begins_at_block
            else self.find_block_start(scan_range.begin, scan_range.end)
        )
        while 0 <= position < scan_range.end:
            count, position, status = self._walk_group(position, scan_range.end)
            if count:
                yield BlockGroup(self._buffer.bytes, self._buffer.base, self._blocks, count)
            if status != WalkStatus.GROUP:
                error, position = self._handle_stop(position, status, scan_range)
                if error is not None:
                    yield error
        if 0 <= position < min(scan_range.next_block_before, self._buffer.size):
            status, _ = self._check_block(position)
            error, _ = (
                self._handle_stop(position, status, scan_range) if status != WalkStatus.GROUP else (None, -1)
            )
            if error is not None:
                yield error

    def find_block_start(self, begin: int, end: int) -> int:
        """Return the first position in begin <= position < end at which a valid block starts, or -1."""
        position, claimed_bytes = begin, 0
        while position < end:
            offset = self._buffer.load(position, MAGIC_SIZE)
            last = min(self._buffer.filled, end + MAGIC_SIZE - 1 - self._buffer.base)
            found = int(find_magic(self._buffer.bytes, offset, last))
            if found < 0:
                position = max(self._buffer.base + last - MAGIC_SIZE + 1, position + 1)
                if last < self._buffer.filled or self._buffer.base + last >= self._buffer.size:
                    return -1
                continue
            position = self._buffer.base + found
            status, size = self._check_block(position)
            if status == WalkStatus.GROUP:
                return position
            claimed_bytes += min(size, self._buffer.size - position)
            if claimed_bytes > FALSE_START_BYTES + FALSE_START_RATIO * (position - begin):
                error = damage_error(WalkStatus.FALSE_STARTS, self._buffer.file, position)
                raise_or_count(error, self._buffer.size - position, self._decoding.mode, self._skipped)
                return -1
            position += 1
        return -1

    def _walk_group(self, position: int, end: int) -> tuple[int, int, WalkStatus]:
        """Walk one group; return its number of blocks, the position after it, and why the walk stopped."""
        buffer = self._buffer
        offset = buffer.load(position, MAGIC_SIZE)
        stop = min(offset + GROUP_BYTES, end - buffer.base)
        count, at, status = walk_blocks(
            buffer.bytes,
            offset,
            buffer.filled,
            stop,
            self._decoding.limits.max_block_bytes,
            True,
            self._blocks,
        )
        if status == WalkStatus.PART and count == 0 and buffer.base + buffer.filled < buffer.size:
            # The block does not end in the buffer: read more, and try again.
            status, _ = self._check_block(position)
            return 0, position, status
        if status == WalkStatus.PART and buffer.base + buffer.filled < buffer.size:
            status = WalkStatus.GROUP
        return count, buffer.base + at, WalkStatus(status)

    def _check_block(self, position: int) -> tuple[WalkStatus, int]:
        """Return the status of the block at a position (`GROUP` if it is undamaged), and the size in its header."""
        buffer = self._buffer
        offset = buffer.load(position, FIXED_HEADER_SIZE)
        args = (offset + 1, self._decoding.limits.max_block_bytes)
        count, _, status = walk_blocks(buffer.bytes, offset, buffer.filled, *args, False, self._one_block)
        if count == 0:
            return WalkStatus(status), 0
        size = int(self._one_block[BLOCK_END, 0] - self._one_block[BLOCK_START, 0])
        if position + size > buffer.size:
            return WalkStatus.PART, size
        offset = buffer.load(position, size)
        _, _, status = walk_blocks(
            buffer.bytes,
            offset,
            buffer.filled,
            offset + 1,
            self._decoding.limits.max_block_bytes,
            True,
            self._one_block,
        )
        return WalkStatus(status), size

    def _handle_stop(
        self, position: int, status: WalkStatus, scan_range: ScanRange
    ) -> tuple[XlogError | None, int]:
        """Return the error for the status at which a walk stopped, or None; and where to continue, or -1."""
        buffer = self._buffer
        if status == WalkStatus.GROUP:
            return None, position
        if status == WalkStatus.EOF:
            if position + MAGIC_SIZE == buffer.size:
                return None, -1
            return self._raise_or_count_damage(position + MAGIC_SIZE, WalkStatus.AFTER_EOF)
        if status == WalkStatus.PART:
            return (
                self._raise_or_count_damage(position, WalkStatus.TRUNCATED)
                if scan_range.is_closed
                else (None, -1)
            )
        if status == WalkStatus.ZEROS:
            written = self._first_nonzero(position) if scan_range.is_closed else -1
            return (None, -1) if written < 0 else self._raise_or_count_damage(position, WalkStatus.MAGIC)
        return self._raise_or_count_damage(position, status)

    def _raise_or_count_damage(self, position: int, status: WalkStatus) -> tuple[XlogError, int]:
        """Raise or count the damage at a position; return its error, and the position of the next valid block or -1."""
        error = damage_error(status, self._buffer.file, position)
        raise_or_count(error, 0, self._decoding.mode, self._skipped)
        begin = position if status == WalkStatus.AFTER_EOF else position + 1
        following = self.find_block_start(begin, self._buffer.size)
        self._skipped.bytes += (self._buffer.size if following < 0 else following) - position
        return error, following

    def _first_nonzero(self, position: int) -> int:
        while position < self._buffer.size:
            offset = self._buffer.load(position, 0)
            ahead = np.flatnonzero(self._buffer.bytes[offset : self._buffer.filled])
            if ahead.size:
                return position + int(ahead[0])
            position = self._buffer.base + self._buffer.filled
        return -1
