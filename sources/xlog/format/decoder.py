"""Decodes groups of checked blocks into batches: decompresses blocks, walks over rows, and ends batches at the limits.

The memory does not grow with the file: there are one scratch buffer for decompressed rows, and one batch that is being
filled. Damage inside a block is raised or left out, according to the mode (`damage`). If a zstd frame is damaged, its
whole block is left out. If a row is bad, only this row is left out; but if its end cannot be found in the MessagePack,
the rest of its block is left out too.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import zstandard

from schemas.errors import XlogError
from sources.xlog.format.arrays import Blocks, Bytes
from sources.xlog.format.block import BLOCK_LIMIT, decompress
from sources.xlog.format.damage import Mode, SkippedDamage, WalkStatus, damage_error, raise_or_count
from sources.xlog.format.kernels.chain import (
    BLOCK_BEGIN,
    BLOCK_END,
    BLOCK_START,
    BLOCK_ZSTD,
    decompressed_bound,
)
from sources.xlog.format.kernels.fill import end_of_row, walk_rows
from sources.xlog.format.kernels.row import AT, BLOCK, COUNT, FILLED, FULL, NUMBER, ROOM, RowColumns
from sources.xlog.format.rows import new_columns
from sources.xlog.format.selection import Selection, filter_of

SCRATCH_BYTES = 1 << 20
"""Size of the buffer for decompressed rows; it is larger only while a block needs more."""

FIRST_BATCH_ROWS, FIRST_BATCH_BYTES = 4096, 256 << 10
"""Size of a file's first batch: rows, and bytes of each binary column.

A batch keeps its buffers. Linux may give the larger buffers of later batches pages of 2 MiB, so a batch of a few rows
would take megabytes: a first batch of 1,000 sources, with as many files, took 2 GB for 3,000 rows."""

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class BlockGroup:
    """Blocks with valid headers and checksums, in a buffer."""

    buffer: Bytes
    """Bytes of the file; valid until the next group is read."""
    file_position: int
    """Position of `buffer[0]` in the file."""
    blocks: Blocks
    """A column for each block, as `chain.walk_blocks` fills it (int64[4, n])."""
    block_count: int


@dataclass(frozen=True)
class Limits:
    """Limits of memory and sizes while reading."""

    max_block_bytes: int = BLOCK_LIMIT
    """The longest block, in the file and decompressed, in bytes."""
    batch_rows: int = 64 * 1024
    batch_bytes: int = 16 << 20
    """Maximum number of rows of a batch, and maximum number of bytes in each of its binary columns. A batch of one row
    may have more bytes."""
    window_bytes: int = 8 << 20
    """Number of bytes of the file that are in memory at a time; more if one block is longer."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class DecodeSettings:
    """Settings for decoding a log."""

    selection: Selection | None = None
    mode: Mode = Mode.FAILFAST
    """What to do about damage."""
    limits: Limits = DEFAULT_LIMITS
    """Sizes of blocks, batches and the buffer."""


class Decoder(Generic[Batch]):
    """Decodes the block groups of one file, in their order.

    Args:
        skipped: Counts what a lenient mode leaves out.
        make_batch: Makes a batch from filled columns and the number of rows in them.
        make_error_batch: Makes the batch that represents an error among the rows, in mode PERMISSIVE.
    """

    def __init__(
        self,
        file: str,
        decoding: DecodeSettings,
        skipped: SkippedDamage,
        make_batch: Callable[[RowColumns, int], Batch],
        make_error_batch: Callable[[XlogError], Batch] | None = None,
        with_binary: bool = True,
    ) -> None:
        self._file, self._decoding, self._limits, self._skipped = file, decoding, decoding.limits, skipped
        self._make_batch, self._make_error_batch, self._with_binary = (
            make_batch,
            make_error_batch,
            with_binary,
        )
        self._filter = filter_of(decoding.selection)
        self._zstd = zstandard.ZstdDecompressor()
        self._scratch = np.empty(SCRATCH_BYTES, np.uint8)
        self._scratch_blocks: Blocks = np.empty((4, 0), np.int64)
        self._state = np.zeros(5, np.int64)
        self._columns = self._empty_columns(is_first=True)

    def batches(self, group: BlockGroup) -> Iterator[Batch]:
        """Yield the batches that become full with the rows of a group; its last rows may wait for `flush`."""
        compressed = group.blocks[BLOCK_ZSTD, : group.block_count]
        edges = [0, *(np.flatnonzero(np.diff(compressed)) + 1).tolist(), group.block_count]
        for first, last in itertools.pairwise(edges):
            if compressed[first]:
                yield from self._walk_compressed(group, first, last)
            else:
                yield from self._walk(group, group.buffer, group.blocks, first, last)

    def flush(self) -> Iterator[Batch]:
        """Yield the batch that is being filled, if it has rows."""
        count = int(self._state[COUNT])
        if count:
            columns, self._columns = self._columns, self._empty_columns()
            self._state[COUNT] = 0
            yield self._make_batch(columns, count)

    def batches_of_error(self, error: XlogError) -> Iterator[Batch]:
        """Yield the rows before an error, and then the batch that represents it, if there is `make_error_batch`."""
        if self._make_error_batch is not None:
            yield from self.flush()
            yield self._make_error_batch(error)

    def _empty_columns(self, size: int = 0, *, is_first: bool = False) -> RowColumns:
        rows, binary_bytes = self._limits.batch_rows, self._limits.batch_bytes
        if is_first:
            rows, binary_bytes = min(rows, FIRST_BATCH_ROWS), min(binary_bytes, FIRST_BATCH_BYTES)
        return new_columns(rows, max(size, binary_bytes), self._with_binary)

    def _walk_compressed(self, group: BlockGroup, first: int, last: int) -> Iterator[Batch]:
        """Decompress blocks `first` to `last - 1` into the scratch buffer, and walk their rows when it is full."""
        if self._scratch_blocks.shape[1] < last:
            self._scratch_blocks = np.empty_like(group.blocks)
        moved, used, at = self._scratch_blocks, 0, first
        moved[:, first:last] = group.blocks[:, first:last]
        for index in range(first, last):
            room = self._needed_bytes(group, index)
            if used and used + room > self._scratch.size:
                yield from self._walk(group, self._scratch, moved, at, index)
                used, at = 0, index
            if used == 0 and room > self._scratch.size:
                self._scratch = np.empty(room, np.uint8)
            size = self._decompress(group, index, used, room)
            if size < 0:
                yield from self._walk(group, self._scratch, moved, at, index)
                yield from self._skip_damaged_block(group, index, WalkStatus(size))
                used, at = 0, index + 1
            else:
                moved[BLOCK_BEGIN, index], moved[BLOCK_END, index] = used, used + size
                used += size
        yield from self._walk(group, self._scratch, moved, at, last)
        if self._scratch.size > SCRATCH_BYTES:
            self._scratch = np.empty(SCRATCH_BYTES, np.uint8)

    def _needed_bytes(self, group: BlockGroup, index: int) -> int:
        """Return how many bytes a decompressed block needs at most; 0 if it is not one complete zstd frame."""
        begin, end = int(group.blocks[BLOCK_BEGIN, index]), int(group.blocks[BLOCK_END, index])
        bound = int(decompressed_bound(group.buffer, begin, end))
        return max(0, min(bound, self._limits.max_block_bytes + 1))

    def _decompress(self, group: BlockGroup, index: int, offset: int, capacity: int) -> int:
        """Decompress a block to `offset` in the scratch buffer; return its size, or a negative `WalkStatus`."""
        begin, end = int(group.blocks[BLOCK_BEGIN, index]), int(group.blocks[BLOCK_END, index])
        if capacity == 0 and decompressed_bound(group.buffer, begin, end) < 0:
            return WalkStatus.FRAME
        out = self._scratch.data[offset : offset + capacity]
        try:
            size = decompress(group.buffer.data[begin:end], out, self._zstd)
        except zstandard.ZstdError:
            return WalkStatus.FRAME
        return WalkStatus.TOO_BIG if size > self._limits.max_block_bytes else size

    def _walk(
        self, group: BlockGroup, buffer: Bytes, blocks: Blocks, first: int, last: int
    ) -> Iterator[Batch]:
        state = self._state
        state[BLOCK], state[AT], state[NUMBER] = first, -1, 0
        while True:
            status = walk_rows(
                buffer,
                blocks,
                last,
                group.file_position,
                self._filter,
                self._with_binary,
                self._columns,
                state,
            )
            if status == FILLED:
                return
            if status != FULL:
                yield from self._skip_damaged_row(group, buffer, blocks, WalkStatus(status))
            elif state[COUNT]:
                yield from self.flush()
            else:
                self._columns = self._empty_columns(int(state[ROOM]))

    def _skip_damaged_row(
        self, group: BlockGroup, buffer: Bytes, blocks: Blocks, status: WalkStatus
    ) -> Iterator[Batch]:
        """Skip the row at which the walk stopped, or the rest of its block if the row's end is unknown.

        Raises the error in mode FAILFAST. In mode PERMISSIVE, yields the rows before the damage and the error's batch.
        """
        state = self._state
        index, at, row = int(state[BLOCK]), int(state[AT]), int(state[NUMBER])
        end = int(blocks[BLOCK_END, index])
        after = int(end_of_row(buffer, at, end))
        if after < 0:
            state[BLOCK], state[AT], state[NUMBER] = index + 1, -1, 0
        else:
            state[AT], state[NUMBER] = after, row + 1
        position = group.file_position + int(group.blocks[BLOCK_START, index])
        error = damage_error(status, self._file, position, row, is_last=after < 0)
        size = (end if after < 0 else after) - at
        yield from self.batches_of_error(raise_or_count(error, size, self._decoding.mode, self._skipped))

    def _skip_damaged_block(self, group: BlockGroup, index: int, status: WalkStatus) -> Iterator[Batch]:
        start = int(group.blocks[BLOCK_START, index])
        size = int(group.blocks[BLOCK_END, index]) - start
        error = damage_error(status, self._file, group.file_position + start)
        yield from self.batches_of_error(raise_or_count(error, size, self._decoding.mode, self._skipped))
