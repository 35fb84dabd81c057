"""Converts integers and decimals to doubles, and decides whether the double equals the number that was converted.

A double equals an integer if both have the same value. A decimal of up to 15 significant digits equals its nearest
double, because Tarantool's comparison converts the double to a decimal of 15 digits (`decimal_from_double`, `DBL_DIG`):
the decimal 0.1 equals the double 0.1, although the values differ by 5.6e-18. A decimal of more digits equals its
nearest double only if both have the same value: 9007199254740993.5 does not, because no double has this value.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from schemas.compiled import inner
from udfs.kernels.decimals import U64, count_digits, multiply_int128, strip_zeros
from udfs.kernels.values import UNSIGNED_BIG, Int

Words: TypeAlias = tuple[U64, U64, U64]
"""A number of 192 bits: its high, middle and low word."""

DOUBLE_POWERS_OF_TEN = np.array([10.0**k for k in range(53)])
EXACT_POWER_MAX = 22
"""The largest k for which 10^k is exactly a double: up to it, m * 10^k and m / 10^k are rounded once for m < 2^53."""

DECIMAL_DIGITS_OF_DOUBLE = 15
"""Digits of the decimal to which Tarantool converts a double (`DBL_DIG`)."""

_WORD_MASK = (1 << 64) - 1
_POWERS_OF_FIVE = np.array([[5**k >> 64, 5**k & _WORD_MASK] for k in range(53)], dtype=np.uint64)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)


@inner
def integer_to_double(kind: Int, argument: Int) -> tuple[float, bool]:
    """Return the double nearest to an integer, and whether the two are equal.

    The integer is given by its class and argument (`udfs.kernels.values`).
    """
    if kind == UNSIGNED_BIG:
        value = np.float64(np.uint64(argument))
        return value, bool(value < 18446744073709551616.0 and np.uint64(value) == np.uint64(argument))
    value = np.float64(argument)
    return value, bool(value < 9223372036854775808.0 and np.int64(value) == argument)


@inner
def decimal_to_double(number: Any) -> tuple[float, bool, bool]:
    """Return the double nearest to a decimal, whether the two are equal, and whether both results are valid.

    They are valid for a decimal of up to 15 digits times 10^-22 to 10^22, and for an integer of 64 bits. For other
    decimals, which are rare, the caller computes both in Python.
    """
    high, low, power = strip_zeros(number[0], number[1], number[2])
    digits = count_digits(high, low)
    if digits <= DECIMAL_DIGITS_OF_DOUBLE and -EXACT_POWER_MAX <= power <= EXACT_POWER_MAX:
        size = low / DOUBLE_POWERS_OF_TEN[-power] if power < 0 else low * DOUBLE_POWERS_OF_TEN[power]
        return (-size if number[3] else size), True, True
    if power == 0 and high < _ONE:
        size, same = integer_to_double(UNSIGNED_BIG, np.int64(low))
        return (-size if number[3] else size), same, True
    return 0.0, False, False


@inner
def _times_power_of_five(factor: U64, power: Int) -> Words:
    """Return factor * 5^power, of at most 192 bits."""
    upper, low = multiply_int128(_ZERO, _POWERS_OF_FIVE[power, 1], factor)
    high, middle = multiply_int128(_ZERO, _POWERS_OF_FIVE[power, 0], factor)
    middle = middle + upper
    return high + (_ONE if middle < upper else _ZERO), middle, low


@inner
def _shift_left(words: Words, count: Int) -> Words:
    """Return 192 bits shifted left by `count`."""
    high, middle, low = words
    while count >= 64:
        high, middle, low = middle, low, _ZERO
        count -= 64
    if count > 0:
        up, down = np.uint64(count), np.uint64(64 - count)
        high, middle, low = high << up | middle >> down, middle << up | low >> down, low << up
    return high, middle, low


@inner
def _compare_products(number: U64, power: Int, mantissa: U64, exponent: Int) -> Int:
    """Return the sign of number * 10^power - mantissa * 2^exponent, for two products that are nearly equal."""
    left = _times_power_of_five(number, max(power, 0))
    right = _times_power_of_five(mantissa, max(-power, 0))
    if power > exponent:
        left = _shift_left(left, power - exponent)
    else:
        right = _shift_left(right, exponent - power)
    for k in range(3):
        if left[k] != right[k]:
            return 1 if left[k] > right[k] else -1
    return 0


@inner
def is_nearest_double(number: U64, power: Int, magnitude: float) -> bool:
    """Return whether `magnitude` is the double nearest to number * 10^power.

    `number` has up to 15 digits, |power| is up to 52, and `magnitude` is a positive normal double near the product.
    """
    if -EXACT_POWER_MAX <= power <= EXACT_POWER_MAX:
        return bool(
            (number / DOUBLE_POWERS_OF_TEN[-power] if power < 0 else number * DOUBLE_POWERS_OF_TEN[power])
            == magnitude
        )
    bits = np.float64(magnitude).view(np.int64)
    exponent = (bits >> 52) - 1075
    mantissa = np.uint64((bits & ((1 << 52) - 1)) | (1 << 52))
    odd = mantissa & _ONE == _ONE
    above = _compare_products(number, power, mantissa * _TWO + _ONE, exponent - 1)
    if above > 0 or (above == 0 and odd):
        return False
    if mantissa == np.uint64(1 << 52):
        below = _compare_products(number, power, mantissa * _TWO * _TWO - _ONE, exponent - 2)
    else:
        below = _compare_products(number, power, mantissa * _TWO - _ONE, exponent - 1)
    return below > 0 or (below == 0 and not odd)
