"""The values that scalar operations of UPDATE and UPSERT compute with: numbers, strings and varbinaries.

Source: `src/box/xrow_update_field.c`. `udfs.operations.scalars` has the operations.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from schemas.errors import TupleError
from udfs.operations import decimals
from udfs.operations.msgpack_kinds import BIN, DOUBLE, EXT, FLOAT, INT, KIND, STR, UINT
from udfs.operations.msgpack_walk import (
    encode_binary,
    encode_integer,
    encode_string,
    read_integer,
    string_bounds,
)
from udfs.operations.update_rules import Rules

ER_UPDATE_ARG_TYPE = 26
"""Tarantool's error code."""

AS_DECIMAL, AS_DOUBLE, AS_FLOAT, AS_INTEGER = range(4)
"""Types of a number. The type of a sum is the first of these types that one of the operands has."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its type in MessagePack."""

    type: int
    """`AS_DECIMAL`, `AS_DOUBLE`, `AS_FLOAT` or `AS_INTEGER`."""
    value: int | float | Decimal
    is_signed: bool = False
    """Whether an integer has a signed encoding, which `&`, `|` and `^` refuse even if it is not negative."""


@dataclass(frozen=True, slots=True)
class Binary:
    """The bytes of a varbinary."""

    value: bytes


Scalar = Number | Binary | bytes
"""The result of a scalar operation: a number, a binary, or the bytes of a string."""


@dataclass(frozen=True, slots=True)
class OperationArguments:
    """The arguments of an operation in the log, and what their meaning depends on."""

    code: str
    field: str
    """The operation's code, and the field as errors name it."""
    data: bytes
    """The bytes of all operations."""
    begin: int
    """Where the arguments begin in `data`, in bytes."""
    index_base: int
    """The number that means a string's first byte: 0 or 1."""
    rules: Rules


@dataclass(frozen=True, slots=True)
class ScalarOperation:
    """An operation that computes a field's new value from its old one."""

    item_count: int
    """Number of items of the operation's array in the log: the code, the field, and the arguments."""
    read: Callable[[OperationArguments], Any]
    """Returns the argument; raises a `TupleError` if the server refuses the argument for every tuple."""
    compute: Callable[[str, str, Scalar | None, Any, Rules], Scalar]
    """Returns the new value from the code, the field's name in errors, the old value (None if it is not a scalar), the
    result of `read`, and the rules; raises a `TupleError` if the operation does not fit the old value."""


def argument_type_error(code: str, field: str, expected: str) -> TupleError:
    """Return the error `ER_UPDATE_ARG_TYPE`: the type of the field or the argument does not fit the operation."""
    return TupleError(
        f"Argument type in operation '{code}' on field {field} does not match field type: expected {expected}",
        code=ER_UPDATE_ARG_TYPE,
    )


def read_int32(data: bytes, pos: int, rules: Rules) -> int | None:
    """Return a 32-bit integer (`mp_read_int32`); None for other values, and for encodings that the server refuses."""
    if KIND[data[pos]] not in (UINT, INT) or (data[pos] in (0xCF, 0xD3) and not rules.accepts_long_encodings):
        return None
    value, _ = read_integer(data, pos)
    return value if -(1 << 31) <= value < 1 << 31 else None


def read_number(data: bytes, pos: int) -> Number | None:
    """Return the number at `pos`; None if the value is not a number."""
    kind = KIND[data[pos]]
    if kind in (UINT, INT):
        value, _ = read_integer(data, pos)
        return Number(AS_INTEGER, value, is_signed=kind == INT)
    if kind == DOUBLE:
        return Number(AS_DOUBLE, struct.unpack_from(">d", data, pos + 1)[0])
    if kind == FLOAT:
        return Number(AS_FLOAT, struct.unpack_from(">f", data, pos + 1)[0])
    if kind == EXT and decimals.is_decimal(data, pos):
        return Number(AS_DECIMAL, decimals.read(data, pos))
    return None


def fits_integer(value: int) -> bool:
    """Return whether an integer fits MessagePack: -2^63 to 2^64 - 1."""
    return -(1 << 63) <= value < 1 << 64


def as_int64(value: int) -> int:
    """Return an integer sum as a server stores it: a sum that does not fit becomes its lowest 64 bits, read as signed.

    Source: `int96_extract_neg_int64` (`src/lib/core/int96.h`).
    """
    return value if fits_integer(value) else (value + (1 << 63)) % (1 << 64) - (1 << 63)


def read_scalar(data: bytes, pos: int) -> Scalar | None:
    """Return the number, the binary, or the bytes of the string at `pos`; None for any other value."""
    if KIND[data[pos]] in (STR, BIN):
        start, end = string_bounds(data, pos)
        return data[start:end] if KIND[data[pos]] == STR else Binary(data[start:end])
    return read_number(data, pos)


def encode(value: Scalar, as_double: bool) -> bytes:
    """Return the MessagePack of a result; `as_double` says that the format gives the field the type double."""
    if isinstance(value, bytes):
        return encode_string(value)
    if isinstance(value, Binary):
        return encode_binary(value.value)
    if isinstance(value.value, Decimal):
        return decimals.encode(value.value)
    if isinstance(value.value, int):
        return _encode_sum(value.value)
    if value.type == AS_FLOAT and not as_double:
        return struct.pack(">Bf", 0xCA, value.value)
    return struct.pack(">Bd", 0xCB, value.value)


def _encode_sum(value: int) -> bytes:
    """Return the encoding of an integer sum, as the server writes it even after an overflow."""
    if fits_integer(value):
        return encode_integer(value)
    # The server calls `mp_encode_int`, which expects a negative number and keeps five bits of any other.
    stored = as_int64(value)
    return encode_integer(stored) if stored < -0x20 else bytes((0xE0 | stored & 0xFF,))
