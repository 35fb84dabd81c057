"""Compares canonical keys with a real Tarantool: the same encodings must be the same key.

Every value is stored in an index of every type and looked up by every other one. Bytes cannot express an equality that
is not transitive (of a double and a decimal that differ beyond the digits of `decimal_from_double`): an independent
rule finds such pairs, and only those are left out.
"""

import itertools
import math
import struct
from decimal import Decimal
from typing import Any

import msgpack
import pytest

from schemas.field_types import FIELD_TYPES
from schemas.space import KeyPart, Space
from tests.live.client import Connection, TarantoolError
from tests.live.server import Tarantool
from tests.udfs.messages import EXACT, binaries, decimal_ext, decimal_of, pack, uuid_ext
from udfs.keys.keys import canonical_keys

pytestmark = pytest.mark.live

SELECT, REPLACE = 1, 3
INTEGERS = [0, 1, 2, 127, 128, 2**53, 2**53 + 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1, -1, -32, -33, -(2**63)]
LONGER = (b"\xcd\x00\x02", bytes([0xCF]) + bytes(7) + b"\x02", b"\xd3" + bytes(7) + b"\x02", b"\xd1\xff\xff")
REALS = [
    0.0,
    -0.0,
    1.0,
    2.0,
    -1.0,
    0.1,
    0.5,
    1 / 3,
    0.1 + 0.2,
    2.0**53,
    2.0**60,
    2.0**63,
    2.0**64,
    -(2.0**63),
]
REALS += [
    1e20,
    1e22,
    1.5e37,
    1e38,
    1e300,
    1e-10,
    1.1e-23,
    1e-38,
    5e-324,
    math.inf,
    -math.inf,
    23.42,
    1e15 + 0.5,
]
SINGLES = [1.0, 2.5, 0.1, -3.0]
DECIMALS = [
    "0",
    "-0",
    "1",
    "1.00",
    "0.1",
    "0.10",
    "0.5",
    "0.3",
    "2",
    "-1",
    "1E+20",
    "9007199254740993",
    "1E+22",
]
DECIMALS += ["9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775808"]
DECIMALS += ["1.5E+37", "0.333333333333333", "1E-10", "1.1E-23", "1E-38", "23.42", "1152921504606846976"]
DECIMALS += ["99999999999999999999999999999999999999", "1000000000000000.5"]
ONE_UUID, OTHER_UUID = "64d22e4d-ac92-4a23-899a-e59f34af5479", "64d22e4d-ac92-4a23-899a-e59f34af547a"

NANS = tuple(
    b"\xcb" + bytes.fromhex(bits) for bits in ("7ff8000000000000", "fff8000000000001", "7ff0000000000001")
)

VALUES: list[bytes] = [
    *map(pack, INTEGERS),
    *LONGER,
    *NANS,
    *map(pack, REALS),
    *(b"\xca" + struct.pack(">f", single) for single in SINGLES),
    *(pack(decimal_ext(text)) for text in DECIMALS),
    *map(pack, ("", "a", "A", "ab", "é", b"", b"a", True, False)),
    b"\xd9\x01a",
    b"\xc5\x00\x01a",
    pack(uuid_ext(ONE_UUID)),
    pack(uuid_ext(OTHER_UUID)),
    b"\xc7\x10\x02" + uuid_ext(ONE_UUID).data,
]
TYPES = tuple(name for name, one in FIELD_TYPES.items() if one.is_indexable and name != "datetime")
REFUSED = {pack(decimal_ext(str(value))) for value in (2**60, 2**63, -(2**63))}
"""Decimals that are one key with an integer, and not with the double that is one key with the same integer."""

CHANGED = ("unsigned", "double")
"""Since 2.11 the server compares these otherwise: an unsigned key in more bytes than it needs is the same key."""

MAKE = """
local space = box.schema.space.create('keys_' .. ..., {temporary = true})
space:create_index('pk', {parts = {{1, ...}}})
return space.id
"""


def by_value(real: float, exact: Decimal) -> bool:
    """Return whether a double equals a decimal: an integer exactly, any other by its 15 digits."""
    if not math.isfinite(real):
        return False
    if real.is_integer() and abs(real) < 2.0**64:
        return EXACT.create_decimal(real) == exact
    text = f"{real:.15g}"
    return float(text) == real and Decimal(text) == exact


def expected(one: Any, other: Any, theirs: bool) -> bool:
    """Return whether two values are one key by the server, except where its equality is not transitive."""
    pair = sorted((one, other), key=lambda value: isinstance(value, msgpack.ExtType))
    if not isinstance(pair[0], float) or not isinstance(pair[1], msgpack.ExtType) or pair[1].code != 1:
        return theirs
    exact = decimal_of(pair[1])
    if math.isfinite(pair[0]) and abs(pair[0]) >= 1e-38:
        assert theirs == (Decimal(f"{pair[0]:.15g}") == exact)
    return by_value(pair[0], exact)


def put(connection: Connection, space: int, value: bytes) -> None:
    connection.request(REPLACE, b"\x82\x10" + pack(space) + b"\x21\x91" + value)


def found(connection: Connection, space: int, values: list[bytes]) -> list[bool]:
    """Look all values up at once; return which ones the server finds."""
    for value in values:
        head = b"\x86\x10" + pack(space) + b"\x11\x00\x12\x01\x13\x00\x14\x00\x20\x91"
        connection.send_raw(SELECT, head + value)
    return [bool(connection.receive_raw()[0x30]) for _ in values]


def stored(connection: Connection, space: int) -> list[bytes]:
    """Return the values that the index accepts."""
    taken = []
    for value in VALUES:
        try:
            put(connection, space, value)
        except TarantoolError:
            continue
        taken.append(value)
    return taken


@pytest.mark.of_2_6
def test_nan_is_equal_to_all_doubles_in_a_double_key(tarantool_oracle: Tarantool) -> None:
    """NaN is left out elsewhere, because bytes cannot express this equality."""
    connection = tarantool_oracle.connection
    number = connection.eval(MAKE, "double")
    try:
        put(connection, number, NANS[0])
        assert found(connection, number, [pack(1.0), pack(2.0)]) == [True, True]
    finally:
        connection.eval("box.space[...]:drop()", number)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.of_2_6) if kind in CHANGED else kind for kind in TYPES]
)
def test_keys_equal_for_tarantool_have_equal_bytes(kind: str, tarantool_oracle: Tarantool) -> None:
    connection = tarantool_oracle.connection
    number = connection.eval(MAKE, kind)
    try:
        taken = [value for value in stored(connection, number) if kind != "double" or value not in NANS]
        assert len(taken) >= 2
        space = Space(number, 1, kind, "memtx", (), (KeyPart(0, kind),))
        mine = canonical_keys(binaries([b"\x91" + value for value in taken]), [space])
        keys = {value: key for value, key in zip(taken, mine.field("key").to_pylist(), strict=True) if key}
        assert set(taken) - set(keys) == (REFUSED if kind in ("number", "scalar") else set())
        taken = [value for value in taken if value in keys]
        for one in taken:
            connection.eval("box.space[...]:truncate()", number)
            put(connection, number, one)
            for other, theirs in zip(taken, found(connection, number, taken), strict=True):
                same = expected(msgpack.unpackb(one), msgpack.unpackb(other), theirs)
                assert (keys[one] == keys[other]) == same, (one.hex(), other.hex(), theirs)
    finally:
        connection.eval("box.space[...]:drop()", number)


def test_a_key_of_parts_equals_the_key_of_its_tuple(tarantool_oracle: Tarantool) -> None:
    """The server itself decides which tuple a DELETE's key names, by field numbers and JSON paths."""
    connection = tarantool_oracle.connection
    parts = (KeyPart(2, "string", ".city[2].x"), KeyPart(0, "number"), KeyPart(1, "unsigned"))
    definition = [{"field": part.field + 1, "type": part.type} for part in parts]
    definition[0]["path"] = parts[0].path
    create = "box.schema.space.create('parts', {temporary = true}):create_index('pk', {parts = ...})"
    connection.eval(create, definition)
    try:
        rows: list[list[Any]] = [
            [value, number, {"a": 1, "city": [0, {"x": text}]}]
            for value, number, text in itertools.product((1, 2.5), (7, 300), ("x", "yy"))
        ]
        keys = [[row[2]["city"][1]["x"], float(row[0]), row[1]] for row in rows]
        for row in rows:
            connection.eval("box.space.parts:insert(...)", row)
        space = Space(1, 1, "parts", "memtx", (), parts)
        of_tuples = canonical_keys(binaries([pack(row) for row in rows]), [space]).to_pylist()
        of_keys = canonical_keys(binaries([pack(key) for key in keys]), [space], from_tuple=False).to_pylist()
        assert of_tuples == of_keys
        assert len({row["key"] for row in of_keys}) == len(rows)
        for row, key in zip(rows, keys, strict=True):
            assert connection.eval("return box.space.parts:delete(...)", key) == row
    finally:
        connection.eval("box.space.parts:drop()")
