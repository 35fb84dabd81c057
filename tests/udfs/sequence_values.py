"""Values as MessagePack, each with a sort key for an independent comparison in plain Python.

A value is (raw, order): orders compare as Python tuples. Numbers are exact fractions; the encoding of a value
does not affect its order. Nothing of the project's code is used here.
"""

import math
import struct
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeAlias

import msgpack
import pyarrow as pa
from hypothesis import strategies as st

Value: TypeAlias = tuple[bytes, tuple[Any, ...]]

LOWEST: tuple[Any, ...] = (0,)
DIGITS = 38


def tuples_of(*rows: list[Value] | None) -> pa.Array:
    return pa.array([None if row is None else packed([raw for raw, _ in row]) for row in rows], pa.binary())


def packed(fields: list[bytes]) -> bytes:
    return bytes(msgpack.Packer().pack_array_header(len(fields)) + b"".join(fields))


def extension(code: int, content: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(code, content))
    return packed


def number(value: float | Fraction) -> tuple[Any, ...]:
    """Order among numbers: NaN, -inf, finite ones, inf."""
    if isinstance(value, float) and not math.isfinite(value):
        return (2, 0 if math.isnan(value) else (1 if value < 0 else 3), 0)
    return (2, 2, Fraction(value))


def integer(value: int, width: int = 0) -> Value:
    """Return an integer in the shortest form, or in one of `width` bytes."""
    if not width:
        return msgpack.packb(value), number(value)
    code = {1: "b", 2: "h", 4: "i", 8: "q"}[width] if value < 0 else {1: "B", 2: "H", 4: "I", 8: "Q"}[width]
    first = (0xD0 if value < 0 else 0xCC) + {1: 0, 2: 1, 4: 2, 8: 3}[width]
    return bytes([first]) + struct.pack(">" + code, value), number(value)


def double(value: float) -> Value:
    return b"\xcb" + struct.pack(">d", value), number(value)


def single(value: float) -> Value:
    return b"\xca" + struct.pack(">f", value), number(struct.unpack(">f", struct.pack(">f", value))[0])


def decimal(coefficient: int, exponent: int, negative: bool = False) -> Value:
    """Return MP_DECIMAL: the scale, packed digits, the sign (`src/lib/core/mp_decimal.c`)."""
    nibbles = str(coefficient) + ("d" if negative else "c")
    content = msgpack.packb(-exponent) + bytes.fromhex("0" * (len(nibbles) % 2) + nibbles)
    value = coefficient * Fraction(10) ** exponent
    return extension(1, content), number(-value if negative else value)


def text(value: bytes) -> Value:
    packed = msgpack.packb(value.decode("latin-1").encode("latin-1"), use_bin_type=False)
    return packed, (3, value)


def binary(value: bytes) -> Value:
    return msgpack.packb(value), (4, value)


def boolean(value: bool) -> Value:
    return msgpack.packb(value), (1, value)


def uuid(value: bytes) -> Value:
    return extension(2, value), (5, value)


def datetime(seconds: int, nanoseconds: int, zone: int) -> Value:
    """Return MP_DATETIME (`src/lib/core/mp_datetime.c`); the zone is no part of the instant."""
    content = struct.pack("<q", seconds)
    if nanoseconds or zone:
        content += struct.pack("<ihh", nanoseconds, zone, 0)
    return extension(4, content), (6, seconds, nanoseconds)


UNORDERED = [
    b"\xc0",
    b"\x90",
    b"\x92\x01\xa1a",
    b"\x81\xa1a\x02",
    extension(3, b"\x80"),
    extension(6, b"\x00"),
    extension(77, b"abc"),
    extension(1, b""),
    extension(1, b"\x00"),
    extension(1, b"\x00\x1f"[:1] + b"\xaa\x0c"),
    extension(1, b"\x00" + bytes.fromhex("1" * 39 + "c")),
    extension(2, b"short"),
    extension(4, b"\x00" * 7),
    extension(4, struct.pack("<qihh", 0, 10**9, 0, 0)),
]
"""What no index orders, and extensions whose content is damaged."""

_EDGES = [0, 1, 2**31, 2**49, 10**15, 2**53, 10**18, 2**60, 2**63, 10**19, 2**64]
_CENTRES = st.sampled_from(_EDGES) | st.integers(0, 64).map(lambda power: 2**power)
INTEGERS = st.builds(
    lambda sign, centre, near: min(max(sign * centre + near, -(2**63)), 2**64 - 1),
    st.sampled_from([-1, 1]),
    _CENTRES,
    st.integers(-3, 3),
)


def _near(value: float, digits: int, step: int) -> Value:
    """Return a decimal of `digits` digits, `step` units in its last place away from a finite double."""
    with localcontext(prec=digits):
        sign, coefficient, exponent = (+Decimal(value)).as_tuple()
    moved = int("".join(map(str, coefficient))) * 10 ** (digits - len(coefficient)) + step
    shift = digits - len(coefficient)
    return decimal(min(abs(moved), 10**DIGITS - 1), int(exponent) - shift, negative=bool(sign) != (moved < 0))


DOUBLES = (
    st.floats()
    | INTEGERS.map(float)
    | st.sampled_from([0.1, 0.3, 1e22, 1e23, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308])
)
FINITE = DOUBLES.filter(math.isfinite)
DECIMALS = (
    st.builds(_near, FINITE, st.integers(15, DIGITS), st.integers(-2, 2))
    | st.builds(lambda value: decimal(abs(value), 0, value < 0), INTEGERS)
    | st.builds(lambda value, zeros: decimal(abs(value) * 10**zeros, -zeros), INTEGERS, st.integers(0, 17))
    | st.builds(decimal, st.integers(0, 10**DIGITS - 1), st.integers(-360, 330), st.booleans())
    | st.builds(decimal, st.integers(0, 99), st.integers(-2, 2) | st.just(700), st.booleans())
)
NUMBERS = INTEGERS.map(integer) | DOUBLES.map(double) | st.floats(width=32).map(single) | DECIMALS


def _cluster(value: float) -> list[Value]:
    """Return numbers that a rounded comparison would confuse: a double, its neighbours, close decimals and integers."""
    around = [value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
    found = [double(one) for one in around]
    found += [_near(value, digits, step) for digits in (15, 17, 30, DIGITS) for step in (-1, 0, 1)]
    if -(2.0**63) < value < 2.0**64 - 4096:
        found += [integer(int(value) + step) for step in (-1, 0, 1) if -(2**63) <= int(value) + step < 2**64]
    return found


CLUSTERS = FINITE.map(_cluster)
SHORT_BYTES = st.lists(st.sampled_from([0, 1, 2, 97, 255]), max_size=4).map(bytes)
VALUES = (
    NUMBERS
    | st.sampled_from(UNORDERED).map(lambda raw: (raw, LOWEST))
    | st.booleans().map(boolean)
    | SHORT_BYTES.map(text)
    | SHORT_BYTES.map(binary)
    | st.binary(min_size=16, max_size=16).map(uuid)
    | st.builds(
        datetime,
        st.integers(-2, 2) | st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2) | st.integers(0, 10**9 - 1),
        st.sampled_from([0, 180]),
    )
)
"""Any value, dense where values of different types meet."""
