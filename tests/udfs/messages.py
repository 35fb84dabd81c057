"""Writes and reads MessagePack as Tarantool does, without the kernels under test.

Extensions are built and taken apart with Python's `decimal`, `uuid` and `struct`; the rest is the msgpack
library's.
"""

import decimal
import struct
import uuid
from typing import Any

import msgpack
import pyarrow as pa

EXACT = decimal.Context(prec=400, Emin=-99999, Emax=99999)


def pack(value: Any) -> bytes:
    """Return a value's shortest MessagePack; str may hold surrogates for bytes that are not UTF-8."""
    packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    return packed


def binaries(rows: list[bytes | None]) -> pa.Array:
    """Return an Arrow column of tuples."""
    return pa.array(rows, pa.binary())


def decimal_ext(text: str | decimal.Decimal) -> msgpack.ExtType:
    """Return an MP_DECIMAL with exactly the digits and the exponent of the text."""
    sign, digits, exponent = decimal.Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    nibbles = "".join(map(str, digits)) + ("d" if sign else "c")
    return msgpack.ExtType(1, pack(-exponent) + bytes.fromhex(nibbles.zfill(len(nibbles) + len(nibbles) % 2)))


def uuid_ext(text: str) -> msgpack.ExtType:
    return msgpack.ExtType(2, uuid.UUID(text).bytes)


def datetime_ext(seconds: int, nanoseconds: int = 0, offset: int = 0, zone: int = 0) -> msgpack.ExtType:
    """Return an MP_DATETIME, short where everything but the seconds is 0."""
    tail = struct.pack("<ihh", nanoseconds, offset, zone)
    return msgpack.ExtType(4, struct.pack("<q", seconds) + (tail if any(tail) else b""))


INTERVAL_UNITS = ("years", "months", "weeks", "days", "hours", "minutes", "seconds", "nanoseconds")


def interval_ext(**amounts: int) -> msgpack.ExtType:
    """Return an MP_INTERVAL of amounts by unit, and `adjust`."""
    names = (*INTERVAL_UNITS, "adjust")
    pairs = [pack(names.index(name)) + pack(amount) for name, amount in amounts.items()]
    return msgpack.ExtType(6, bytes([len(pairs)]) + b"".join(pairs))


def unpack(raw: bytes) -> Any:
    """Decode a value; maps become `Pairs`, extensions `msgpack.ExtType`."""
    unpacker = msgpack.Unpacker(
        object_pairs_hook=Pairs,
        strict_map_key=False,
        raw=False,
        unicode_errors="surrogateescape",
        max_buffer_size=0,
    )
    unpacker.feed(raw)
    return unpacker.unpack()


class Pairs(list[tuple[Any, Any]]):
    """The pairs of a map in their order, repeated keys included."""


def decimal_of(extension: msgpack.ExtType) -> decimal.Decimal:
    """Return an MP_DECIMAL's value with its digits."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(extension.data)
    scale = unpacker.unpack()
    nibbles = extension.data[unpacker.tell() :].hex()
    digits = tuple(int(nibble) for nibble in nibbles[:-1])
    return decimal.Decimal((int(nibbles[-1] in "bd"), digits, -scale))
