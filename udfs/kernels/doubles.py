"""What a double can say of an integer or a decimal, decided exactly.

A double says the same as an integer where both are equal, and the same as a decimal where Tarantool's comparison
calls both equal: it turns the double into a decimal of 15 significant digits (`decimal_from_double`,
`DBL_DIG`). So 0.1 is 0.1, and a decimal of 16 digits is a double only where it is exactly that double.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from udfs.kernels.decimals import U64, count_digits, strip
from udfs.kernels.values import Int

TENS = np.array([10.0**k for k in range(309)])
EXACT_POWER = 22
"""10^22 is the largest power of ten that is a double; so m * 10^k is rounded once for m < 2^53, |k| <= 22."""

DOUBLE_DIGITS = 15
_MANTISSA = np.uint64(1 << 53)
_LIMBS = 40
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@njit(cache=True, nogil=True)
def exact_integer(value: float, high: U64, low: U64, negative: bool) -> bool:
    """Return whether a double below 2^64 in size equals an integer of at most 20 digits."""
    size = abs(value)
    if high > np.uint64(1) or size >= 18446744073709551616.0 or size != np.floor(size):
        return False
    expected = high * np.uint64(10**19) + low
    return np.uint64(size) == expected and (value < 0) == (negative and expected > np.uint64(0))


@njit(cache=True, nogil=True)
def _scale_up(limbs: NDArray[np.uint64], factor: U64, times: Int) -> None:
    for _ in range(times):
        carry = np.uint64(0)
        for k in range(_LIMBS):
            carry += limbs[k] * factor
            limbs[k] = carry & _WORD
            carry = carry >> _HALF


@njit(cache=True, nogil=True)
def compare_exactly(high: U64, low: U64, power: Int, mantissa: U64, exponent: Int) -> Int:
    """Return the sign of (high * 10^19 + low) * 10^power - mantissa * 2^exponent.

    For |power| up to 120 and |exponent| up to 500: both sides fit into 40 limbs of 32 bits.
    """
    left, right = np.zeros(_LIMBS, np.uint64), np.zeros(_LIMBS, np.uint64)
    left[0], left[1] = high & _WORD, high >> _HALF
    _scale_up(left, np.uint64(10), 19)
    carry = np.uint64(0)
    for k, part in enumerate((low & _WORD, low >> _HALF)):
        carry += left[k] + part
        left[k] = carry & _WORD
        carry = carry >> _HALF
    for k in range(2, _LIMBS):
        carry += left[k]
        left[k] = carry & _WORD
        carry = carry >> _HALF
    right[0], right[1] = mantissa & _WORD, mantissa >> _HALF
    _scale_up(left if power > 0 else right, np.uint64(10), abs(power))
    _scale_up(right if exponent > 0 else left, np.uint64(2), abs(exponent))
    for k in range(_LIMBS - 1, -1, -1):
        if left[k] != right[k]:
            return 1 if left[k] > right[k] else -1
    return 0


@njit(cache=True, nogil=True)
def _side(high: U64, low: U64, power: Int, value: float) -> Int:
    """Return how far a decimal lies from a positive double: 0 rounds to it, 1 is above, -1 below."""
    bits = np.float64(value).view(np.int64)
    exponent = (bits >> 52) - 1075
    mantissa = np.uint64((bits & ((1 << 52) - 1)) | (1 << 52))
    even = mantissa & np.uint64(1) == np.uint64(0)
    above = compare_exactly(high, low, power, mantissa * np.uint64(2) + np.uint64(1), exponent - 1)
    if above > 0 or (above == 0 and not even):
        return 1
    if mantissa == np.uint64(1 << 52):
        below = compare_exactly(high, low, power, mantissa * np.uint64(4) - np.uint64(1), exponent - 2)
    else:
        below = compare_exactly(high, low, power, mantissa * np.uint64(2) - np.uint64(1), exponent - 1)
    return -1 if below < 0 or (below == 0 and not even) else 0


@njit(cache=True, nogil=True)
def nearest_double(number: Any) -> tuple[float, bool]:
    """Return the double nearest to a decimal, and whether it says the same.

    Numbers outside 10^-75 .. 10^75, which Tarantool 2 does not have, come within a few units of the last place
    and are never called the same.
    """
    high, low, power = strip(number[0], number[1], number[2])
    digits = count_digits(high, low)
    if high == np.uint64(0) and low < _MANTISSA and abs(power) <= EXACT_POWER:
        size = low / TENS[-power] if power < 0 else low * TENS[power]
        same = digits <= DOUBLE_DIGITS or exact_integer(size, high, low, False) and power == 0
        return (-size if number[3] else size), same
    size = np.float64(high) * 1e19 + np.float64(low)
    bounded = min(max(power, -308), 308)
    size = size * TENS[bounded] if bounded > 0 else size / TENS[-bounded]
    if abs(power) > 75:
        return (-size if number[3] else size), False
    side = _side(high, low, power, size)
    while side != 0:
        size = np.int64(np.float64(size).view(np.int64) + side).view(np.float64)
        side = _side(high, low, power, size)
    bits = np.float64(size).view(np.int64)
    mantissa = np.uint64((bits & ((1 << 52) - 1)) | (1 << 52))
    same = digits <= DOUBLE_DIGITS or compare_exactly(high, low, power, mantissa, (bits >> 52) - 1075) == 0
    return (-size if number[3] else size), same
