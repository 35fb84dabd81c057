"""Writes the values of a variant that are neither object nor array.

Format (Parquet's VariantEncoding, as `org.apache.spark.types.variant.VariantUtil` of Spark 4 reads it): a header
byte `type << 2`, then little-endian content; a string of up to 63 bytes has the header `size << 2 | 1`. A value
without a variant type is stored as binary, its whole MessagePack, so nothing is lost. Tarantool's uuid and interval
become strings: few readers know a variant's uuid, and none has intervals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import inner
from udfs.kernels.decimals import count_digits, integer_to_decimal, read_decimal, to_int128
from udfs.kernels.memory import copy, copy_over, store8, store64
from udfs.kernels.packed_decimals import COLUMN_DIGITS_MAX, read_packed, round_packed
from udfs.kernels.values import (
    BINARY,
    BOOLEAN,
    DATETIME,
    DECIMAL,
    DOUBLE,
    FLOAT,
    INTEGER,
    INTERVAL,
    NIL,
    STRING,
    TIMESTAMP_MAX_SECONDS,
    TIMESTAMP_MIN_SECONDS,
    UNSIGNED,
    UNSIGNED_BIG,
    UUID,
    Int,
    is_utf8,
    read_datetime,
)
from udfs.tuples.kernels.columns import FITS, INEXACT
from udfs.tuples.kernels.writers import read_interval, write_interval, write_uuid

V_NULL, V_TRUE, V_FALSE = 0, 1 << 2, 2 << 2
V_INT1, V_INT2, V_INT4, V_INT8 = 3 << 2, 4 << 2, 5 << 2, 6 << 2
V_DOUBLE = 7 << 2
V_DECIMAL4, V_DECIMAL8, V_DECIMAL16 = 8 << 2, 9 << 2, 10 << 2
V_TIMESTAMP = 12 << 2
V_BINARY = 15 << 2
V_LONG_STRING = 16 << 2
V_SHORT_STRING = 1
"""Header bytes of values; the header of a short string also has its size."""

SHORT_STRING_MAX = 63
_ZERO = np.uint64(0)


@inner
def store_little(target: Int, value: Int, size: Int) -> None:
    """Store the low `size` bytes of a value, little-endian."""
    if size == 1:
        store8(target, value)
        return
    for k in range(size):
        store8(target + k, value >> (8 * k))


@inner
def put_integer(target: Int, value: Int) -> Int:
    """Write an integer of 64 bits in the narrowest form."""
    if -128 <= value < 128:
        header, size = V_INT1, 1
    elif -32768 <= value < 32768:
        header, size = V_INT2, 2
    elif -2147483648 <= value < 2147483648:
        header, size = V_INT4, 4
    else:
        header, size = V_INT8, 8
    store8(target, header)
    store64(target + 1, value)
    return target + 1 + size


@inner
def put_string(target: Int, pos: Int, size: Int) -> Int:
    """Write a string whose text is already in memory."""
    if size <= SHORT_STRING_MAX:
        store8(target, size << 2 | V_SHORT_STRING)
        copy_over(target + 1, pos, size)
        return target + 1 + size
    return _put_sized(target, V_LONG_STRING, pos, size)


@inner
def put_binary(target: Int, pos: Int, size: Int) -> Int:
    """Write bytes as a binary value."""
    return _put_sized(target, V_BINARY, pos, size)


@inner
def _put_sized(target: Int, header: Int, pos: Int, size: Int) -> Int:
    """Write a string or bytes with a size of four bytes; `header` is the first byte."""
    store8(target, header)
    store_little(target + 1, size, 4)
    copy(target + 5, pos, size)
    return target + 5 + size


@inner
def put_decimal(target: Int, number: Any) -> Int:
    """Write a decimal of up to 38 digits and scale 0 to 38; return -1 for any other."""
    high, low, exponent, negative, valid = number
    digits = count_digits(high, low)
    if not valid or exponent < -38 or digits + exponent > 38:
        return -1
    scale, power = max(-exponent, 0), max(exponent, 0)
    upper, lower = to_int128(high, low, power if digits > 0 else 0, negative)
    digits += power
    if digits <= 9 and scale <= 9:
        header, size = V_DECIMAL4, 4
    elif digits <= 18 and scale <= 18:
        header, size = V_DECIMAL8, 8
    else:
        header, size = V_DECIMAL16, 16
    store8(target, header)
    store8(target + 1, scale)
    store_little(target + 2, np.int64(lower), min(size, 8))
    if size == 16:
        store64(target + 10, np.int64(upper))
    return target + 2 + size


@inner
def _put_any_decimal(target: Int, pos: Int, size: Int) -> tuple[Int, Int]:
    """Write a decimal, rounded half-even to 38 digits if it has more; return (-1, FITS) for one that is too large."""
    after = put_decimal(target, read_decimal(pos, size))
    if after >= 0:
        return after, FITS
    packed = read_packed(pos, size)
    whole = packed[1] + packed[2]
    if not packed[4] or whole > COLUMN_DIGITS_MAX:
        return -1, FITS
    scale = min(COLUMN_DIGITS_MAX, COLUMN_DIGITS_MAX - whole)
    upper, lower, fits, exact = round_packed(packed, scale)
    if not fits and scale > 0:
        # Rounded up to a power of ten, it has one more digit before the point.
        scale -= 1
        upper, lower, fits, exact = round_packed(packed, scale)
    if not fits:
        return -1, FITS
    store8(target, V_DECIMAL16)
    store8(target + 1, scale)
    store64(target + 2, np.int64(lower))
    store64(target + 10, np.int64(upper))
    return target + 18, FITS if exact else INEXACT


@inner
def _put_datetime(target: Int, pos: Int, size: Int) -> tuple[Int, Int]:
    """Write a datetime as a timestamp; return (-1, FITS) for a datetime that Spark's timestamp cannot have."""
    seconds, nanoseconds, valid = read_datetime(pos, size)
    if not valid or seconds < TIMESTAMP_MIN_SECONDS or seconds > TIMESTAMP_MAX_SECONDS:
        return -1, FITS
    store8(target, V_TIMESTAMP)
    store64(target + 1, seconds * 1000000 + nanoseconds // 1000)
    return target + 9, FITS if nanoseconds % 1000 == 0 else INEXACT


@inner
def _put_extension(target: Int, kind: Int, pos: Int, size: Int) -> tuple[Int, Int]:
    """Write an extension that has a variant type; return (-1, FITS) for any other."""
    if kind == DECIMAL:
        return _put_any_decimal(target, pos, size)
    if kind == UUID and size == 16:
        store8(target, 36 << 2 | V_SHORT_STRING)
        return write_uuid(target + 1, pos), FITS
    if kind == DATETIME:
        return _put_datetime(target, pos, size)
    amounts = np.zeros(9, np.int64)
    if kind != INTERVAL or not read_interval(pos, size, amounts):
        return -1, FITS
    after = write_interval(target + 5, amounts)
    store8(target, V_LONG_STRING)
    store_little(target + 1, after - target - 5, 4)
    return after, FITS


@inner
def put_scalar(target: Int, kind: Int, argument: Int, start: Int, pos: Int) -> tuple[Int, Int]:
    """Write the value that starts at `start` and has the head (kind, argument, pos).

    Returns:
        target: Where the written value ends.
        status: FITS, or INEXACT if nanoseconds of a datetime, or digits of a decimal, were dropped.
    """
    if kind in (UNSIGNED, INTEGER):
        return put_integer(target, argument), FITS
    if kind == STRING:
        if is_utf8(pos, argument):
            return put_string(target, pos, argument), FITS
        return put_binary(target, pos, argument), FITS
    if kind in (NIL, BOOLEAN):
        store8(target, V_NULL if kind == NIL else (V_TRUE if argument else V_FALSE))
        return target + 1, FITS
    if kind in (DOUBLE, FLOAT):
        store8(target, V_DOUBLE)
        store64(target + 1, argument)
        return target + 9, FITS
    if kind == UNSIGNED_BIG:
        return put_decimal(target, integer_to_decimal(kind, argument)), FITS
    if kind == BINARY:
        return put_binary(target, pos, argument), FITS
    after, status = _put_extension(target, kind, pos, argument)
    if after < 0:
        return put_binary(target, start, pos + argument - start), FITS
    return after, status
