"""Writes parts of a key in canonical form, in which values that Tarantool's index treats as equal have equal bytes.

Equality is that of `src/box/tuple_compare.cc`, with two exceptions (below). The forms:

- An integral number is the shortest MessagePack integer, whatever its type, because numbers compare by value
  (`BY_ENCODING` is an exception).
- A decimal has no trailing zeros.
- A double that is the nearest one to a decimal of up to 15 digits is that decimal: the double 0.1 is the decimal 0.1.
  Any other double is its eight bytes.
- All quiet NaNs are one value, and all signalling NaNs are another one.
- A datetime is its seconds and nanoseconds, without the time zone. A string or varbinary is its bytes.

The exceptions are equalities of Tarantool that are not transitive, so that equal bytes cannot express them. First,
Tarantool compares a double with a decimal by the double's first 15 digits (`decimal_from_double`). Doubles that differ
only after the 15th digit, or before 3.5 only below 10^-38, all equal one decimal, but not each other; in 2.6 an
infinity equals every decimal. Here a decimal of up to 15 digits equals only its nearest double, and a longer one equals
no double: a longer integral decimal that a double has exactly is refused, since an equal integer would join the two.
Second, in a `double` key of 2.6 NaN equals every number; such keys are refused (`pipeline.changelog.keyed_rows`).

A function `put_` writes to the address `target` and returns where the written bytes end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import inner
from udfs.kernels.decimals import POWERS_OF_TEN, TEN, TEN19, U64, count_digits, read_decimal, strip_zeros
from udfs.kernels.doubles import (
    DECIMAL_DIGITS_OF_DOUBLE,
    DOUBLE_POWERS_OF_TEN,
    integer_to_double,
    is_nearest_double,
)
from udfs.kernels.memory import copy, store8, store64, store_big
from udfs.kernels.values import (
    BINARY,
    BOOLEAN,
    DATETIME,
    DECIMAL,
    DOUBLE,
    FLOAT,
    INTEGER,
    STRING,
    UNSIGNED_BIG,
    UUID,
    Int,
    head,
    read_datetime,
)

PART_GROWTH_BYTES = 16
"""The canonical form of a part is at most this many bytes longer than the part."""

HEADER_MAX_BYTES = 3
"""Greatest number of bytes that `put_array` writes."""

BY_VALUE, BY_ENCODING, AS_DOUBLE, MIXED = 0, 1, 2, 3
"""How an index compares numbers.

`BY_VALUE`: by their values. `MIXED`, for parts with doubles and decimals: the same, but some decimals have no canonical
form (`_is_ambiguous`). `BY_ENCODING`, for parts of type `unsigned`: by the first bytes of the encodings, then by
the values (`mp_compare_uint`), so `02` and `cd 00 02` are two keys. `AS_DOUBLE`, for parts of type `double`: by the
nearest doubles (`mp_read_as_double`).
"""

_QUIET_NAN = 0x7FF8000000000000
_SIGNALLING_NAN = 0x7FF0000000000001
_QUIET_NAN_BIT = 1 << 51

NANS = tuple(b"\xcb" + bits.to_bytes(8, "big") for bits in (_QUIET_NAN, _SIGNALLING_NAN))
"""The canonical forms of NaN."""


@inner
def put_unsigned(target: Int, value: Int) -> Int:
    """Write an integer 0 .. 2^63 - 1 as the shortest MessagePack unsigned."""
    if value < 0x80:
        store8(target, value)
        return target + 1
    power = 0 if value < 1 << 8 else (1 if value < 1 << 16 else (2 if value < 1 << 32 else 3))
    store8(target, 0xCC + power)
    return store_big(target + 1, value, 1 << power)


@inner
def put_array(target: Int, count: Int) -> Int:
    """Write the header of an array of up to 65535 items; a key has at most 255 parts."""
    if count < 16:
        store8(target, 0x90 | count)
        return target + 1
    store8(target, 0xDC)
    return store_big(target + 1, count, 2)


@inner
def put_negative(target: Int, value: Int) -> Int:
    """Write an integer -2^63 .. -1 as the shortest MessagePack integer."""
    if value >= -32:
        store8(target, value)
        return target + 1
    power = 0 if value >= -(1 << 7) else (1 if value >= -(1 << 15) else (2 if value >= -(1 << 31) else 3))
    store8(target, 0xD0 + power)
    return store_big(target + 1, value, 1 << power)


@inner
def _put_int64(target: Int, byte: Int, value: Int) -> Int:
    """Write a first byte, and eight bytes of an integer."""
    store8(target, byte)
    return store_big(target + 1, value, 8)


@inner
def _put_extension_head(target: Int, code: Int, size: Int) -> Int:
    power = 0
    while power < 5 and 1 << power != size:
        power += 1
    if power < 5:
        store8(target, 0xD4 + power)
        store8(target + 1, code)
        return target + 2
    store8(target, 0xC7)
    store8(target + 1, size)
    store8(target + 2, code)
    return target + 3


@inner
def _put_packed_decimal(target: Int, high: U64, low: U64, exponent: Int, negative: bool) -> Int:
    """Write a decimal as Tarantool packs it (`decimal_pack`)."""
    digits = count_digits(high, low)
    scale = -exponent
    width = put_unsigned(target, scale) - target if scale >= 0 else put_negative(target, scale) - target
    size = digits // 2 + 1
    target = _put_extension_head(target, 1, width + size)
    target = put_unsigned(target, scale) if scale >= 0 else put_negative(target, scale)
    for k in range(2 * size - 1, 0, -2):
        upper = _digit_of(high, low, k - 1)
        lower = _digit_of(high, low, k - 2) if k > 1 else (0x0D if negative else 0x0C)
        store8(target, upper << 4 | lower)
        target += 1
    return target


@inner
def _digit_of(high: U64, low: U64, number: Int) -> Int:
    if number >= 38:
        return 0
    part = high // POWERS_OF_TEN[number - 19] if number >= 19 else low // POWERS_OF_TEN[number]
    return np.int64(part % TEN)


@inner
def put_decimal(target: Int, number: Any) -> Int:
    """Write a decimal; one that is a 64-bit integer becomes an integer."""
    high, low, exponent = strip_zeros(number[0], number[1], number[2])
    negative = number[3]
    if exponent >= 0 and exponent + count_digits(high, low) <= 20:
        if high == np.uint64(0) and exponent < 19 and exponent + count_digits(high, low) <= 19:
            low = low * POWERS_OF_TEN[exponent]
            exponent = 0
        elif exponent > 0:
            lead = low // POWERS_OF_TEN[19 - exponent]
            high, low, exponent = lead, low % POWERS_OF_TEN[19 - exponent] * POWERS_OF_TEN[exponent], 0
        largest = np.uint64(1) if not negative else np.uint64(0)
        rest = np.uint64(8446744073709551615) if not negative else np.uint64(9223372036854775808)
        if high < largest or (high == largest and low <= rest):
            value = np.int64(high * TEN19 + low)
            if negative and (high | low) != np.uint64(0):
                return put_negative(target, -value)
            return put_unsigned(target, value) if value >= 0 else _put_int64(target, 0xCF, value)
        high, low, exponent = strip_zeros(high, low, exponent)
    return _put_packed_decimal(target, high, low, exponent, negative)


@inner
def _short_decimal(magnitude: float) -> tuple[U64, Int, bool]:
    """Return the decimal of up to 15 digits whose nearest double is `magnitude`: (digits, power of ten, exists)."""
    power = DECIMAL_DIGITS_OF_DOUBLE - 1 - np.int64(np.floor(np.log10(magnitude)))
    for step in (power, power - 1, power + 1):
        scaled = np.rint(
            magnitude * DOUBLE_POWERS_OF_TEN[step] if step >= 0 else magnitude / DOUBLE_POWERS_OF_TEN[-step]
        )
        if 1e14 <= scaled < 1e15:
            _, number, exponent = strip_zeros(np.uint64(0), np.uint64(scaled), -step)
            return number, exponent, is_nearest_double(number, exponent, magnitude)
    return np.uint64(0), np.int64(0), False


@inner
def put_double(target: Int, value: float) -> Int:
    """Write a double: as an integer, a decimal, or its own bytes."""
    if np.isnan(value):
        bits = np.float64(value).view(np.int64)
        return _put_int64(target, 0xCB, _QUIET_NAN if bits & _QUIET_NAN_BIT else _SIGNALLING_NAN)
    magnitude = abs(value)
    if magnitude < 18446744073709551616.0 and magnitude == np.floor(magnitude):
        if value >= 9223372036854775808.0:
            return _put_int64(target, 0xCF, np.int64(np.uint64(value)))
        if value >= -9223372036854775808.0:
            return (
                put_negative(target, np.int64(value)) if value < 0 else put_unsigned(target, np.int64(value))
            )
    if 1e-38 <= magnitude < 1e38:
        number, exponent, found = _short_decimal(magnitude)
        if found:
            return put_decimal(target, (np.uint64(0), number, exponent, value < 0, True))
    return _put_int64(target, 0xCB, np.float64(value).view(np.int64))


@inner
def _put_datetime(target: Int, pos: Int, size: Int) -> Int:
    """Write a datetime; return -1 if its content is not valid."""
    seconds, nanoseconds, valid = read_datetime(pos, size)
    if not valid:
        return -1
    target = _put_extension_head(target, 4, 8 if nanoseconds == 0 else 16)
    store64(target, seconds)
    if nanoseconds == 0:
        return target + 8
    store64(target + 8, nanoseconds)
    return target + 16


@inner
def _is_ambiguous(number: Any) -> bool:
    """Return whether a decimal is an integer of 64 bits and more than 15 digits that a double has exactly.

    The server takes the decimal and the double for two keys, and the integer for either of them.
    """
    high, low, exponent = strip_zeros(number[0], number[1], number[2])
    digits = count_digits(high, low)
    if exponent < 0 or digits <= DECIMAL_DIGITS_OF_DOUBLE or digits + exponent > 20:
        return False
    size = (np.float64(high) * 1e19 + np.float64(low)) * np.float64(POWERS_OF_TEN[exponent])
    if size > 9223372036854775808.0 and (number[3] or size >= 18446744073709551616.0):
        return False
    value = (high * TEN19 + low) * POWERS_OF_TEN[exponent]
    while value >= np.uint64(1 << 53):
        if value & np.uint64(1) == np.uint64(1):
            return False
        value = value >> np.uint64(1)
    return True


@inner
def _put_extension(target: Int, comparison: Int, kind: Int, start: Int, pos: Int, size: Int) -> Int:
    """Write a decimal, a datetime or a uuid; return -1 if its content is not valid, -2 if it has no canonical form."""
    if kind == DECIMAL:
        number = read_decimal(pos, size)
        if comparison == MIXED and number[4] and _is_ambiguous(number):
            return -2
        return put_decimal(target, number) if number[4] else -1
    if kind == DATETIME:
        return _put_datetime(target, pos, size)
    if size != 16:
        return -1
    target = _put_extension_head(target, 2, 16)
    # The index compares the 16 bytes after two header bytes, whatever the header is.
    copy(target, start + 2, 16)
    return target + 16


@inner
def _put_text(target: Int, kind: Int, pos: Int, size: Int) -> Int:
    """Write a string or varbinary with the shortest header."""
    if kind == STRING and size < 32:
        store8(target, 0xA0 | size)
        target += 1
    else:
        power = 0 if size < 1 << 8 else (1 if size < 1 << 16 else 2)
        store8(target, (0xD9 if kind == STRING else 0xC4) + power)
        target = store_big(target + 1, size, 1 << power)
    copy(target, pos, size)
    return target + size


@inner
def put_part(target: Int, comparison: Int, start: Int, end: Int) -> tuple[Int, Int]:
    """Write the value that starts at `start` as one part of a key, in canonical form.

    Args:
        target: Address with room for `PART_GROWTH_BYTES` bytes more than the size of the value.
        comparison: How the index compares the part: BY_VALUE, BY_ENCODING, AS_DOUBLE or MIXED.
        start, end: Addresses of the value, which is valid MessagePack of a class that the part accepts.

    Returns:
        target: Where the part ends; -1 if an extension's content is not valid, -2 if it has no canonical form.
        pos: Where the value ends.
    """
    kind, argument, pos = head(start, end)
    if kind in (STRING, BINARY):
        return _put_text(target, kind, pos, argument), pos + argument
    if kind in (DECIMAL, UUID, DATETIME):
        return _put_extension(target, comparison, kind, start, pos, argument), pos + argument
    if kind in (DOUBLE, FLOAT):
        return put_double(target, np.int64(argument).view(np.float64)), pos
    if kind == BOOLEAN:
        store8(target, 0xC2 + argument)
        return target + 1, pos
    if comparison == BY_ENCODING:
        copy(target, start, pos - start)
        return target + pos - start, pos
    if comparison == AS_DOUBLE:
        return put_double(target, integer_to_double(kind, argument)[0]), pos
    if kind == UNSIGNED_BIG:
        return _put_int64(target, 0xCF, argument), pos
    negative = kind == INTEGER and argument < 0
    return (put_negative(target, argument) if negative else put_unsigned(target, argument)), pos
