"""Walks from block to block over a buffer: numba kernels that find and check blocks and zstd frames, and decode no row.

Positions are offsets in the buffer; the caller knows where in the file the buffer is. `block` describes a block's
format. No kernel reads outside of `buffer[begin:end]`, even if the bytes are damaged.

An incomplete zstd frame decompresses without an error to fewer rows, and Tarantool writes neither a size nor a checksum
into a frame. So `decompressed_bound` walks over the parts of a frame, before it is decompressed, to find out whether it
is complete (RFC 8878, section 3.1.1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schemas.compiled import kernel
from sources.xlog.format.arrays import Blocks, Bytes, Int
from sources.xlog.format.block import FIXED_HEADER_SIZE, MAGIC_EOF, MAGIC_PLAIN, MAGIC_SIZE, MAGIC_ZSTD
from sources.xlog.format.damage import WalkStatus
from sources.xlog.format.kernels.native import (
    HAS_CRC32C,
    address_of,
    byte_at,
    crc32c_byte,
    crc32c_word,
    word_at,
)
from sources.xlog.format.kernels.skip import load_uint

CRC32C_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected

BLOCK_START, BLOCK_BEGIN, BLOCK_END, BLOCK_ZSTD = 0, 1, 2, 3
"""Rows of the matrix that `walk_blocks` fills: start of the block, of its data, its end, whether zstd."""

_GROUP, _PART, _EOF, _ZEROS = (
    int(WalkStatus.GROUP),
    int(WalkStatus.PART),
    int(WalkStatus.EOF),
    int(WalkStatus.ZEROS),
)
_MAGIC, _LENGTH, _CHECKSUM_FIELD = (
    int(WalkStatus.MAGIC),
    int(WalkStatus.LENGTH),
    int(WalkStatus.CHECKSUM_FIELD),
)
_PADDING, _TOO_LONG, _CHECKSUM = int(WalkStatus.PADDING), int(WalkStatus.TOO_LONG), int(WalkStatus.CHECKSUM)


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Return the tables of the algorithm slicing-by-8: tables[k, b] is the CRC of byte b and k zero bytes after it."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        tables[k] = tables[0, tables[k - 1] & 0xFF] ^ (tables[k - 1] >> 8)
    return tables


_CRC_TABLES = _crc_tables()


@kernel
def crc_by_instruction(data: Int, begin: Int, end: Int) -> Int:
    """Return the checksum of the bytes from `begin` to `end`, by the processor's CRC-32C instruction."""
    crc, p = np.uint64(0), begin
    while p + 8 <= end:
        crc = crc32c_word(crc, word_at(data, p))
        p += 8
    while p < end:
        crc = crc32c_byte(crc, byte_at(data, p))
        p += 1
    return np.int64(crc)


@kernel
def crc_by_tables(data: Int, begin: Int, end: Int) -> Int:
    """Return the checksum of the bytes from `begin` to `end`, by tables, 8 bytes a step, on any processor."""
    crc, p = np.int64(0), begin
    while p + 8 <= end:
        low = crc ^ np.int64(word_at(data, p) & np.uint64(0xFFFFFFFF))
        high = np.int64(word_at(data, p) >> np.uint64(32))
        crc = np.int64(0)
        for k in range(4):
            crc ^= np.int64(
                _CRC_TABLES[7 - k, (low >> 8 * k) & 0xFF] ^ _CRC_TABLES[3 - k, (high >> 8 * k) & 0xFF]
            )
        p += 8
    while p < end:
        crc = np.int64(_CRC_TABLES[0, (crc ^ byte_at(data, p)) & 0xFF]) ^ (crc >> 8)
        p += 1
    return crc


crc_of = crc_by_instruction if HAS_CRC32C else crc_by_tables


@kernel
def _magic_at(data: Int, p: Int) -> Int:
    value = 0
    for k in range(MAGIC_SIZE):
        value = (value << 8) | byte_at(data, p + k)
    return value


@kernel
def _block_header(data: Int, p: Int, end: Int, limit: Int, with_checksums: bool) -> tuple[Int, Int]:
    """Return (status, length of the data) of the block at `p`.

    At least `MAGIC_SIZE` bytes of the block are in the buffer.
    """
    magic = _magic_at(data, p)
    if magic == MAGIC_EOF:
        return _EOF, 0
    if magic not in (MAGIC_PLAIN, MAGIC_ZSTD):
        return (_ZEROS if magic == 0 else _MAGIC), 0
    begin = p + FIXED_HEADER_SIZE
    if begin > end:
        return _PART, 0
    length, at = load_uint(data, p + MAGIC_SIZE, begin)
    if at < 0:
        return _LENGTH, 0
    _, at = load_uint(data, at, begin)
    crc, at = load_uint(data, at, begin) if at >= 0 else (0, -1)
    if at < 0:
        return _CHECKSUM_FIELD, 0
    if at < begin and byte_at(data, at) != 0xA0 | (begin - at - 1):
        return _PADDING, 0
    if not 0 <= length <= limit:
        return _TOO_LONG, 0
    if with_checksums and begin + length > end:
        return _PART, length
    if with_checksums and crc != crc_of(data, begin, begin + length):
        return _CHECKSUM, length
    return _GROUP, length


@kernel
def walk_blocks(
    buffer: Bytes, begin: Int, end: Int, stop: Int, limit: Int, with_checksums: bool, blocks: Blocks
) -> tuple[Int, Int, Int]:
    """Walk over complete blocks.

    Args:
        buffer: Bytes of the file.
        begin, end: `begin` is where a block must start; no byte from `end` on is read.
        stop: Blocks that start here or later are not walked.
        limit: The longest data of a block, in bytes.
        with_checksums: Whether a block must be complete and match its checksum. Otherwise only headers are read, and
            the last block may end after `end`.
        blocks: Filled with a column for each block (rows `BLOCK_START` to `BLOCK_ZSTD`; int64[4, n]). The walk ends
            when it is full.

    Returns:
        count, position, status: Number of blocks, where the walk stopped, and why it stopped (`damage.WalkStatus`).
    """
    count, p, data = 0, begin, address_of(buffer)
    while p < stop and count < blocks.shape[1]:
        if p + MAGIC_SIZE > end:
            return count, p, _PART
        status, length = _block_header(data, p, end, limit, with_checksums)
        if status != _GROUP:
            return count, p, status
        blocks[BLOCK_START, count] = p
        blocks[BLOCK_BEGIN, count] = p + FIXED_HEADER_SIZE
        p += FIXED_HEADER_SIZE + length
        blocks[BLOCK_END, count] = p
        blocks[BLOCK_ZSTD, count] = (
            byte_at(data, blocks[BLOCK_START, count] + MAGIC_SIZE - 1) == MAGIC_ZSTD & 0xFF
        )
        count += 1
    return count, p, _GROUP


@kernel
def find_magic(buffer: Bytes, begin: Int, end: Int) -> Int:
    """Return the first position between `begin` and `end` at which a block's magic is, or -1."""
    data = address_of(buffer)
    for p in range(begin, end - MAGIC_SIZE + 1):
        if byte_at(data, p) == MAGIC_PLAIN >> 24:
            magic = _magic_at(data, p)
            if magic in (MAGIC_PLAIN, MAGIC_ZSTD):
                return p
    return -1


@kernel
def header_claims_end(buffer: Bytes, begin: Int, end: Int, limit: Int) -> bool:
    """Return whether bytes between `begin` and `end` are a block header that says that its block ends at `end`."""
    data = address_of(buffer)
    for p in range(begin, end - FIXED_HEADER_SIZE + 1):
        if byte_at(data, p) == MAGIC_PLAIN >> 24:
            status, length = _block_header(data, p, end, limit, False)
            if status == _GROUP and p + FIXED_HEADER_SIZE + length == end:
                return True
    return False


ZSTD_MAGIC = 0xFD2FB528
ZSTD_BLOCK_MAX = 128 * 1024
RLE, COMPRESSED, RESERVED = 1, 2, 3


@kernel
def _little_endian(data: Int, p: Int, size: Int) -> Int:
    value = np.int64(0)
    for k in range(size):
        value |= byte_at(data, p + k) << 8 * k
    return np.int64(value)


@kernel
def _first_zstd_block(data: Int, begin: Int, end: Int) -> Int:
    """Return the position of the first zstd block of the frame at `begin`, or -1 if no frame begins there."""
    if begin + 5 > end or _little_endian(data, begin, 4) != ZSTD_MAGIC:
        return -1
    descriptor: Int = byte_at(data, begin + 4)
    single, size_flag = (descriptor >> 5) & 1, descriptor >> 6
    content_size = (1 << size_flag) if size_flag else single
    dictionary = (1 << (descriptor & 3)) >> 1
    return begin + 5 + (1 - single) + dictionary + content_size


@kernel
def decompressed_bound(buffer: Bytes, begin: Int, end: Int) -> Int:
    """Return how many bytes a zstd frame has at most when decompressed.

    The result is at most 128 KiB too large for each block of the frame that is not full. It is -1 if
    `buffer[begin:end]` is not one complete frame.
    """
    data = address_of(buffer)
    p = _first_zstd_block(data, begin, end)
    if p < 0:
        return -1
    total, last = 0, 0
    while not last:
        if p + 3 > end:
            return -1
        head = _little_endian(data, p, 3)
        last, kind, size = head & 1, (head >> 1) & 3, head >> 3
        if kind == RESERVED or size > ZSTD_BLOCK_MAX:
            return -1
        total += ZSTD_BLOCK_MAX if kind == COMPRESSED else size
        p += 3 + (1 if kind == RLE else size)
    checksum = 4 if (byte_at(data, begin + 4) >> 2) & 1 else 0
    return total if p + checksum == end else -1
