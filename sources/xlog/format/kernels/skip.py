"""Walks MessagePack without decoding values: numba kernels that find where an object ends, and read unsigned numbers.

They read no byte from `end` on, even if the bytes are damaged. The result -1 instead of a position means that an object
is incomplete or not MessagePack. Nested objects need no stack, because only the number of remaining objects is counted.
Positions are offsets from `data`, the address of the bytes.

Source: the MessagePack specification; `mp_check` in Tarantool's `src/lib/msgpuck/msgpuck.h`.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import kernel
from sources.xlog.format.arrays import Int
from sources.xlog.format.kernels.native import byte_at, swap_bytes, word_at

NIL, NEVER_USED, FALSE, TRUE = 0xC0, 0xC1, 0xC2, 0xC3
BIN8, BIN32, EXT8, EXT32, STR8, STR32 = 0xC4, 0xC6, 0xC7, 0xC9, 0xD9, 0xDB
FLOAT, DOUBLE, UINT8, UINT16, UINT32, UINT64 = 0xCA, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF
INT8, INT16, INT32, INT64, FIXEXT1, FIXEXT16 = 0xD0, 0xD1, 0xD2, 0xD3, 0xD4, 0xD8
ARRAY16, ARRAY32, MAP16, MAP32 = 0xDC, 0xDD, 0xDE, 0xDF


@kernel
def big_endian(data: Int, p: Int, size: Int) -> Int:
    """Return the `size` (1, 2, 4 or 8) bytes at `p` as a big-endian unsigned number, in the bits of an int64."""
    if size == 8:
        return np.int64(swap_bytes(word_at(data, p)))
    value = np.int64(0)
    for k in range(size):
        value = (value << 8) | byte_at(data, p + k)
    return value


@kernel
def _size_by_first_byte(head: Int) -> Int:
    """Return the size of an object whose first byte, `head`, determines it; 0 for all other objects."""
    if head < 0x80 or head >= 0xE0 or head in (NIL, FALSE, TRUE):
        return 1
    if head in (DOUBLE, UINT64, INT64):
        return 9
    if head in (UINT32, INT32, FLOAT):
        return 5
    if head in (UINT16, INT16):
        return 3
    if head in (UINT8, INT8):
        return 2
    if FIXEXT1 <= head <= FIXEXT16:
        return 2 + (1 << (head - FIXEXT1))
    return 0


@kernel
def _skip_length_field(data: Int, p: Int, end: Int, head: Int) -> tuple[Int, Int]:
    """Skip an object with a length field at `p`, but not its elements; return (position, number of elements).

    An array of n elements has n, and a map of n pairs has 2 n, which begin at the position. The result is (-1, 0) if
    the object is incomplete or not MessagePack.
    """
    if BIN8 <= head <= BIN32 or STR8 <= head <= STR32 or EXT8 <= head <= EXT32:
        size = 1 << ((head - STR8) if head >= STR8 else (head - BIN8) % 3)
        extra = 1 if EXT8 <= head <= EXT32 else 0
        if p + 1 + size > end:
            return -1, 0
        return p + 1 + size + extra + big_endian(data, p + 1, size), 0
    if head < ARRAY16 or head > MAP32:
        return -1, 0
    size = 2 << (head & 1)
    if p + 1 + size > end:
        return -1, 0
    return p + 1 + size, big_endian(data, p + 1, size) << (1 if head >= MAP16 else 0)


@kernel
def skip(data: Int, begin: Int, end: Int) -> Int:
    """Return the position after the object at `begin`, or -1.

    Branches distinguish the kinds of objects, the common kinds first. Rows are similar to each other, so the processor
    predicts the branches, and need not wait for the length of one object to begin with the next.
    """
    p, left = begin, 1
    while left > 0:
        if left > end - p:  # each object has a byte at least, so no length can mislead the walk
            return -1
        head = byte_at(data, p)
        left -= 1
        if head < 0x80:
            p += 1
        elif 0xA0 <= head < 0xC0:
            p += 1 + (head & 31)
        elif head in (DOUBLE, UINT64):
            p += 9
        elif head == UINT32:
            p += 5
        elif 0x90 <= head < 0xA0:
            left += head & 15
            p += 1
        elif head < 0x90:
            left += 2 * (head & 15)
            p += 1
        else:
            size = _size_by_first_byte(head)
            if size > 0:
                p += size
            else:
                p, more = _skip_length_field(data, p, end, head)
                if p < 0:
                    return -1
                left += more
    return p if p <= end else -1


@kernel
def load_uint(data: Int, p: Int, end: Int) -> tuple[Int, Int]:
    """Return (number, position after it) of the unsigned number at `p`; the position is -1 if there is none.

    A 64-bit number is returned as the int64 of the same bits: from 2^63 on it is negative.
    """
    if p >= end:
        return 0, -1
    head = byte_at(data, p)
    if head < 0x80:
        return head, p + 1
    if head < UINT8 or head > UINT64:
        return 0, -1
    size = 1 << (head - UINT8)
    if p + 1 + size > end:
        return 0, -1
    return big_endian(data, p + 1, size), p + 1 + size


@kernel
def load_map_size(data: Int, p: Int, end: Int) -> tuple[Int, Int]:
    """Return (number of pairs, position of the first key) of the map at `p`; the position is -1 if there is none."""
    head = byte_at(data, p) if p < end else NEVER_USED
    if head & 0xF0 == 0x80:
        return head & 0x0F, p + 1
    size = 2 << (head & 1)
    if head < MAP16 or head > MAP32 or p + 1 + size > end:
        return 0, -1
    return big_endian(data, p + 1, size), p + 1 + size


@kernel
def is_array(data: Int, p: Int, end: Int) -> bool:
    """Return whether an array begins at `p`."""
    head = byte_at(data, p) if p < end else NEVER_USED
    return bool(head & 240 == 144 or head in (ARRAY16, ARRAY32))
