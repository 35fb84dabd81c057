"""Writes a value as bytes that compare as Tarantool's `scalar` index compares values.

The first byte is the value's class, in the order of `mp_class` (`src/box/tuple_compare.cc`); then follows:

| class | bytes |
|---|---|
| without an order | none |
| boolean | 0 or 1 |
| number | see below |
| string, varbinary | each byte, where 00 becomes 01 01 and 01 becomes 01 02; then 00 |
| uuid | its 16 bytes |
| datetime | seconds since 1970 UTC and nanoseconds, 12 bytes |

A number begins with the largest double that is not above its absolute value (8 bytes). A byte 0 follows if this double
equals the absolute value; else a byte 1, and the absolute value as a power of ten and 38 digits (20 bytes). All bytes
are complemented if the number is negative; NaN is zeros. So an integer, a double and a decimal of one value have the
same bytes, and different numbers differ. All integers in these bytes are big-endian, and the sign bit of signed ones is
flipped. No value's bytes are a prefix of another's.

The server compares a decimal with a double by the double's first 15 digits (`decimal_from_double`), which is not a
consistent order (many doubles equal one decimal); here every number has its exact value: integers and decimals are
truncated to the largest double that is not above them, while `udfs.kernels.doubles` rounds to the nearest one. Values
without an order (nil, array, map, interval, other extensions) and damaged values sort below all others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import inner
from udfs.kernels.decimals import (
    POWERS_OF_TEN,
    U64,
    count_digits,
    integer_to_decimal,
    read_decimal,
    to_int128,
)
from udfs.kernels.memory import copy, load8, store8, store64, store_big
from udfs.kernels.values import (
    BINARY,
    BOOLEAN,
    DATETIME,
    DECIMAL,
    DOUBLE,
    FLOAT,
    INTEGER,
    STRING,
    UNSIGNED,
    UNSIGNED_BIG,
    UUID,
    Int,
    read_datetime,
)

LARGEST_DOUBLE_BITS = 0x7FEF_FFFF_FFFF_FFFF
"""The bits of the largest finite double."""

_POWER_ABOVE_DOUBLES, _POWER_BELOW_DOUBLES = 309, -323
"""A number with its first digit at 10^309 or higher is above all doubles; one under 10^-324 is below all."""

_LIMB_COUNT = 40
"""Number of 32-bit limbs of an exact number, the least significant first."""

_LIMB_MASK = np.uint64(0xFFFFFFFF)
_LIMB_BITS = np.uint64(32)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_MANTISSA_LIMIT = np.uint64(1 << 53)
_FRACTION_MASK = (1 << 52) - 1
_DOUBLE_POWERS_OF_TEN = np.array([10.0**k for k in range(309)])
_EXACT_POWER_MAX = 22
"""10^22 is the largest power of ten that is exactly a double."""

_SPLIT_FACTOR = 134217729.0
"""2^27 + 1 splits a double in halves whose products are exact (Dekker)."""


@inner
def truncate_integer(value: U64) -> tuple[Int, bool]:
    """Return the bits of the largest double that is not above an integer, and whether the two are equal."""
    cut = _ZERO
    while value >> cut >= _MANTISSA_LIMIT:
        cut += _ONE
    kept = value >> cut << cut
    return np.float64(kept).view(np.int64), bool(kept == value)


@inner
def _product_error(left: float, right: float, product: float) -> float:
    """Return how much `left * right` exceeds `product`, exactly; `product` is `left * right` rounded to a double."""
    upper = left * _SPLIT_FACTOR
    upper = upper - (upper - left)
    lower = left - upper
    head = right * _SPLIT_FACTOR
    head = head - (head - right)
    tail = right - head
    return ((upper * head - product) + upper * tail + lower * head) + lower * tail


@inner
def _truncate_short(low: U64, power: int) -> tuple[Int, bool]:
    """Truncate low * 10^power to a double; return its bits, and whether it is exact.

    `low` is below 2^53 and |power| at most 22, so both factors are doubles.
    """
    whole = np.float64(low)
    ten = _DOUBLE_POWERS_OF_TEN[-power if power < 0 else power]
    if power < 0:
        size = whole / ten
        product = size * ten
        beyond = (product - whole) + _product_error(size, ten, product)
    else:
        size = whole * ten
        beyond = -_product_error(whole, ten, size)
    bits = np.float64(size).view(np.int64)
    return (bits - 1 if beyond > 0 else bits), bool(beyond == 0)


@inner
def _multiply_limbs(limbs: Any, factor: U64) -> None:
    """Multiply a number in 32-bit limbs by a factor below 2^32."""
    carry = _ZERO
    for k in range(_LIMB_COUNT):
        carry += limbs[k] * factor
        limbs[k] = carry & _LIMB_MASK
        carry = carry >> _LIMB_BITS


@inner
def _scale_limbs(limbs: Any, tens: int, twos: int) -> None:
    """Multiply a number in limbs by 10^tens * 2^twos."""
    while tens > 0:
        _multiply_limbs(limbs, POWERS_OF_TEN[min(tens, 9)])
        tens -= 9
    while twos > 0:
        _multiply_limbs(limbs, _ONE << np.uint64(min(twos, 31)))
        twos -= 31


@inner
def _compare_to_double(high: U64, low: U64, power: int, bits: int) -> int:
    """Return the sign of the decimal (high * 10^19 + low) * 10^power minus the double with the given bits.

    Both sides fit in the limbs' 1280 bits: the largest is a mantissa times 10^361, 1253 bits.
    """
    left, right = np.zeros(_LIMB_COUNT, np.uint64), np.zeros(_LIMB_COUNT, np.uint64)
    upper, lower = to_int128(high, low, 0, False)
    left[0], left[1], left[2], left[3] = (
        lower & _LIMB_MASK,
        lower >> _LIMB_BITS,
        upper & _LIMB_MASK,
        upper >> _LIMB_BITS,
    )
    exponent = bits >> 52
    mantissa = np.uint64(bits & _FRACTION_MASK | (1 << 52 if exponent > 0 else 0))
    right[0], right[1] = mantissa & _LIMB_MASK, mantissa >> _LIMB_BITS
    exponent = max(exponent, 1) - 1075
    _scale_limbs(left, max(power, 0), max(-exponent, 0))
    _scale_limbs(right, max(-power, 0), max(exponent, 0))
    for k in range(_LIMB_COUNT - 1, -1, -1):
        if left[k] != right[k]:
            return 1 if left[k] > right[k] else -1
    return 0


@inner
def _estimate_double(high: U64, low: U64, power: int) -> Int:
    """Return the bits of a finite double within a few units in the last place of a decimal."""
    size = np.float64(high) * 1e19 + np.float64(low)
    if power < -308:
        size = size / 1e308 / _DOUBLE_POWERS_OF_TEN[-power - 308]
    else:
        size = size / _DOUBLE_POWERS_OF_TEN[-power] if power < 0 else size * _DOUBLE_POWERS_OF_TEN[power]
    bits = np.float64(size).view(np.int64)
    return bits if bits < LARGEST_DOUBLE_BITS else np.int64(LARGEST_DOUBLE_BITS)


@inner
def truncate_decimal(high: U64, low: U64, power: int) -> tuple[Int, bool]:
    """Return the bits of the largest double up to (high * 10^19 + low) * 10^power, and whether they are equal."""
    if high == _ZERO and low < _MANTISSA_LIMIT and -_EXACT_POWER_MAX <= power <= _EXACT_POWER_MAX:
        return _truncate_short(low, power)
    if high == _ZERO and low == _ZERO:
        return 0, True
    first = count_digits(high, low) + power
    if first > _POWER_ABOVE_DOUBLES:
        return LARGEST_DOUBLE_BITS, False
    if first < _POWER_BELOW_DOUBLES:
        return 0, False
    bits = _estimate_double(high, low, power)
    side = _compare_to_double(high, low, power, bits)
    while side < 0:
        bits -= 1
        side = _compare_to_double(high, low, power, bits)
    while side > 0 and bits < LARGEST_DOUBLE_BITS:
        further = _compare_to_double(high, low, power, bits + 1)
        if further < 0:
            break
        bits += 1
        side = further
    return bits, bool(side == 0)


FIXED_MAX_BYTES = 30
"""Greatest number of bytes written for a value; for a string or varbinary it is twice the size, and 2 more."""

_LOWEST, _BOOLEANS, _NUMBERS, _STRINGS, _BINARIES, _UUIDS, _DATETIMES = range(7)
_SIGN_BIT = -(1 << 63)
_MAGNITUDE_MASK = (1 << 63) - 1
_POWER_BIAS = 1 << 31
_UUID_BYTES = 16


@inner
def _put_digits(target: Int, number: Any, sign_mask: Int) -> Int:
    """Write a decimal that is not zero: the power of ten of its first digit, then its digits."""
    high, low, power = number[0], number[1], number[2]
    digits = count_digits(high, low)
    target = store_big(target, (power + digits + _POWER_BIAS) ^ sign_mask, 4)
    if high == np.uint64(0):
        high = low * POWERS_OF_TEN[19 - digits]
        low = np.uint64(0)
    else:
        moved, kept = POWERS_OF_TEN[38 - digits], POWERS_OF_TEN[digits - 19]
        high = high * moved + low // kept
        low = low % kept * moved
    target = store_big(target, np.int64(high) ^ sign_mask, 8)
    return store_big(target, np.int64(low) ^ sign_mask, 8)


@inner
def _put_number(target: Int, bits: Int, exact: bool, negative: bool, number: Any) -> Int:
    """Write the sort key of a number at `target`, and return the address after it.

    First comes the double that results if the number is rounded toward zero: `bits` has its bits. If the number is not
    `exact`, so the double is not equal to it, the decimal digits of `number` follow.
    """
    sign_mask = -1 if negative else 0
    target = store_big(target, bits ^ _SIGN_BIT ^ sign_mask, 8)
    store8(target, sign_mask if exact else 1 ^ sign_mask)
    target += 1
    if not exact:
        target = _put_digits(target, number, sign_mask)
    return target


@inner
def _put_integer(target: Int, kind: Int, argument: Int) -> Int:
    number = integer_to_decimal(kind, argument)
    negative = number[3]
    bits, exact = truncate_integer(np.uint64(-argument if negative else argument))
    return _put_number(target, bits, exact, negative, number)


@inner
def _put_double(target: Int, bits: Int) -> Int:
    value = np.int64(bits).view(np.float64)
    if np.isnan(value):
        store64(target, 0)
        store8(target + 8, 0)
        return target + 9
    size = bits & _MAGNITUDE_MASK
    number = (np.uint64(0), np.uint64(0), np.int64(0), False, True)
    return _put_number(target, size, True, bool(value < 0), number)


@inner
def _put_text(target: Int, pos: Int, size: Int) -> Int:
    for k in range(size):
        byte = load8(pos + k)
        if byte <= 1:
            store8(target, 1)
            target += 1
            byte += 1
        store8(target, byte)
        target += 1
    store8(target, 0)
    return target + 1


@inner
def _put_decimal(target: Int, number: Any) -> Int:
    high: U64 = number[0]
    low: U64 = number[1]
    bits, exact = truncate_decimal(high, low, number[2])
    return _put_number(target, bits, exact, bool(number[3] and (high | low) != np.uint64(0)), number)


@inner
def _put_extension(target: Int, kind: Int, pos: Int, size: Int) -> Int:
    """Write the class and the content of an extension; return -1 if it has no order."""
    end: Int = -1
    if kind == DECIMAL:
        number = read_decimal(pos, size)
        store8(target, _NUMBERS)
        if number[4]:
            end = _put_decimal(target + 1, number)
    elif kind == UUID and size == _UUID_BYTES:
        store8(target, _UUIDS)
        copy(target + 1, pos, _UUID_BYTES)
        end = target + 1 + _UUID_BYTES
    elif kind == DATETIME:
        seconds, nanoseconds, valid = read_datetime(pos, size)
        store8(target, _DATETIMES)
        if valid:
            end = store_big(target + 1, seconds ^ _SIGN_BIT, 8)
            end = store_big(end, nanoseconds, 4)
    return end


@inner
def put_sort_key(target: Int, kind: Int, argument: Int, pos: Int) -> Int:
    """Write a value as comparable bytes; return where they end.

    Args:
        target: Address with enough room (`FIXED_MAX_BYTES`).
        kind, argument, pos: The head of the value (`udfs.kernels.values`); ABSENT for no value.
    """
    end: Int = -1
    if kind in (UNSIGNED, UNSIGNED_BIG, INTEGER):
        store8(target, _NUMBERS)
        end = _put_integer(target + 1, kind, argument)
    elif kind in (DOUBLE, FLOAT):
        store8(target, _NUMBERS)
        end = _put_double(target + 1, argument)
    elif kind in (STRING, BINARY):
        store8(target, _STRINGS if kind == STRING else _BINARIES)
        end = _put_text(target + 1, pos, argument)
    elif kind == BOOLEAN:
        store8(target, _BOOLEANS)
        store8(target + 1, argument)
        end = target + 2
    else:
        end = _put_extension(target, kind, pos, argument)
    if end < 0:
        store8(target, _LOWEST)
        end = target + 1
    return end
