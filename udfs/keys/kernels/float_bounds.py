"""Truncates integers and decimals to the largest double that is not above them, and says whether it is equal.

All numbers are positive here. Numbers of all kinds are ordered exactly by this double and then by their decimal digits
(`udfs.keys.kernels.sort_key`). `udfs.kernels.doubles` rounds to the nearest double.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import inner
from udfs.kernels.decimals import POWERS, U64, count_digits, to_binary
from udfs.kernels.values import Int

LARGEST = 0x7FEF_FFFF_FFFF_FFFF
"""The bits of the largest finite double."""

_ABOVE, _BELOW = 309, -323
"""A number with its first digit at 10^309 or higher is above all doubles; one under 10^-324 is below all."""

_LIMBS = 40
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_MANTISSA = np.uint64(1 << 53)
_FRACTION = (1 << 52) - 1
_TENS = np.array([10.0**k for k in range(309)])
_EXACT_POWER = 22
"""10^22 is the largest power of ten that is a double."""

_SPLIT = 134217729.0
"""2^27 + 1 splits a double in halves whose products are exact (Dekker)."""


@inner
def truncate_integer(value: U64) -> tuple[Int, bool]:
    """Return the bits of the largest double up to an integer, and whether they are equal."""
    cut = _ZERO
    while value >> cut >= _MANTISSA:
        cut += _ONE
    kept = value >> cut << cut
    return np.float64(kept).view(np.int64), bool(kept == value)


@inner
def _rest(left: float, right: float, product: float) -> float:
    """Return the exact left * right - product; `product` is left * right rounded."""
    upper = left * _SPLIT
    upper = upper - (upper - left)
    lower = left - upper
    head = right * _SPLIT
    head = head - (head - right)
    tail = right - head
    return ((upper * head - product) + upper * tail + lower * head) + lower * tail


@inner
def _short(low: U64, power: int) -> tuple[Int, bool]:
    """Truncate low * 10^power for low below 2^53 and |power| up to 22: both are doubles."""
    whole = np.float64(low)
    ten = _TENS[-power if power < 0 else power]
    if power < 0:
        size = whole / ten
        product = size * ten
        beyond = (product - whole) + _rest(size, ten, product)
    else:
        size = whole * ten
        beyond = -_rest(whole, ten, size)
    bits = np.float64(size).view(np.int64)
    return (bits - 1 if beyond > 0 else bits), bool(beyond == 0)


@inner
def _multiply(limbs: Any, factor: U64) -> None:
    """Multiply a number in 32-bit limbs by a factor below 2^32."""
    carry = _ZERO
    for k in range(_LIMBS):
        carry += limbs[k] * factor
        limbs[k] = carry & _WORD
        carry = carry >> _HALF


@inner
def _scale(limbs: Any, tens: int, twos: int) -> None:
    """Multiply by 10^tens * 2^twos."""
    while tens > 0:
        _multiply(limbs, POWERS[min(tens, 9)])
        tens -= 9
    while twos > 0:
        _multiply(limbs, _ONE << np.uint64(min(twos, 31)))
        twos -= 31


@inner
def _compare(high: U64, low: U64, power: int, bits: int) -> int:
    """Return the sign of a decimal minus a double.

    Both sides fit in the limbs' 1280 bits: the largest is a mantissa times 10^361, 1253 bits.
    """
    left, right = np.zeros(_LIMBS, np.uint64), np.zeros(_LIMBS, np.uint64)
    upper, lower = to_binary(high, low, 0, False)
    left[0], left[1], left[2], left[3] = lower & _WORD, lower >> _HALF, upper & _WORD, upper >> _HALF
    exponent = bits >> 52
    mantissa = np.uint64(bits & _FRACTION | (1 << 52 if exponent > 0 else 0))
    right[0], right[1] = mantissa & _WORD, mantissa >> _HALF
    exponent = max(exponent, 1) - 1075
    _scale(left, max(power, 0), max(-exponent, 0))
    _scale(right, max(-power, 0), max(exponent, 0))
    for k in range(_LIMBS - 1, -1, -1):
        if left[k] != right[k]:
            return 1 if left[k] > right[k] else -1
    return 0


@inner
def _estimate(high: U64, low: U64, power: int) -> Int:
    """Return the bits of a finite double within a few units in the last place of a decimal."""
    size = np.float64(high) * 1e19 + np.float64(low)
    if power < -308:
        size = size / 1e308 / _TENS[-power - 308]
    else:
        size = size / _TENS[-power] if power < 0 else size * _TENS[power]
    bits = np.float64(size).view(np.int64)
    return bits if bits < LARGEST else np.int64(LARGEST)


@inner
def truncate_decimal(high: U64, low: U64, power: int) -> tuple[Int, bool]:
    """Return the bits of the largest double up to (high * 10^19 + low) * 10^power, and whether they are equal."""
    if high == _ZERO and low < _MANTISSA and -_EXACT_POWER <= power <= _EXACT_POWER:
        return _short(low, power)
    if high == _ZERO and low == _ZERO:
        return 0, True
    first = count_digits(high, low) + power
    if first > _ABOVE:
        return LARGEST, False
    if first < _BELOW:
        return 0, False
    bits = _estimate(high, low, power)
    side = _compare(high, low, power, bits)
    while side < 0:
        bits -= 1
        side = _compare(high, low, power, bits)
    while side > 0 and bits < LARGEST:
        further = _compare(high, low, power, bits + 1)
        if further < 0:
            break
        bits += 1
        side = further
    return bits, bool(side == 0)
