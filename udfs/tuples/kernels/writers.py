"""Formats uuids, decimals and intervals as text, as Tarantool does.

A writer puts its text at an address and returns where it ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import entry, inner
from udfs.kernels.decimals import POWERS_OF_TEN, TEN, U64, count_digits
from udfs.kernels.memory import address, load8, store8, store64
from udfs.kernels.packed_decimals import PackedDecimal, digit_of, read_packed
from udfs.kernels.values import INTEGER, UNSIGNED, Int, head

UUID_TEXT_BYTES = 36
"""Length of a uuid."""

DECIMAL_TEXT_MAX = 96
"""Greatest length: a sign, 76 digits, a point, leading zeros or `E+` and an exponent of 10 digits."""

INTERVAL_TEXT_MAX = 8 * 34
_INTERVAL_UNITS = np.frombuffer(
    b" years\0\0\0\0\0\0 months\0\0\0\0\0 weeks\0\0\0\0\0\0 days\0\0\0\0\0\0\0"
    b" hours\0\0\0\0\0\0 minutes\0\0\0\0 seconds\0\0\0\0 nanoseconds",
    dtype=np.uint8,
).reshape(8, 12)
_UNIT_SIZES = np.array([6, 7, 6, 5, 6, 8, 8, 12])
_HEX_DIGITS = np.array([int.from_bytes(b"%02x" % byte, "little") for byte in range(256)])
_SECONDS_INDEX = 6
_ADJUSTMENT_INDEX = 8
"""Index of the adjustment among the amounts of an interval (`read_interval`)."""


@inner
def write_hex(target: Int, pos: Int, size: Int) -> Int:
    """Write up to four bytes as lower-case hexadecimal; overwrite eight bytes; return where the text ends."""
    text = np.int64(0)
    for k in range(size):
        text |= _HEX_DIGITS[load8(pos + k)] << (16 * k)
    store64(target, text)
    return target + 2 * size


@inner
def write_uuid(target: Int, pos: Int) -> Int:
    """Write 16 bytes as 8-4-4-4-12 (`src/lib/core/mp_uuid.c`: MP_EXT 2, fields big-endian); overwrite 40 bytes."""
    target = write_hex(target, pos, 4)
    for first in (4, 6, 8):
        store8(target, 45)
        target = write_hex(target + 1, pos + first, 2)
    store8(target, 45)
    target = write_hex(target + 1, pos + 10, 4)
    return write_hex(target, pos + 14, 2)


@inner
def write_digits(target: Int, value: U64, digits: Int) -> Int:
    """Write the last `digits` decimal digits of a number."""
    for k in range(digits - 1, -1, -1):
        store8(target, np.int64(value // POWERS_OF_TEN[k] % TEN) + 48)
        target += 1
    return target


@inner
def write_integer(target: Int, value: Int) -> Int:
    """Write a signed integer."""
    if value < 0:
        store8(target, 45)
        target += 1
    size = np.uint64(-value) if value < 0 else np.uint64(value)
    return write_digits(target, size, max(count_digits(np.uint64(0), size), 1))


@inner
def _write_packed_digits(target: Int, end: Int, first: Int, last: Int) -> Int:
    """Write packed digits from number `first - 1` down to `last`."""
    for number in range(first - 1, last - 1, -1):
        store8(target, digit_of(end, number) + 48)
        target += 1
    return target


@inner
def write_decimal(target: Int, packed: PackedDecimal) -> Int:
    """Write a valid decimal as `decimal_str` does (decNumber's to-scientific-string): 12.50, 1E+3, 1.5E-8."""
    end, digits, exponent, negative, _ = packed
    digits = max(digits, 1)
    adjusted = exponent + digits - 1
    if negative:
        store8(target, 45)
        target += 1
    if exponent <= 0 and adjusted >= -6:
        if adjusted < 0:
            store8(target, 48)
            target += 1
        else:
            target = _write_packed_digits(target, end, digits, -exponent)
        if exponent < 0:
            store8(target, 46)
            target += 1
            for _ in range(adjusted + 1, 0):
                store8(target, 48)
                target += 1
            target = _write_packed_digits(target, end, min(digits, -exponent), 0)
        return target
    target = _write_packed_digits(target, end, digits, digits - 1)
    if digits > 1:
        store8(target, 46)
        target = _write_packed_digits(target + 1, end, digits - 1, 0)
    store8(target, 69)
    store8(target + 1, 43 if adjusted >= 0 else 45)
    return write_integer(target + 2, -adjusted if adjusted < 0 else adjusted)


@inner
def read_interval(pos: Int, size: Int, amounts: Any) -> bool:
    """Read the content of an MP_INTERVAL into nine amounts, years to nanoseconds and the adjustment.

    Format (`interval_unpack` in `src/lib/core/mp_interval.c`): a count, then that many pairs of a field number and
    an integer; a missing field is 0.
    """
    amounts[:] = 0
    end = pos + size
    if size < 1:
        return False
    count = load8(pos)
    pos += 1
    for _ in range(count):
        if end - pos < 2:
            return False
        field = load8(pos)
        kind, amount, pos = head(pos + 1, end)
        if field >= len(amounts) or kind not in (UNSIGNED, INTEGER):
            return False
        amounts[field] = amount
    return bool(pos == end)


@inner
def write_interval(target: Int, amounts: Any) -> Int:
    """Write an interval as `interval_to_string` in `src/lib/core/datetime.c` does: `+1 years, -3 days`."""
    start = target
    for unit in range(_ADJUSTMENT_INDEX):
        if amounts[unit] == 0 and not (unit == _SECONDS_INDEX and target == start):
            continue
        if target > start:
            store8(target, 44)
            store8(target + 1, 32)
            target += 2
        elif amounts[unit] >= 0:
            store8(target, 43)
            target += 1
        target = write_integer(target, amounts[unit])
        for k in range(_UNIT_SIZES[unit]):
            store8(target + k, np.int64(_INTERVAL_UNITS[unit, k]))
        target += _UNIT_SIZES[unit]
    return target


@entry
def write_decimal_texts(data: Any, slices: Any, out: Any, offsets: Any) -> None:
    """Write the texts of decimals.

    Args:
        slices: `position << 32 | size` of the content of each decimal in `data`.
        out: `DECIMAL_TEXT_MAX` bytes per decimal.
        offsets: Filled with the ends of the texts (int32[decimals + 1], zeroed). A decimal outside of `data`, invalid
            or without room gives an empty text.
    """
    base, start = address(data), address(out)
    target, limit, total = start, start + len(out), np.int64(len(data))
    for row in range(len(slices)):
        position, size = slices[row] >> 32, slices[row] & 0xFFFFFFFF
        if position >= 0 and position + size <= total and target + DECIMAL_TEXT_MAX <= limit:
            packed = read_packed(base + position, size)
            if packed[4]:
                target = write_decimal(target, packed)
        offsets[row + 1] = target - start
