"""Groups of checked blocks → batches: decompress, walk the rows, cut.

Memory is flat: one scratch buffer for decompressed rows, one batch that is being filled. What turns out to be
unsound inside a block is raised or left out, as `damage` says: a block whose frame is damaged is left out whole, a
bad row alone. Where the bad row's own MessagePack does not tell its end, the rows behind it in the block are left out
too.

Not here: finding blocks (`scan`), Arrow (`rows`), files (`window`, `reader`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import zstandard

from schemas.errors import XlogError
from sources.xlog.format.arrays import Blocks, Bytes
from sources.xlog.format.block import BLOCK_LIMIT, Status, damage, decompress
from sources.xlog.format.damage import Mode, Skipped, meet
from sources.xlog.format.kernels.chain import BLOCK_BEGIN, BLOCK_END, BLOCK_START, BLOCK_ZSTD
from sources.xlog.format.kernels.fill import end_of_row, walk_rows
from sources.xlog.format.kernels.frame import frame_bound
from sources.xlog.format.kernels.row import AT, BLOCK, COUNT, FILLED, FULL, NUMBER, ROOM, Columns
from sources.xlog.format.rows import new_columns
from sources.xlog.format.selection import Selection, filter_of

SCRATCH_BYTES = 1 << 20

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Group:
    """Blocks whose headers and checksums are right, as they lie in a buffer.

    Parameters
    ----------
    buffer : uint8[]
        Bytes of the file; valid until the next group is asked for.
    base : int
        Position of `buffer[0]` in the file.
    blocks : int64[4, n]
        As `chain.walk_blocks` fills it.
    count : int
        Blocks in it.

    """

    buffer: Bytes
    base: int
    blocks: Blocks
    count: int


@dataclass(frozen=True)
class Limits:
    """What reading may take.

    Parameters
    ----------
    block : int
        The longest block, in the file and decompressed, in bytes.
    batch_rows, batch_bytes : int
        A batch has no more rows, nor more bytes in a binary column (unless one row has more).
    window : int
        Bytes of the file that are in memory at a time (unless one block has more).

    """

    block: int = BLOCK_LIMIT
    batch_rows: int = 64 * 1024
    batch_bytes: int = 16 << 20
    window: int = 8 << 20


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Decoding:
    """How a log is read.

    Parameters
    ----------
    selection : Selection, optional
        Rows that are wanted; all by default.
    mode : Mode
        What happens to damage.
    limits : Limits
        What reading may take.

    """

    selection: Selection | None = None
    mode: Mode = Mode.FAILFAST
    limits: Limits = DEFAULT_LIMITS


class Decoder(Generic[Batch]):
    """Decodes the groups of one file, in their order.

    Parameters
    ----------
    file : str
        Base name, for errors.
    how : Decoding
        Selection, mode and limits.
    skipped : Skipped
        Counts what a lenient mode leaves out.
    finish : callable
        Makes a batch of filled columns and their number of rows.
    corrupt : callable, optional
        Makes the batch that stands for an error among the rows (PERMISSIVE).
    binary : bool
        Whether the binary columns are filled.

    """

    def __init__(
        self,
        file: str,
        how: Decoding,
        skipped: Skipped,
        finish: Callable[[Columns, int], Batch],
        corrupt: Callable[[XlogError], Batch] | None = None,
        binary: bool = True,
    ) -> None:
        self._file, self._how, self._limits, self._skipped = file, how, how.limits, skipped
        self._finish, self._corrupt, self._binary = finish, corrupt, binary
        self._filter = filter_of(how.selection)
        self._zstd = zstandard.ZstdDecompressor()
        self._scratch = np.empty(SCRATCH_BYTES, np.uint8)
        self._placed: Blocks = np.empty((4, 0), np.int64)
        self._state = np.zeros(5, np.int64)
        self._columns = self._empty()

    def batches(self, group: Group) -> Iterator[Batch]:
        """Yield the batches that the group completes; the rest waits for `flush`."""
        compressed = group.blocks[BLOCK_ZSTD, : group.count]
        edges = [0, *(np.flatnonzero(np.diff(compressed)) + 1).tolist(), group.count]
        for first, last in itertools.pairwise(edges):
            if compressed[first]:
                yield from self._compressed(group, first, last)
            else:
                yield from self._walk(group, group.buffer, group.blocks, first, last)

    def flush(self) -> Iterator[Batch]:
        """Yield the batch that is being filled, if it has rows."""
        count = int(self._state[COUNT])
        if count:
            columns, self._columns = self._columns, self._empty()
            self._state[COUNT] = 0
            yield self._finish(columns, count)

    def met(self, error: XlogError) -> Iterator[Batch]:
        """Yield what stands for an error, in its place among the rows."""
        if self._corrupt is not None:
            yield from self.flush()
            yield self._corrupt(error)

    def _empty(self, size: int = 0) -> Columns:
        return new_columns(self._limits.batch_rows, max(size, self._limits.batch_bytes), self._binary)

    def _compressed(self, group: Group, first: int, last: int) -> Iterator[Batch]:
        """Decompress blocks into the scratch buffer, and walk them whenever it is full."""
        if self._placed.shape[1] < last:
            self._placed = np.empty_like(group.blocks)
        placed, used, at = self._placed, 0, first
        placed[:, first:last] = group.blocks[:, first:last]
        for k in range(first, last):
            room = self._room(group, k)
            if used and used + room > self._scratch.size:
                yield from self._walk(group, self._scratch, placed, at, k)
                used, at = 0, k
            if used == 0 and room > self._scratch.size:
                self._scratch = np.empty(room, np.uint8)
            size = self._decompress(group, k, used, room)
            if size < 0:
                yield from self._walk(group, self._scratch, placed, at, k)
                yield from self._unsound(group, k, Status(size))
                used, at = 0, k + 1
            else:
                placed[BLOCK_BEGIN, k], placed[BLOCK_END, k] = used, used + size
                used += size
        yield from self._walk(group, self._scratch, placed, at, last)
        if self._scratch.size > SCRATCH_BYTES:
            self._scratch = np.empty(SCRATCH_BYTES, np.uint8)

    def _room(self, group: Group, k: int) -> int:
        """Return the bytes that block k may take when decompressed; 0 if it is no whole frame."""
        begin, end = int(group.blocks[BLOCK_BEGIN, k]), int(group.blocks[BLOCK_END, k])
        bound = int(frame_bound(group.buffer, begin, end))
        return max(0, min(bound, self._limits.block + 1))

    def _decompress(self, group: Group, k: int, used: int, room: int) -> int:
        """Return the size of block k's rows, now at `scratch[used]`, or a negative `Status`."""
        begin, end = int(group.blocks[BLOCK_BEGIN, k]), int(group.blocks[BLOCK_END, k])
        if room == 0 and frame_bound(group.buffer, begin, end) < 0:
            return Status.FRAME
        out = self._scratch.data[used : used + room]
        try:
            size = decompress(group.buffer.data[begin:end], out, self._zstd)
        except zstandard.ZstdError:
            return Status.FRAME
        return Status.TOO_BIG if size > self._limits.block else size

    def _walk(self, group: Group, buffer: Bytes, blocks: Blocks, first: int, last: int) -> Iterator[Batch]:
        """Walk the rows of blocks first..last; `buffer` and the places in `blocks` are where they lie now."""
        state = self._state
        state[BLOCK], state[AT], state[NUMBER] = first, -1, 0
        while True:
            status = walk_rows(
                buffer, blocks, last, group.base, self._filter, self._binary, self._columns, state
            )
            if status == FILLED:
                return
            if status != FULL:
                yield from self._unsound_row(group, buffer, blocks, Status(status))
            elif state[COUNT]:
                yield from self.flush()
            else:
                self._columns = self._empty(int(state[ROOM]))

    def _unsound_row(self, group: Group, buffer: Bytes, blocks: Blocks, status: Status) -> Iterator[Batch]:
        """Pass over the row at which the walk stands, and over the rest of its block where its end is unknown."""
        state = self._state
        k, at, row = int(state[BLOCK]), int(state[AT]), int(state[NUMBER])
        end = int(blocks[BLOCK_END, k])
        behind = int(end_of_row(buffer, at, end))
        if behind < 0:
            state[BLOCK], state[AT], state[NUMBER] = k + 1, -1, 0
        else:
            state[AT], state[NUMBER] = behind, row + 1
        place = group.base + int(group.blocks[BLOCK_START, k])
        error = damage(status, self._file, place, row, is_last=behind < 0)
        size = (end if behind < 0 else behind) - at
        yield from self.met(meet(error, size, self._how.mode, self._skipped))

    def _unsound(self, group: Group, k: int, status: Status) -> Iterator[Batch]:
        """Leave out a block whose frame is damaged."""
        start = int(group.blocks[BLOCK_START, k])
        size = int(group.blocks[BLOCK_END, k]) - start
        error = damage(status, self._file, group.base + start)
        yield from self.met(meet(error, size, self._how.mode, self._skipped))
