"""Reads Tarantool's decimals digit by digit, for columns: rounded to a scale, and as text.

`udfs.kernels.decimals` has the format, and decimals as numbers of up to 38 digits; here a decimal may have as many as a
server since 3.5 (`DECIMAL_MAX_DIGITS`). Digits are counted from the last one, which has the number 0.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from schemas.compiled import inner
from udfs.kernels.decimals import TEN, TEN19, U64, to_int128
from udfs.kernels.memory import load8
from udfs.kernels.values import ABSENT, INTEGER, UNSIGNED, Int, head

SERVER_DIGITS_MAX = 76
"""Greatest number of digits of a decimal since 3.5; before it was 38."""

COLUMN_DIGITS_MAX = 38
"""Greatest number of digits of a decimal in Spark and in a variant."""

PackedDecimal: TypeAlias = tuple[Int, Int, Int, bool, bool]
"""(end, digits, exponent, is negative, is valid): where the packed digits end, their number without leading zeros (0
for zero), and the power of ten of the last one."""

ScaledDecimal: TypeAlias = tuple[U64, U64, bool, bool]
"""(upper 64 bits, lower 64 bits, fits, is exact): a decimal as Arrow stores it, rounded half-even to a scale."""

_SCALE_MAX = 1 << 30
"""Greatest absolute scale. Compare with -_SCALE_MAX, too: `abs` of the least int64 overflows and is negative."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@inner
def digit_of(end: Int, number: Int) -> Int:
    """Return a digit of the packed digits that end at `end`; the last half-byte is the sign."""
    byte = load8(end - 1 - ((number + 1) >> 1))
    return byte & 0x0F if number & 1 else byte >> 4


@inner
def read_packed(pos: Int, size: Int) -> PackedDecimal:
    """Read the content of an MP_DECIMAL of up to `SERVER_DIGITS_MAX` digits, leading zeros excluded."""
    end = pos + size
    kind, scale, pos = head(pos, end) if size > 1 else (ABSENT, np.int64(0), pos)
    if kind not in (UNSIGNED, INTEGER) or pos >= end or scale < -_SCALE_MAX or scale > _SCALE_MAX:
        return end, np.int64(0), np.int64(0), False, False
    digits = 2 * (end - pos) - 1
    while digits > 0 and digit_of(end, digits - 1) == 0:
        digits -= 1
    sign = load8(end - 1) & 0x0F
    valid = sign > 9 and digits <= SERVER_DIGITS_MAX
    for number in range(min(digits, SERVER_DIGITS_MAX)):
        valid &= digit_of(end, number) <= 9
    return end, np.int64(digits), -scale, sign in (0x0B, 0x0D), valid


@inner
def round_packed(packed: PackedDecimal, scale: Int) -> ScaledDecimal:
    """Round a valid decimal half-even to `scale` digits after the point; it fits if it has up to 38 digits then."""
    end, digits, exponent, negative, _ = packed
    dropped = -(exponent + scale)
    if digits == 0:
        return _ZERO, _ZERO, True, True
    if digits - dropped > COLUMN_DIGITS_MAX:
        return _ZERO, _ZERO, False, False
    high, low = _ZERO, _ZERO
    for number in range(digits - 1, max(dropped, 0) - 1, -1):
        if number - max(dropped, 0) >= 19:
            high = high * TEN + np.uint64(digit_of(end, number))
        else:
            low = low * TEN + np.uint64(digit_of(end, number))
    first, rest = np.int64(0), np.int64(0)
    if 0 < dropped <= digits:
        first = digit_of(end, dropped - 1)
    for number in range(min(dropped - 1, digits)):
        rest |= digit_of(end, number)
    if first > 5 or (first == 5 and (rest != 0 or low & _ONE == _ONE)):
        low = low + _ONE
        if low == TEN19:
            high, low = high + _ONE, _ZERO
        if high == TEN19:
            return _ZERO, _ZERO, False, False
    upper, lower = to_int128(high, low, max(-dropped, 0), negative)
    return upper, lower, True, first | rest == 0
