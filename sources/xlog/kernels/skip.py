"""MessagePack without values: numba kernels that say where an object ends, and what a number is.

They read nothing at or behind `end`, whatever the bytes are; a position of -1 means that what stands there is
not whole or not MessagePack. Nesting costs no stack: objects still to come are counted.

Source: the MessagePack specification; `mp_check` in Tarantool's `src/lib/msgpuck/msgpuck.h`.
Not here: which keys and values an xrow has (`kernel`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from sources.xlog.arrays import Bytes, Int

BYTES_FOLLOW, OBJECTS_FOLLOW, PAIRS_FOLLOW, INVALID = 1, 2, 3, 4


def _steps() -> npt.NDArray[np.int64]:
    """Return for each first byte: bytes to skip | objects inside << 8 | size of a length << 16 | kind << 24.

    Kind 0 is complete with that; of the others a length of the given size follows the first byte.
    """
    steps = np.ones(256, np.int64)
    for byte in range(32):
        if byte < 16:
            steps[0x80 | byte] |= byte << 9
            steps[0x90 | byte] |= byte << 8
        steps[0xA0 | byte] += byte
    for k in range(4):
        steps[[0xCC + k, 0xD0 + k]] += 1 << k  # uint, int
    steps[[0xCA, 0xCB]] += [4, 8]  # float, double
    steps[0xD4:0xD9] += 1 + (1 << np.arange(5))  # fixext: type, data
    for k in range(3):
        variable = 1 << k << 16 | BYTES_FOLLOW << 24
        steps[[0xC4 + k, 0xD9 + k]] += (1 << k) + variable  # bin, str
        steps[0xC7 + k] += 1 + (1 << k) + variable  # ext: length, type
    for k in (1, 2):
        steps[0xDB + k] += (1 << k) | 1 << k << 16 | OBJECTS_FOLLOW << 24  # array
        steps[0xDD + k] += (1 << k) | 1 << k << 16 | PAIRS_FOLLOW << 24  # map
    steps[0xC1] |= INVALID << 24
    return steps


_STEPS = _steps()


@njit(cache=True, nogil=True)
def big_endian(buffer: Bytes, begin: Int, size: Int) -> Int:
    """Return the `size` bytes at `begin` as an unsigned number in the bits of an int64."""
    value = np.int64(0)
    for p in range(begin, begin + size):
        value = (value << 8) | np.int64(buffer[p])
    return value


@njit(cache=True, nogil=True)
def skip(buffer: Bytes, begin: Int, end: Int) -> Int:
    """Return the position behind the object at `begin`, or -1."""
    p, left = begin, 1
    while left > 0:
        if left > end - p:  # each object takes a byte at least: no length can send the walk astray
            return -1
        step = _STEPS[buffer[p]]
        kind = step >> 24
        left += ((step >> 8) & 0xFF) - 1
        if kind != 0:
            size = (step >> 16) & 0xFF
            if kind == INVALID or p + 1 + size > end:
                return -1
            length = big_endian(buffer, p + 1, size)
            if kind == BYTES_FOLLOW:
                p += length
            else:
                left += length << (kind - OBJECTS_FOLLOW)
        p += step & 0xFF
    return p if p <= end else -1


@njit(cache=True, nogil=True)
def load_uint(buffer: Bytes, p: Int, end: Int) -> tuple[Int, Int]:
    """Return (number, position behind it) of the mp_uint at `p`; the position is -1 where there is none.

    A number of 64 bits comes as the int64 of the same bits: one above 2^63 reads negative.
    """
    if p >= end:
        return 0, -1
    head = np.int64(buffer[p])
    if head < 0x80:
        return head, p + 1
    size = 1 << (head & 3)
    if head & 0xFC != 0xCC or p + 1 + size > end:
        return 0, -1
    return big_endian(buffer, p + 1, size), p + 1 + size


@njit(cache=True, nogil=True)
def load_map(buffer: Bytes, p: Int, end: Int) -> tuple[Int, Int]:
    """Return (pairs, position of the first key) of the map at `p`; the position is -1 where there is none."""
    head = np.int64(buffer[p]) if p < end else 0xC1
    if head & 0xF0 == 0x80:
        return head & 0x0F, p + 1
    size = 2 << (head & 1)
    if head & 0xFE != 0xDE or p + 1 + size > end:
        return 0, -1
    return big_endian(buffer, p + 1, size), p + 1 + size


@njit(cache=True, nogil=True)
def is_array(buffer: Bytes, p: Int, end: Int) -> bool:
    """Return whether an array begins at `p`."""
    head = buffer[p] if p < end else np.uint8(0xC1)
    return bool(head & 0xF0 == 0x90 or head & 0xFE == 0xDC)
