"""Checks a zstd frame without decompressing it: whether it is whole, and to how many bytes it can decompress at most.

An incomplete frame decompresses without an error to fewer rows, and Tarantool writes neither a size nor a checksum into
it, so the blocks of a frame are walked before it is decompressed. Source: RFC 8878, section 3.1.1.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import kernel
from sources.xlog.format.arrays import Bytes, Int
from sources.xlog.format.kernels.native import address_of, byte_at

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
def _first_block(data: Int, begin: Int, end: Int) -> Int:
    """Return the position of the first block of the frame at `begin`, or -1."""
    if begin + 5 > end or _little_endian(data, begin, 4) != ZSTD_MAGIC:
        return -1
    descriptor: Int = byte_at(data, begin + 4)
    single, size_flag = (descriptor >> 5) & 1, descriptor >> 6
    content_size = (1 << size_flag) if size_flag else single
    dictionary = (1 << (descriptor & 3)) >> 1
    return begin + 5 + (1 - single) + dictionary + content_size


@kernel
def frame_bound(buffer: Bytes, begin: Int, end: Int) -> Int:
    """Return how many bytes a frame can decompress to at most, or -1 if `buffer[begin:end]` is not one whole frame.

    The bound is tight but for the last 128 KiB.
    """
    data = address_of(buffer)
    p = _first_block(data, begin, end)
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
