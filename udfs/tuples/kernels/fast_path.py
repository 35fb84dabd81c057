"""The fast path: writes one field of a tuple to its column if it has the most frequent encoding of its type.

Each function returns where the field ends, or 0 for anything else: another class, a rarer encoding, an invalid or
inexact value. Then `udfs.tuples.kernels.field_writers` handles the field; so this module affects only the speed. A
value stored for a field that turns out to be cut short is overwritten. The position of the next field depends on as
few loads as possible, because each load waits for the one before.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import inlined
from udfs.kernels.decimals import POWERS, U64, multiply
from udfs.kernels.memory import CHUNK, copy_chunk, load8, load16, load32, load64, load64_big, store64, word
from udfs.kernels.scalars import MAX_SECONDS, MIN_SECONDS
from udfs.kernels.texts import is_utf8
from udfs.kernels.values import INTEGER, Int
from udfs.tuples.kernels.columns import END, LIMIT, SCALE, START, close_text, set_bit
from udfs.tuples.kernels.writers import UUID_TEXT, write_uuid

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@inlined
def quick_integer(pos: Int, field: Int, column: Int, row: Int, width: Int) -> Int:
    """Put an integer of 64 bits into a column of `width` words per value."""
    byte = load8(pos)
    value, after = byte, pos + 1
    if byte >= 0x80:
        if 0xCC <= byte < 0xD4:
            size = 1 << (byte & 3)
            after += size
            value = load64_big(pos + 1) >> (64 - 8 * size)
            if byte < 0xD0:
                if size == 8 and value < 0:
                    return 0
                value &= (1 << (8 * size & 63)) - 1 if size < 8 else -1
        elif byte >= 0xE0:
            value = byte - 256
        else:
            return 0
        if byte >= 0xD0 and not field >> INTEGER & 1:
            return 0
    if width == 1:
        store64(word(column, START) + 8 * row, value)
    else:
        store64(word(column, START) + 16 * row, value)
        store64(word(column, START) + 16 * row + 8, value >> 63)
    return after


@inlined
def quick_double(pos: Int, column: Int, row: Int) -> Int:
    """Put a double of eight bytes."""
    if load8(pos) != 0xCB:
        return 0
    store64(word(column, START) + 8 * row, load64_big(pos + 1))
    return pos + 9


@inlined
def quick_boolean(pos: Int, column: Int, row: Int) -> Int:
    """Put a boolean; rows start as false."""
    byte = load8(pos)
    if byte & 0xFE != 0xC2:
        return 0
    if byte == 0xC3:
        set_bit(word(column, START), row)
    return pos + 1


@inlined
def _copy_checked(target: Int, pos: Int, size: Int) -> Int:
    """Copy bytes in chunks; return 0 if all are below 0x80."""
    high = np.int64(0)
    while size > CHUNK:
        high |= copy_chunk(target, pos)
        target += CHUNK
        pos += CHUNK
        size -= CHUNK
    return high | copy_chunk(target, pos) & ((1 << size) - 1)


@inlined
def quick_string(pos: Int, end: Int, column: Int, row: Int, is_text: bool, checked: bool) -> Int:
    """Put a string (if `is_text`) or varbinary of up to 255 bytes; if `checked`, it must be UTF-8."""
    byte = load8(pos)
    if is_text and byte & 0xE0 == 0xA0:
        size = byte & 0x1F
        pos += 1
    elif byte == (0xD9 if is_text else 0xC4):
        size = load8(pos + 1)
        pos += 2
    else:
        return 0
    if pos + size > end:
        return 0
    target = word(column, END)
    if target + size > word(column, LIMIT):
        return 0
    if _copy_checked(target, pos, size) != 0 and checked and not is_utf8(pos, size):
        return 0
    close_text(column, row, target + size)
    return pos + size


@inlined
def quick_uuid(pos: Int, end: Int, column: Int, row: Int) -> Int:
    """Put the text of a uuid."""
    target = word(column, END)
    if load16(pos) != 0x02D8 or pos + 18 > end or target + UUID_TEXT > word(column, LIMIT):
        return 0
    close_text(column, row, write_uuid(target, pos + 2))
    return pos + 18


@inlined
def quick_timestamp(pos: Int, column: Int, row: Int) -> Int:
    """Put a datetime of the years 1 to 9999 without a part of a microsecond."""
    form = load16(pos)
    nanoseconds, after = np.int64(0), pos + 10
    if form == 0x04D8:
        nanoseconds, after = load32(pos + 10), pos + 18
    elif form != 0x04D7:
        return 0
    seconds = load64(pos + 2)
    microseconds = nanoseconds // 1000
    if microseconds * 1000 != nanoseconds or nanoseconds >= 1000000000:
        return 0
    if seconds < MIN_SECONDS or seconds > MAX_SECONDS:
        return 0
    store64(word(column, START) + 8 * row, seconds * 1000000 + microseconds)
    return after


@inlined
def _packed_digits(digits: U64) -> U64:
    """Return the number of up to 15 packed digits of four bits."""
    pairs = (digits & np.uint64(0x0F0F0F0F0F0F0F0F)) + (
        digits >> np.uint64(4) & np.uint64(0x0F0F0F0F0F0F0F0F)
    ) * np.uint64(10)
    fours = (pairs & np.uint64(0x00FF00FF00FF00FF)) + (
        pairs >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    ) * np.uint64(100)
    eights = (fours & np.uint64(0x0000FFFF0000FFFF)) + (
        fours >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    ) * np.uint64(10000)
    return (eights & np.uint64(0xFFFFFFFF)) + (eights >> np.uint64(32)) * np.uint64(100000000)


@inlined
def quick_decimal(pos: Int, column: Int, row: Int) -> Int:
    """Put a decimal of up to 15 digits whose scale is 0 to 127, and 0 to 19 below the column's."""
    form = load16(pos)
    if 0x01D5 <= form <= 0x01D7:
        size, pos = 1 << (form - 0x01D4), pos + 2
    elif form & 0xFF == 0xC7 and load8(pos + 2) == 1:
        size, pos = form >> 8, pos + 3
    else:
        return 0
    power = word(column, SCALE) - load8(pos)
    if size < 2 or size > 9 or power < 0 or power > 19 or load8(pos) >= 0x80:
        return 0
    packed = np.uint64(load64_big(pos + 1)) >> np.uint64(8 * (9 - size))
    sign, digits = np.int64(packed & np.uint64(15)), packed >> np.uint64(4)
    sixes = np.uint64(0x0666666666666666)
    carries = (digits + sixes ^ digits ^ sixes) & np.uint64(0x1111111111111110)
    if sign <= 9 or carries != _ZERO:
        return 0
    upper, lower = multiply(_ZERO, _packed_digits(digits), POWERS[power])
    if sign in (0x0B, 0x0D):
        lower = ~lower + _ONE
        upper = ~upper + (_ONE if lower == _ZERO else _ZERO)
    store64(word(column, START) + 16 * row, np.int64(lower))
    store64(word(column, START) + 16 * row + 8, np.int64(upper))
    return pos + size
