"""Reads log files: their header, their rows as Arrow batches, and the end of their complete blocks.

`read_rows` is what a Spark task runs. The driver plans with `end_of_complete_blocks` and `block_starts` many times a
minute, so these read block headers alone: no row is decoded, no checksum is computed, and most bytes are not even read.
All of Tarantool's files are read in the same way: `.xlog`, `.snap`, `.vylog`, `.run`, `.index`, and those whose name
ends in `.inprogress`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs

from schemas.errors import XlogError, XlogMetaError, XlogMissingError
from sources.xlog.format.arrays import Blocks
from sources.xlog.format.block import BLOCK_LIMIT, EOF_MARKER, MAGIC_SIZE
from sources.xlog.format.damage import Mode, SkippedDamage, WalkStatus, damage_error, raise_or_count
from sources.xlog.format.decoder import DEFAULT_LIMITS, Batch, BlockGroup, Decoder, DecodeSettings, Limits
from sources.xlog.format.kernels.chain import BLOCK_START, header_claims_end, walk_blocks
from sources.xlog.format.kernels.row import RowColumns
from sources.xlog.format.meta import DAMAGED_META, META_LIMIT, Meta, parse_meta
from sources.xlog.format.rows import FileColumns, Headers, batch_of, corrupt_batch, headers_of
from sources.xlog.format.selection import Selection
from sources.xlog.reader.file_buffer import FileBuffer, base_name, open_fs
from sources.xlog.reader.scan import Scanner, ScanRange

__all__ = [
    "CompleteBlocksEnd",
    "Headers",
    "Limits",
    "Mode",
    "Selection",
    "SkippedDamage",
    "block_starts",
    "end_of_complete_blocks",
    "ends_with_marker",
    "first_block_start",
    "open_fs",
    "read_headers",
    "read_meta",
    "read_rows",
]


def read_rows(
    fs: pa.fs.FileSystem,
    path: str,
    begin: int = 0,
    end: int | None = None,
    selection: Selection | None = None,
    mode: Mode = Mode.FAILFAST,
    *,
    at_block_starts: bool = False,
    closed: bool = False,
    next_block_before: int | None = None,
    meta: Meta | None = None,
    skipped: SkippedDamage | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the blocks that start in `begin <= position < end`, as batches of `XROW_ARROW`.

    Args:
        fs, path: The file, as `open_fs` returns them.
        begin: Any position in the file. A position inside the text header means the first block.
        end: None: up to the last complete block.
        mode: What to do about damage. In PERMISSIVE the batches have the column `_corrupt_record` too.
        at_block_starts: Whether blocks start at `begin` and `end` (`block_starts`). Then the first block is not
            searched for, and no block after `end` is read.
        closed: Whether the file cannot grow. Then an incomplete block at its end is damage; otherwise it is still being
            written.
        next_block_before: Unless `at_block_starts`, the first block after `end` is checked too, if it begins before
            this position (None: wherever it begins). If this block is damaged, the reader of the next range cannot find
            it.

    Raises:
        XlogError: In mode FAILFAST, if the file is damaged; the error names the file, the offset and the reason.
    """
    file, permissive = base_name(path), mode is Mode.PERMISSIVE
    decoding, counted = (
        DecodeSettings(selection, mode, limits),
        SkippedDamage() if skipped is None else skipped,
    )
    known, damaged = (meta, None) if meta is not None else _meta_or_damage(fs, path, begin, decoding, counted)
    labels = FileColumns(file, known.instance_uuid)

    def make_batch(columns: RowColumns, count: int) -> pa.RecordBatch:
        return batch_of(columns, count, labels, permissive)

    def make_error_batch(error: XlogError) -> pa.RecordBatch:
        return corrupt_batch(error, file)

    if damaged is not None and permissive:
        yield make_error_batch(damaged)
    decoder = Decoder(file, decoding, counted, make_batch, make_error_batch if permissive else None)
    with FileBuffer(fs, path, limits.window_bytes) as buffer:
        scan_range = _scan_range(known, begin, end, buffer.size, at_block_starts, closed)
        if next_block_before is not None:
            scan_range = replace(
                scan_range, next_block_before=min(scan_range.next_block_before, next_block_before)
            )
        yield from _decoded_batches(buffer, scan_range, decoder, decoding, counted)


def read_headers(
    fs: pa.fs.FileSystem,
    path: str,
    begin: int = 0,
    end: int | None = None,
    mode: Mode = Mode.FAILFAST,
    *,
    at_block_starts: bool = False,
    closed: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[Headers]:
    """Yield the row headers of all rows that `read_rows` would yield with these arguments."""
    decoding, counted = DecodeSettings(mode=mode, limits=limits), SkippedDamage()
    known, _ = _meta_or_damage(fs, path, begin, decoding, counted)
    decoder = Decoder(base_name(path), decoding, counted, headers_of, with_binary=False)
    with FileBuffer(fs, path, limits.window_bytes) as buffer:
        yield from _decoded_batches(
            buffer,
            _scan_range(known, begin, end, buffer.size, at_block_starts, closed),
            decoder,
            decoding,
            counted,
        )


def _meta_or_damage(
    fs: pa.fs.FileSystem, path: str, begin: int, decoding: DecodeSettings, skipped: SkippedDamage
) -> tuple[Meta, XlogError | None]:
    """Return a file's header and None, or `DAMAGED_META` and the error for a damaged header in a lenient mode.

    Only the reader of the file's first byte gets the error, so that it is reported once; the others get None.
    """
    try:
        return read_meta(fs, path), None
    except XlogMetaError as error:
        if decoding.mode is Mode.FAILFAST:
            raise
        return DAMAGED_META, raise_or_count(error, 0, decoding.mode, skipped) if begin == 0 else None


def _scan_range(
    meta: Meta, begin: int, end: int | None, size: int, at_block_starts: bool, closed: bool
) -> ScanRange:
    return ScanRange(
        begin=max(begin, meta.length),
        end=size if end is None else min(end, size),
        # After a damaged header, the start of the first block is unknown.
        begins_at_block=at_block_starts and begin > 0
        if meta is DAMAGED_META
        else at_block_starts or begin <= meta.length,
        next_block_before=size if end is not None and end > meta.length and not at_block_starts else 0,
        is_closed=closed,
    )


def _decoded_batches(
    buffer: FileBuffer,
    scan_range: ScanRange,
    decoder: Decoder[Batch],
    decoding: DecodeSettings,
    skipped: SkippedDamage,
) -> Iterator[Batch]:
    for found in Scanner(buffer, decoding, skipped).groups(scan_range):
        if isinstance(found, BlockGroup):
            yield from decoder.batches(found)
        else:
            yield from decoder.batches_of_error(found)
    yield from decoder.flush()


SMALL_WINDOW, LARGE_WINDOW = 4 * 1024, 1 << 20
BLOCKS_PER_WALK = 16 * 1024
"""Maximum number of block headers that one step of a walk reads."""
TAIL_BYTES = 1 << 18
"""Number of bytes at the end of a file in which its last block is searched for. It is twice the size at which a server
ends a block, so only a very large transaction has a longer block."""


class CompleteBlocksEnd(NamedTuple):
    """The end of the complete blocks of a file."""

    position: int
    """End of the last complete block, in bytes. The end marker, an incomplete block or nothing follows."""
    has_eof_marker: bool
    """Whether the end marker follows, which means that the file is closed. (A restarted server writes again to a closed
    file only if it has no block, and overwrites the marker: `xlog_open` in `src/box/xlog.c`.)"""


def read_meta(fs: pa.fs.FileSystem, path: str) -> Meta:
    """Return a file's text header.

    Raises:
        XlogMissingError: If the file does not exist.
        XlogMetaIncompleteError: If the header is not completely written yet.
        XlogMetaError: If the header is damaged.
    """
    try:
        with fs.open_input_file(path) as source:
            return parse_meta(source.read_at(min(META_LIMIT, source.size()), 0), base_name(path))
    except FileNotFoundError:
        raise XlogMissingError("the file is gone", file=path) from None


def end_of_complete_blocks(
    fs: pa.fs.FileSystem, path: str, begin: int = 0, max_block_bytes: int = BLOCK_LIMIT
) -> CompleteBlocksEnd:
    """Return where the complete blocks of a file end, by a walk over its block headers from `begin` on.

    Raises:
        XlogMagicError, XlogHeaderError: If no block starts where one must start, or if bytes follow the end marker. An
            incomplete block at the end is no error, because it is still being written.
    """
    with FileBuffer(fs, path, SMALL_WINDOW) as buffer:
        *_, (position, status, _) = _walk(buffer, _begin_or_first_block(fs, path, begin), max_block_bytes)
        return CompleteBlocksEnd(position, status is WalkStatus.EOF)


def ends_with_marker(
    fs: pa.fs.FileSystem, path: str, begin: int, end: int, max_block_bytes: int = BLOCK_LIMIT
) -> bool:
    """Return whether a file of `end` bytes is closed: its last bytes are the end marker, not a part of a tuple.

    Usually the last `TAIL_BYTES` of the file decide, if they have a header of a block that ends where the marker
    begins. If there is no such header, or if there is one of a block that would end after the marker, all block headers
    of the file are walked. A damaged file counts as closed, since the damage is found when the rows are read.
    """
    first = max(begin, end - TAIL_BYTES)
    with FileBuffer(fs, path, SMALL_WINDOW) as buffer:
        if not begin <= end - MAGIC_SIZE <= buffer.size - MAGIC_SIZE:
            return False
        at = buffer.load(end - MAGIC_SIZE, MAGIC_SIZE)
        if buffer.bytes[at : at + MAGIC_SIZE].tobytes() != EOF_MARKER:
            return False
        at = buffer.load(first, end - first)
        behind = at + end - first
        before = behind - MAGIC_SIZE
        is_before = begin == end - MAGIC_SIZE or header_claims_end(buffer.bytes, at, before, max_block_bytes)
        if is_before and not header_claims_end(buffer.bytes, at, behind, max_block_bytes):
            return True
    try:
        return end_of_complete_blocks(fs, path, begin, max_block_bytes) == (end - MAGIC_SIZE, True)
    except XlogError:
        return True


def block_starts(
    fs: pa.fs.FileSystem,
    path: str,
    begin: int,
    end: int | None,
    min_distance: int,
    max_block_bytes: int = BLOCK_LIMIT,
) -> list[int]:
    """Return block starts that split `begin <= position < end` into ranges of about `min_distance` bytes.

    Args:
        fs, path: The file.
        begin: The start of a block, or 0 for the first block. It is the first item of the result, unless the block is
            incomplete.
        end: None: up to the last complete block.
        min_distance: Minimum distance between two starts, in bytes; at least 1.

    Raises:
        XlogMagicError, XlogHeaderError: Like `end_of_complete_blocks`.
    """
    starts: list[int] = []
    target = begin
    with FileBuffer(fs, path, SMALL_WINDOW) as buffer:
        last = buffer.size if end is None else end
        for position, _, found in _walk(buffer, _begin_or_first_block(fs, path, begin), max_block_bytes):
            at = np.searchsorted(found, target)
            while at < found.size and found[at] < last:
                starts.append(int(found[at]))
                target = starts[-1] + min_distance
                at = np.searchsorted(found, target)
            if position >= last:
                break
    return starts


def first_block_start(
    fs: pa.fs.FileSystem,
    path: str,
    target: int,
    begin: int | None = None,
    end: int | None = None,
    max_block_bytes: int = BLOCK_LIMIT,
) -> int:
    """Return the first block start from `target` on, or `end` if there is none before it.

    Args:
        fs, path: The file.
        begin: The start of a block at or before `target`; 0 means the first block. Then blocks are found by a walk over
            block headers, which is certain. Without `begin`, a block is found by its magic and checksum, so bytes of a
            tuple that are a complete block would be found too.
    """
    with FileBuffer(fs, path, LARGE_WINDOW if begin is None else SMALL_WINDOW) as buffer:
        last = buffer.size if end is None else min(end, buffer.size)
        if begin is None:
            found = Scanner(
                buffer, DecodeSettings(limits=Limits(max_block_bytes)), SkippedDamage()
            ).find_block_start(target, last)
            return last if found < 0 else found
        for position, _, starts in _walk(buffer, _begin_or_first_block(fs, path, begin), max_block_bytes):
            at = np.searchsorted(starts, target)
            if at < starts.size:
                return min(int(starts[at]), last)
            if position >= last:
                break
        return last


def _begin_or_first_block(fs: pa.fs.FileSystem, path: str, begin: int) -> int:
    return begin if begin > 0 else read_meta(fs, path).length


def _walk(
    buffer: FileBuffer, position: int, max_block_bytes: int
) -> Iterator[tuple[int, WalkStatus, Blocks]]:
    """Walk over block headers; yield (position reached, status there, starts of the blocks before) for each step."""
    blocks = np.empty((4, BLOCKS_PER_WALK), np.int64)
    status = WalkStatus.GROUP
    while status is WalkStatus.GROUP:
        if position >= buffer.size:
            yield position, WalkStatus.PART, np.empty(0, np.int64)
            return
        offset = buffer.load(position, MAGIC_SIZE)
        args = (buffer.bytes, offset, buffer.filled, buffer.filled, max_block_bytes, False, blocks)
        count, at, code = walk_blocks(*args)
        at, status = buffer.base + at, WalkStatus(code)
        if at > buffer.size:  # the last block is incomplete
            count, at, status = count - 1, buffer.base + int(blocks[BLOCK_START, count - 1]), WalkStatus.PART
        elif status is WalkStatus.PART and buffer.base + buffer.filled < buffer.size:
            status = WalkStatus.GROUP
            if count == 0:
                buffer.load(position)
        _raise_damage(buffer, at, status)
        yield at, status, blocks[BLOCK_START, :count] + buffer.base
        buffer.resize(SMALL_WINDOW if at > buffer.base + buffer.filled else LARGE_WINDOW)
        position = at


def _raise_damage(buffer: FileBuffer, position: int, status: WalkStatus) -> None:
    if status is WalkStatus.EOF and position + MAGIC_SIZE != buffer.size:
        raise damage_error(WalkStatus.AFTER_EOF, buffer.file, position + MAGIC_SIZE)
    if status < 0:
        raise damage_error(status, buffer.file, position)
