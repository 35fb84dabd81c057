"""The walk from block to block over a buffer: numba kernels that find, check and measure, and decode nothing.

Positions are offsets in the buffer; the caller knows where in the file the buffer lies. What a block looks
like is said in `block`. Every kernel reads only bytes of `buffer[begin:end]`, whatever they hold.

Not here: rows (`kernel`), decompression (`block`), any input or output.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from sources.xlog.arrays import Blocks, Bytes, Int, Word
from sources.xlog.block import (
    FIXED_HEADER_SIZE,
    MAGIC_EOF,
    MAGIC_PLAIN,
    MAGIC_SIZE,
    MAGIC_ZSTD,
    Status,
)
from sources.xlog.kernels.native import HAS_CRC32C, crc32c_u64, load_u64

POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected

BLOCK_START, BLOCK_BEGIN, BLOCK_END, BLOCK_ZSTD = 0, 1, 2, 3
"""Rows of the matrix that `walk_blocks` fills: start of the block, of its data, its end, whether zstd."""

ZSTD_BLOCK_MAX = 128 * 1024
_ZSTD_MAGIC = 0xFD2FB528
_GROUP, _PART, _EOF, _ZEROS = int(Status.GROUP), int(Status.PART), int(Status.EOF), int(Status.ZEROS)
_MAGIC, _LENGTH, _CHECKSUM_FIELD = int(Status.MAGIC), int(Status.LENGTH), int(Status.CHECKSUM_FIELD)
_PADDING, _TOO_LONG, _CHECKSUM = int(Status.PADDING), int(Status.TOO_LONG), int(Status.CHECKSUM)


def _tables() -> npt.NDArray[np.uint32]:
    """Return the 8 tables of slicing-by-8: tables[k, b] is byte b followed by k zero bytes."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        tables[k] = tables[0, tables[k - 1] & 0xFF] ^ (tables[k - 1] >> 8)
    return tables


_TABLES = _tables()


@njit(cache=True, nogil=True)
def _crc_bytes(crc: Word, buffer: Bytes, begin: Int, end: Int) -> Word:
    for p in range(begin, end):
        crc = np.uint64(_TABLES[0, (crc ^ np.uint64(buffer[p])) & np.uint64(0xFF)]) ^ (crc >> np.uint64(8))
    return crc


@njit(cache=True, nogil=True)
def crc_by_instruction(buffer: Bytes, begin: Int, end: Int) -> Word:
    """Return the checksum of `buffer[begin:end]`, by the processor's CRC-32C instruction."""
    crc = np.uint64(0)
    p = begin
    while p + 8 <= end:
        crc = crc32c_u64(crc, load_u64(buffer, p))
        p += 8
    return _crc_bytes(crc, buffer, p, end)


@njit(cache=True, nogil=True)
def crc_by_tables(buffer: Bytes, begin: Int, end: Int) -> Word:
    """Return the checksum of `buffer[begin:end]`, 8 bytes a step by tables (any processor)."""
    crc, low = np.uint64(0), np.uint64(0xFF)
    p = begin
    while p + 8 <= end:
        word = load_u64(buffer, p) ^ crc
        crc = np.uint64(0)
        for k in range(8):
            crc ^= np.uint64(_TABLES[7 - k, (word >> np.uint64(8 * k)) & low])
        p += 8
    return _crc_bytes(crc, buffer, p, end)


crc_of = crc_by_instruction if HAS_CRC32C else crc_by_tables


@njit(cache=True, nogil=True)
def _big_endian(buffer: Bytes, begin: Int, size: Int) -> Int:
    value = np.int64(0)
    for p in range(begin, begin + size):
        value = (value << 8) | np.int64(buffer[p])
    return value


@njit(cache=True, nogil=True)
def _field(buffer: Bytes, p: Int, end: Int) -> tuple[Int, Int]:
    """Return a mp_uint's value and the position behind it; (-1, p) where there is none before `end`."""
    head = buffer[p] if p < end else np.uint8(0xC1)
    if head < 0x80:
        return np.int64(head), p + 1
    if head < 0xCC or head > 0xCE:
        return -1, p
    size = 1 << (np.int64(head) - 0xCC)
    if p + 1 + size > end:
        return -1, p
    return _big_endian(buffer, p + 1, size), p + 1 + size


@njit(cache=True, nogil=True)
def _fixed_header(buffer: Bytes, p: Int, end: Int, limit: Int, check: bool) -> tuple[Int, Int]:
    """Return (status, length of the data) of the block at `p`; at least `MAGIC_SIZE` bytes are there."""
    magic = _big_endian(buffer, p, MAGIC_SIZE)
    if magic == MAGIC_EOF:
        return _EOF, 0
    if magic not in (MAGIC_PLAIN, MAGIC_ZSTD):
        return (_ZEROS if magic == 0 else _MAGIC), 0
    begin = p + FIXED_HEADER_SIZE
    if begin > end:
        return _PART, 0
    length, at = _field(buffer, p + MAGIC_SIZE, begin)
    if length < 0:
        return _LENGTH, 0
    before, at = _field(buffer, at, begin)
    crc, at = _field(buffer, at, begin)
    if before < 0 or crc < 0:
        return _CHECKSUM_FIELD, 0
    if at < begin and np.int64(buffer[at]) != 0xA0 | (begin - at - 1):
        return _PADDING, 0
    if length > limit:
        return _TOO_LONG, 0
    if check and begin + length > end:
        return _PART, length
    if check and np.uint64(crc) != crc_of(buffer, begin, begin + length):
        return _CHECKSUM, length
    return _GROUP, length


@njit(cache=True, nogil=True)
def walk_blocks(
    buffer: Bytes, begin: Int, end: Int, stop: Int, limit: Int, check: bool, blocks: Blocks
) -> tuple[Int, Int, Int]:
    """Walk over whole blocks.

    Parameters
    ----------
    buffer : uint8[]
        Bytes of the file.
    begin, end : int
        `begin` is where a block must start; no byte from `end` on is read.
    stop : int
        Blocks that start here or later are left.
    limit : int
        The longest data of a block, in bytes.
    check : bool
        Whether the block must be there whole and its checksum right; otherwise only headers are read, and the
        last block may end behind `end`.
    blocks : int64[4, n]
        Filled by `BLOCK_START` ... `BLOCK_ZSTD`; the walk ends when it is full.

    Returns
    -------
    count, position, status : int
        Blocks found; where the walk stands; why it stands there (`block.Status`).

    """
    count, p = 0, begin
    while p < stop and count < blocks.shape[1]:
        if p + MAGIC_SIZE > end:
            return count, p, _PART
        status, length = _fixed_header(buffer, p, end, limit, check)
        if status != _GROUP:
            return count, p, status
        blocks[BLOCK_START, count] = p
        blocks[BLOCK_BEGIN, count] = p + FIXED_HEADER_SIZE
        p += FIXED_HEADER_SIZE + length
        blocks[BLOCK_END, count] = p
        blocks[BLOCK_ZSTD, count] = buffer[blocks[BLOCK_START, count] + 3] == MAGIC_ZSTD & 0xFF
        count += 1
    return count, p, _GROUP


@njit(cache=True, nogil=True)
def find_magic(buffer: Bytes, begin: Int, end: Int) -> Int:
    """Return the first position in `begin..end` at which a block's magic stands whole, or -1."""
    for p in range(begin, end - MAGIC_SIZE + 1):
        if buffer[p] == MAGIC_PLAIN >> 24:
            magic = _big_endian(buffer, p, MAGIC_SIZE)
            if magic in (MAGIC_PLAIN, MAGIC_ZSTD):
                return p
    return -1


@njit(cache=True, nogil=True)
def _little_endian(buffer: Bytes, begin: Int, size: Int) -> Int:
    value = np.int64(0)
    for k in range(size):
        value |= np.int64(buffer[begin + k]) << (8 * k)
    return value


@njit(cache=True, nogil=True)
def _frame_blocks(buffer: Bytes, begin: Int, end: Int) -> Int:
    """Return the position of the first block of the zstd frame at `begin`, or -1."""
    if begin + 5 > end or _little_endian(buffer, begin, 4) != _ZSTD_MAGIC:
        return -1
    descriptor = np.int64(buffer[begin + 4])
    single, size_flag = (descriptor >> 5) & 1, descriptor >> 6
    content_size = (1 << size_flag) if size_flag else single
    dictionary = (1 << (descriptor & 3)) >> 1
    return begin + 5 + (1 - single) + dictionary + content_size


@njit(cache=True, nogil=True)
def frame_bound(buffer: Bytes, begin: Int, end: Int) -> Int:
    """Return how many bytes a zstd frame gives at most, or -1 if `buffer[begin:end]` is not one whole frame.

    A frame that is cut decompresses without complaint to fewer rows, and Tarantool writes no size into it: so
    the frame's blocks are walked (RFC 8878, 3.1.1). The bound is tight but for the last 128 KiB.
    """
    p = _frame_blocks(buffer, begin, end)
    total, last = 0, 0
    while p >= 0 and not last:
        if p + 3 > end:
            return -1
        head = _little_endian(buffer, p, 3)
        last, kind, size = head & 1, (head >> 1) & 3, head >> 3
        if kind == 3 or size > ZSTD_BLOCK_MAX:
            return -1
        total += ZSTD_BLOCK_MAX if kind == 2 else size
        p += 3 + (1 if kind == 1 else size)
    has_checksum = p >= 0 and (buffer[begin + 4] >> 2) & 1
    return total if p >= 0 and p + (4 if has_checksum else 0) == end else -1
