"""Reads Tarantool's decimals as 128-bit numbers.

Format (`src/lib/core/mp_decimal.c`, `decimal_pack` in `decimal.c`): MP_EXT of type 1; the content is the scale as
a MessagePack integer, then packed BCD: two digits per byte, the last half-byte the sign (0x0b and 0x0d are minus).
value = coefficient * 10^-scale. A coefficient is stored as `high * 10^19 + low`, both uint64, so it has up to 38
digits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from schemas.compiled import inner
from udfs.kernels.memory import load8
from udfs.kernels.values import ABSENT, INTEGER, UNSIGNED, Int, head

U64: TypeAlias = Any
"""A 64-bit unsigned integer."""

Decimal: TypeAlias = tuple[U64, U64, Int, bool, bool]
"""(high, low, exponent, is negative, is valid): the absolute value is (high * 10^19 + low) * 10^exponent."""

TEN = np.uint64(10)
TEN18 = np.uint64(10**18)
TEN19 = np.uint64(10**19)
POWERS_OF_TEN = np.array([10**k for k in range(20)], dtype=np.uint64)
"""The powers of ten that are uint64."""

_LOW_HALF_MASK = np.uint64(0xFFFFFFFF)
_HALF_WORD_BITS = np.uint64(32)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_SCALE_MAX = 1 << 30
"""Greatest absolute scale. Compare with -_SCALE_MAX, too: `abs` of the least int64 overflows and is negative."""


@inner
def read_decimal(pos: Int, size: Int) -> Decimal:
    """Read the content of an MP_DECIMAL; more than 38 digits, leading zeros excluded, are invalid."""
    high, low = _ZERO, _ZERO
    end = pos + size
    kind, scale, pos = head(pos, end) if size > 1 else (ABSENT, np.int64(0), pos)
    if kind not in (UNSIGNED, INTEGER) or pos >= end or scale < -_SCALE_MAX or scale > _SCALE_MAX:
        return high, low, 0, False, False
    while pos < end - 1 and load8(pos) == 0:
        pos += 1
    left = 2 * (end - pos) - 1
    if left > 0 and load8(pos) >> 4 == 0:
        left -= 1
    if left > 38:
        return high, low, 0, False, False
    valid = True
    while left > 0:
        byte = load8(end - 1 - (left >> 1))
        digit = byte >> 4 if left & 1 else byte & 0x0F
        valid &= digit <= 9
        if left > 19:
            high = high * TEN + np.uint64(digit)
        else:
            low = low * TEN + np.uint64(digit)
        left -= 1
    sign = load8(end - 1) & 0x0F
    return high, low, -scale, sign in (0x0B, 0x0D), valid and sign > 9


@inner
def integer_to_decimal(kind: Int, argument: Int) -> Decimal:
    """Convert an integer, given by its class and argument (`udfs.kernels.values`), to a `Decimal`."""
    negative = kind == INTEGER and argument < 0
    low = np.uint64(-argument) if negative else np.uint64(argument)
    high = _ZERO
    if low >= TEN19:
        high, low = _ONE, low - TEN19
    return high, low, 0, negative, True


@inner
def strip_zeros(high: U64, low: U64, exponent: Int) -> tuple[U64, U64, Int]:
    """Remove trailing zeros of a coefficient; return (high, low, exponent). Zero gets exponent 0."""
    if high == _ZERO and low == _ZERO:
        return high, low, 0
    while low % TEN == _ZERO:
        low = high % TEN * TEN18 + low // TEN
        high = high // TEN
        exponent += 1
    return high, low, exponent


@inner
def count_digits(high: U64, low: U64) -> Int:
    """Return the number of digits of a coefficient; 0 for zero."""
    value, count = (high, 19) if high > _ZERO else (low, 0)
    for power in range(19, -1, -1):
        if value >= POWERS_OF_TEN[power]:
            return count + power + 1
    return count


@inner
def multiply_int128(high: U64, low: U64, factor: U64) -> tuple[U64, U64]:
    """Return the low 128 bits of (high * 2^64 + low) * factor, as (upper, lower)."""
    a, b = low >> _HALF_WORD_BITS, low & _LOW_HALF_MASK
    c, d = factor >> _HALF_WORD_BITS, factor & _LOW_HALF_MASK
    middle = a * d + (b * d >> _HALF_WORD_BITS)
    cross = b * c + (middle & _LOW_HALF_MASK)
    upper = a * c + (middle >> _HALF_WORD_BITS) + (cross >> _HALF_WORD_BITS)
    return upper + high * factor, low * factor


@inner
def to_int128(high: U64, low: U64, power: Int, negative: bool) -> tuple[U64, U64]:
    """Convert the coefficient `high * 10^19 + low` times 10^power, of at most 38 digits, to a signed int128.

    The result is (upper 64 bits, lower 64 bits).
    """
    upper, lower = multiply_int128(_ZERO, high, TEN19)
    lower = lower + low
    if lower < low:
        upper = upper + _ONE
    while power > 0:
        step = min(power, 19)
        upper, lower = multiply_int128(upper, lower, POWERS_OF_TEN[step])
        power -= step
    if negative:
        lower = ~lower + _ONE
        upper = ~upper + (_ONE if lower == _ZERO else _ZERO)
    return upper, lower
