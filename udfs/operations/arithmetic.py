"""Computes `+ - & | ^ :` on numbers and strings, with Tarantool's result types, limits and errors.

Source: `src/box/xrow_update_field.c`. Integers stay integers from -2^63 to 2^64 - 1; with a double or a float
the sum is computed as a double, and written as MP_FLOAT if that is exact (see `udfs.operations.update_rules` for
older servers); with a decimal everything becomes a decimal. Bit operations need unsigned integers, splice works on
bytes of strings.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal

from schemas.errors import TupleError, UnsupportedError
from udfs.operations import decimals
from udfs.operations.msgpack_walk import (
    BIN,
    DOUBLE,
    EXT,
    FLOAT,
    INT,
    KIND,
    STR,
    UINT,
    encode_binary,
    encode_integer,
    encode_string,
    integer,
    string,
)
from udfs.operations.update_rules import Rules

UPDATE_SPLICE, UPDATE_ARG_TYPE, INTEGER_OVERFLOW, DECIMAL_OVERFLOW = 25, 26, 95, 160
"""`ER_UPDATE_SPLICE`, `ER_UPDATE_ARG_TYPE`, `ER_UPDATE_INTEGER_OVERFLOW`, `ER_UPDATE_DECIMAL_OVERFLOW`."""

FLOAT_MAX = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]
"""`FLT_MAX`."""

AS_DECIMAL, AS_DOUBLE, AS_FLOAT, AS_INTEGER = range(4)
"""Types of a number; the type of a sum is the first one that an operand has."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its type in MessagePack, read or to be written.

    `is_signed` marks a non-negative integer in a signed encoding, which `& | ^` do not accept as unsigned.
    """

    type: int
    value: int | float | Decimal
    is_signed: bool = False


@dataclass(frozen=True, slots=True)
class Splice:
    """Arguments of `:`: 0-based offset, bytes to cut, bytes to paste; negative numbers count from the end."""

    offset: int
    cut: int
    paste: bytes


@dataclass(frozen=True, slots=True)
class Binary:
    """The bytes of a varbinary."""

    value: bytes


Scalar = Number | Binary | bytes
"""The result of a scalar operation: a number, a binary, or the bytes of a string."""


def arg_type(code: str, field: str, needed: str) -> TupleError:
    """Return `ER_UPDATE_ARG_TYPE`: the field's or the argument's type does not fit the operation."""
    return TupleError(
        f"Argument type in operation '{code}' on field {field} does not match field type: expected {needed}",
        code=UPDATE_ARG_TYPE,
    )


def splice_bound(field: str) -> TupleError:
    """Return `ER_UPDATE_SPLICE`: the offset is before the start of the string."""
    return TupleError(f"SPLICE error on field {field}: offset is out of bound", code=UPDATE_SPLICE)


def read_number(data: bytes, pos: int) -> Number | None:
    """Return the number at `pos`; None if the value is not a number."""
    kind = KIND[data[pos]]
    if kind in (UINT, INT):
        value, _ = integer(data, pos)
        return Number(AS_INTEGER, value, is_signed=kind == INT)
    if kind == DOUBLE:
        return Number(AS_DOUBLE, struct.unpack_from(">d", data, pos + 1)[0])
    if kind == FLOAT:
        return Number(AS_FLOAT, struct.unpack_from(">f", data, pos + 1)[0])
    if kind == EXT and decimals.is_decimal(data, pos):
        return Number(AS_DECIMAL, decimals.read(data, pos))
    return None


def read_scalar(data: bytes, pos: int) -> Scalar | None:
    """Return the number, the binary, or the bytes of the string at `pos`; None for any other value."""
    if KIND[data[pos]] in (STR, BIN):
        start, end = string(data, pos)
        return data[start:end] if KIND[data[pos]] == STR else Binary(data[start:end])
    return read_number(data, pos)


def encode(value: Scalar, as_double: bool) -> bytes:
    """Return the encoding of a result; `as_double` says that the field is a double in the format."""
    if isinstance(value, bytes):
        return encode_string(value)
    if isinstance(value, Binary):
        return encode_binary(value.value)
    if isinstance(value.value, Decimal):
        return decimals.encode(value.value)
    if isinstance(value.value, int):
        return encode_integer(value.value)
    if value.type == AS_FLOAT and not as_double:
        return struct.pack(">Bf", 0xCA, value.value)
    return struct.pack(">Bd", 0xCB, value.value)


def add(code: str, field: str, left: Scalar | None, right: Number, rules: Rules) -> Number:
    """Return left + right, or left - right if `code` is `-`.

    Raises
    ------
    TupleError
        Left is not a number, or the result does not fit its type.

    """
    if not isinstance(left, Number):
        raise arg_type(code, field, "a number")
    decisive = min(left.type, right.type)
    if decisive == AS_DECIMAL:
        return Number(AS_DECIMAL, _add_decimals(code, field, left, right, rules))
    if decisive == AS_INTEGER:
        a, b = int(left.value), int(right.value)
        total = a + b if code == "+" else a - b
        if not -(1 << 63) <= total < 1 << 64:
            raise TupleError(
                f"Integer overflow when performing '{code}' operation on field {field}", code=INTEGER_OVERFLOW
            )
        return Number(AS_INTEGER, total)
    x, y = float(left.value), float(right.value)
    return _narrow(x + y if code == "+" else x - y, decisive, rules)


def _single(value: float) -> float:
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _narrow(total: float, decisive: int, rules: Rules) -> Number:
    is_exact = -FLOAT_MAX <= total <= FLOAT_MAX and _single(total) == total
    exact = Number(AS_FLOAT if is_exact else AS_DOUBLE, total)
    if rules.floats == "exact":
        return exact
    typed = Number(decisive, _single(total) if decisive == AS_FLOAT else total)
    if rules.floats == "unclear" and encode(typed, as_double=False) != encode(exact, as_double=False):
        raise UnsupportedError(f"the sum {total!r}, which servers before 2.6 store in different ways")
    return typed


def _add_decimals(code: str, field: str, left: Number, right: Number, rules: Rules) -> Decimal:
    ctx = decimals.context(rules.wide_decimals)

    def convert(number: Number) -> Decimal | None:
        return (
            decimals.from_double(number.value, ctx)
            if isinstance(number.value, float)
            else Decimal(number.value)
        )

    a, b = convert(left), convert(right)
    if a is None or b is None:
        raise arg_type(code, field, "a number convertible to decimal")
    total = decimals.add(a, b, ctx) if code == "+" else decimals.subtract(a, b, ctx)
    if total is None:
        raise TupleError(
            f"Decimal overflow when performing operation '{code}' on field {field}", code=DECIMAL_OVERFLOW
        )
    return total


def combine_bits(code: str, field: str, left: Scalar | None, right: int, rules: Rules) -> Number:
    """Return left and right under `&`, `|` or `^`; left must be an unsigned integer."""
    value = left.value if isinstance(left, Number) else None
    if not isinstance(left, Number) or not isinstance(value, int) or value < 0:
        raise arg_type(code, field, "a positive integer")
    if left.is_signed and not rules.several:
        raise arg_type(code, field, "a positive integer")
    return Number(
        AS_INTEGER, value & right if code == "&" else value | right if code == "|" else value ^ right
    )


def cut_and_paste(field: str, old: Scalar | None, splice: Splice, rules: Rules) -> Scalar:
    """Return a string or binary after `:`; an offset past its end means its end, one before its start is an error."""
    if isinstance(old, Binary) and rules.splices_binary:
        return Binary(_spliced(field, old.value, splice))
    if not isinstance(old, bytes):
        raise arg_type(":", field, "a string")
    return _spliced(field, old, splice)


def _spliced(field: str, text: bytes, splice: Splice) -> bytes:
    size, offset = len(text), splice.offset
    if offset < 0:
        offset += size + 1
        if offset < 0:
            raise splice_bound(field)
    offset = min(offset, size)
    rest = size - offset
    cut = max(rest + splice.cut, 0) if splice.cut < 0 else min(splice.cut, rest)
    whole = memoryview(text)  # of which a slice is no copy
    return b"".join((whole[:offset], splice.paste, whole[offset + cut :]))
