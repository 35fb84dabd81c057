"""Reads, writes and adds Tarantool's decimals (MessagePack extension 1).

Format (`src/lib/core/decimal.c`, `mp_decimal.c`): the extension's body is the scale as a MessagePack integer
(negative for a positive exponent), then packed BCD digits whose last nibble is the sign. The server computes
with decNumber; Python's `decimal` follows the same specification, so a context with the same precision,
exponents and rounding gives the same digits. `udfs.kernels.decimals` has decimals for Spark columns.
"""

from __future__ import annotations

import struct
from decimal import ROUND_HALF_UP, Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from math import isfinite

from udfs.operations.msgpack_kinds import INT, KIND, UINT
from udfs.operations.msgpack_walk import encode_integer, raise_broken, read_integer, string_bounds

DECIMAL_EXTENSION = 1
"""`MP_DECIMAL`."""

LIMITS_BEFORE_3_5, LIMITS_SINCE_3_5 = (38, 37, -1), (76, 999_999, -999_999)
"""Limits of decimals before 3.5, and since 3.5: digits, greatest and least normal exponent (`decimal_context`)."""

_PLUS, _MINUS = "acef", "bd"
_FIXEXT_BYTE_BY_SIZE = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def context(is_wide: bool) -> Context:
    """Return a server's decimal context: half up, no traps; `is_wide` says that the server is 3.5 or newer."""
    digits, greatest, least = LIMITS_SINCE_3_5 if is_wide else LIMITS_BEFORE_3_5
    return Context(digits, ROUND_HALF_UP, least, greatest, clamp=0, flags=[], traps=[])


def is_decimal(data: bytes, pos: int) -> bool:
    """Return whether the extension at `pos` is a decimal."""
    start, _ = string_bounds(data, pos)
    return data[start - 1] == DECIMAL_EXTENSION


def read(data: bytes, pos: int) -> Decimal:
    """Return the decimal at `pos` (`decimal_unpack`); raise TupleError if the server cannot store it."""
    start, end = string_bounds(data, pos)
    body = data[start:end]
    if not body or KIND[body[0]] not in (UINT, INT):
        raise_broken("a decimal does not begin with its scale")
    scale, digits_at = read_integer(body, 0)
    nibbles = body[digits_at:].hex()
    digits, sign = nibbles[:-1], nibbles[-1:]
    is_packed = digits.isdecimal() and sign in _PLUS + _MINUS
    digits_max, exponent_max, _ = LIMITS_SINCE_3_5
    if not is_packed or len(digits.lstrip("0")) > digits_max or abs(scale) > exponent_max + digits_max:
        raise_broken("a decimal is not packed digits and a sign")
    return Decimal(f"{'-' if sign in _MINUS else ''}{digits}E{-scale}")


def encode(value: Decimal) -> bytes:
    """Return a finite decimal as a MessagePack extension (`mp_encode_decimal`)."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)) + ("d" if sign else "c")
    body = encode_integer(-int(exponent)) + bytes.fromhex(text.zfill(len(text) + len(text) % 2))
    size = len(body)
    fixed = _FIXEXT_BYTE_BY_SIZE.get(size)
    head = struct.pack(">BB", 0xC7, size) if fixed is None else bytes((fixed,))
    return head + bytes((DECIMAL_EXTENSION,)) + body


def from_double(value: float, ctx: Context) -> Decimal | None:
    """Return a double as a decimal of 15 significant digits; None if the server refuses it.

    15 is the server's choice (`DBL_DIG` in `decimal_from_double`).
    """
    if not isfinite(value):
        return None
    ctx.clear_flags()
    result = ctx.create_decimal("%.15g" % value)  # noqa: UP031 (the server's own printf format)
    return _result_or_none(result, ctx)


def _result_or_none(result: Decimal, ctx: Context) -> Decimal | None:
    """Return the result of an operation in `ctx`, or None if the server treats it as a failure."""
    failed = ctx.flags[Overflow] or ctx.flags[InvalidOperation] or ctx.flags[DivisionByZero]
    return None if failed or not result.is_finite() else result


def add(left: Decimal, right: Decimal, ctx: Context) -> Decimal | None:
    """Return left + right; None on overflow."""
    ctx.clear_flags()
    return _result_or_none(ctx.add(left, right), ctx)


def subtract(left: Decimal, right: Decimal, ctx: Context) -> Decimal | None:
    """Return left - right; None on overflow."""
    ctx.clear_flags()
    return _result_or_none(ctx.subtract(left, right), ctx)
