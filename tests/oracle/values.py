"""What arithmetic, bit operations and splices make of one value: exact integers, floats, decimals, strings.

Source: `src/box/xrow_update_field.c` (`xrow_update_arith_make`, `xrow_update_op_do_splice`),
`src/lib/core/decimal.c`.
"""

import struct
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from typing import Any

import msgpack

from tests.oracle import mp
from tests.oracle.keys import DECIMAL_EXT, decimal_of, decimal_raw

NARROW = Context(prec=38, rounding=ROUND_HALF_UP, Emax=37, Emin=-1, clamp=1)
WIDE = Context(prec=76, rounding=ROUND_HALF_UP, Emax=999_999, Emin=-999_999)
"""As `decimal_context`: 38 digits, absolute value below 10^38, at most 38 digits after the point; then 76 digits."""

WIDE_SINCE = (3, 5)

DOUBLE_DIGITS = 15
"""A double becomes a decimal with this many digits (`decimal_from_double`: `DBL_DIG`)."""

FLOAT_MAX = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]
SPLICES_BINARY_SINCE = (3, 0)


class OperationError(Exception):
    """The operation cannot be done: an UPDATE would fail as a whole, an UPSERT passes it over."""


def scalar(
    raw: bytes, opcode: str, arguments: list[bytes], index_base: int, version: tuple[int, int]
) -> bytes:
    """Return what one operation makes of one value.

    Args:
        raw: The value's MessagePack.
        opcode: One of `+ - & | ^ :`.
        arguments: The operation's arguments, each as MessagePack.
        index_base: What a splice counts the first byte as.
        version: The server's.
    """
    if opcode == ":":
        return _splice(raw, [mp.decode(one) for one in arguments], index_base, version)
    if opcode in ("+", "-"):
        return _arithmetic(raw, arguments[0], 1 if opcode == "+" else -1, version)
    if opcode not in ("&", "|", "^"):
        raise OperationError(f"unknown operation {opcode}")
    left, right = mp.decode(raw), mp.decode(arguments[0])
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in (left, right)):
        raise OperationError("a bit operation takes unsigned integers")
    return mp.encode({"&": left & right, "|": left | right, "^": left ^ right}[opcode])


def _splice(raw: bytes, arguments: list[Any], index_base: int, version: tuple[int, int]) -> bytes:
    value = mp.decode(raw)
    if isinstance(value, bytes) and version >= SPLICES_BINARY_SINCE:
        return mp.encode(_spliced(value, _bytes(arguments), index_base))
    if not isinstance(value, str):
        raise OperationError("a splice takes a string")
    made = _spliced(value.encode(errors="surrogateescape"), _bytes(arguments), index_base)
    return mp.encode(made.decode(errors="surrogateescape"))


def _bytes(arguments: list[Any]) -> tuple[int, int, bytes]:
    offset, cut, paste = arguments
    return offset, cut, paste if isinstance(paste, bytes) else paste.encode(errors="surrogateescape")


def _spliced(data: bytes, arguments: tuple[int, int, bytes], index_base: int) -> bytes:
    offset, cut, paste = arguments
    offset = offset + len(data) + 1 if offset < 0 else min(offset - index_base, len(data))
    if offset < 0:
        raise OperationError("the offset is out of bound")
    rest = len(data) - offset
    cut = max(0, cut + rest) if cut < 0 else min(cut, rest)
    return data[:offset] + paste + data[offset + cut :]


def _arithmetic(left_raw: bytes, right_raw: bytes, sign: int, version: tuple[int, int]) -> bytes:
    left, right = _number(left_raw), _number(right_raw)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        context = WIDE if version >= WIDE_SINCE else NARROW
        return _decimal_sum(_as_decimal(left), _as_decimal(right), sign, context)
    if isinstance(left, float) or isinstance(right, float):
        return _float(float(left) + sign * float(right))
    result = left + sign * right
    if not -(2**63) <= result < 2**64:
        raise OperationError("integer overflow")
    return mp.encode(result)


def _float(value: float) -> bytes:
    """Return four bytes where they lose nothing, else eight; infinities and NaN take eight."""
    if abs(value) <= FLOAT_MAX:
        short = struct.pack(">f", value)
        if struct.unpack(">f", short)[0] == value:
            return b"\xca" + short
    return mp.encode(value)


def _number(raw: bytes) -> int | float | Decimal:
    value = mp.decode(raw)
    if isinstance(value, msgpack.ExtType) and value.code == DECIMAL_EXT:
        return decimal_of(value.data)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise OperationError("arithmetic takes numbers")


def _as_decimal(value: float | Decimal) -> Decimal:
    return Decimal(f"{value:.{DOUBLE_DIGITS}g}") if isinstance(value, float) else Decimal(value)


def _decimal_sum(left: Decimal, right: Decimal, sign: int, context: Context) -> bytes:
    try:
        total = context.add(left, right) if sign > 0 else context.subtract(left, right)
    except DecimalException as error:
        raise OperationError("decimal overflow") from error
    return decimal_raw(total)
