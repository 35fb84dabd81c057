"""Rows whose MessagePack is made by hand: keys written in several ways, bytes that Lua cannot write.

Each step is one request: its type, space, and body as bytes. Not here: who sends them.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from msgpack import ExtType, Packer

from tests.live.client import pack

INSERT, REPLACE, UPDATE, DELETE, UPSERT = 2, 3, 4, 5, 9
KEY_SPACE, KEY_INDEX_BASE, KEY_KEY, KEY_TUPLE, KEY_OPERATIONS = 0x10, 0x15, 0x20, 0x21, 0x28
DECIMAL, UUID_EXT = 1, 2


@dataclass(frozen=True)
class Request:
    """One request to a space that is named, not numbered: ids differ between the replicasets."""

    type: int
    space: str
    body: tuple[tuple[int, bytes], ...]

    def encode(self, space_id: int) -> bytes:
        """Return the request's body for a replicaset in which the space has this id."""
        items = ((KEY_SPACE, pack(space_id)), *self.body)
        return bytes([0x80 | len(items)]) + b"".join(pack(key) + value for key, value in items)


def array(*items: Any) -> bytes:
    """Return a MessagePack array; items that are `Raw` go in as they are."""
    header: bytes = Packer().pack_array_header(len(items))
    return header + b"".join(i.data if isinstance(i, Raw) else pack(i) for i in items)


@dataclass(frozen=True)
class Raw:
    """MessagePack as it shall stand in the tuple."""

    data: bytes


def raw(hexadecimal: str) -> Raw:
    return Raw(bytes.fromhex(hexadecimal))


def double(value: float) -> Raw:
    return Raw(b"\xcb" + struct.pack(">d", value))


def decimal(digits: str, scale: int, *, negative: bool = False) -> ExtType:
    """Return Tarantool's decimal: the scale, then packed BCD, the sign last (`decimal.c`)."""
    nibbles = digits + ("d" if negative else "c")
    return ExtType(DECIMAL, pack(scale) + bytes.fromhex(nibbles if len(nibbles) % 2 == 0 else "0" + nibbles))


def uuid(number: int) -> ExtType:
    """Return Tarantool's uuid: 16 bytes."""
    return ExtType(UUID_EXT, UUID(int=(0x0E << 120) | (4 << 76) | (8 << 60) | number).bytes)


def insert(space: str, *fields: Any) -> Request:
    return Request(INSERT, space, ((KEY_TUPLE, array(*fields)),))


def replace(space: str, *fields: Any) -> Request:
    return Request(REPLACE, space, ((KEY_TUPLE, array(*fields)),))


def delete(space: str, *key: Any) -> Request:
    return Request(DELETE, space, ((KEY_KEY, array(*key)),))


def update(space: str, key: list[Any], *operations: bytes) -> Request:
    """Return an UPDATE by key; field numbers count from 1."""
    body = ((KEY_INDEX_BASE, pack(1)), (KEY_KEY, array(*key)), (KEY_TUPLE, array(*map(Raw, operations))))
    return Request(UPDATE, space, body)


def types() -> Iterator[Request]:
    """Yield rows with each field type of 2.6, at its ends and written in unusual ways."""
    least: tuple[Any, ...] = (0, "", 0, double(0.0), 0, False, b"", True, decimal("0", 0), [], {}, None, None)
    yield insert("types", uuid(1), *least)
    top, nines = 2**64 - 1, decimal("9" * 38, 0)
    most = (top, "текст", top, double(1.7976931348623157e308), top, True, b"\x00\xff", top, nines)
    yield insert("types", uuid(2), *most, [1, "a", [None]], {"k": {"n": [1, {}]}}, b"bin", "all")
    low, tiny = -(2**63), decimal("123456789", 38, negative=True)
    negative = (1, "s", low, double(-0.0), low, True, b"v", "scalar text", tiny)
    yield insert("types", uuid(3), *negative, [uuid(9), decimal("15", 1)], {1: "int key", -2: 3.5}, uuid(4))
    long_form: tuple[Any, ...] = (raw("cd0001"), raw("d9026162"), raw("ca3f000000"), double(float("inf")))
    long_form += (raw("d3ffffffffffffffff"), False, raw("c5000161"), -1.5, decimal("1", -2))
    yield insert(
        "types", uuid(4), *long_form, raw("dc000101"), raw("de00010102"), raw("cf0000000000000005"), None
    )
    middle = (2**63, "x" * 300, 2**53 + 1, double(5e-324), 2**63, True, b"b" * 300, b"scalar bytes")
    many = {f"key {i}": i for i in range(20)}
    beyond = ("beyond", 2)
    yield insert(
        "types",
        uuid(5),
        *middle,
        decimal("100", 2),
        list(range(40)),
        many,
        {"any": [True, 1.5]},
        "m",
        *beyond,
    )
    three = (array("+", "number", 1), array("-", 6, 1), array("=", -1, {3: b"\x01"}))
    yield update("types", [uuid(5)], *three)
    yield replace(
        "types", uuid(6), 7, "short", 1.5, double(2.0), 3, True, b"1", False, decimal("25", 1), [], {}
    )
    yield delete("types", uuid(6))
    yield delete("types", uuid(77))


def equal_keys() -> Iterator[Request]:
    """Yield keys that compare as equal though their bytes differ."""
    yield insert("keys_number", 2, "02")
    yield replace("keys_number", raw("cd0002"), "cd 00 02")
    yield update("keys_number", [double(2.0)], array("=", 2, "updated by a double"))
    yield insert("keys_number", double(3.0), "a double first")
    yield replace("keys_number", 3, "then 03")
    yield insert("keys_number", double(2.5), "2.5")
    yield replace("keys_number", raw("ca40200000"), "2.5 as a float")
    yield insert("keys_number", -1, "ff")
    yield replace("keys_number", raw("d1ffff"), "d1 ff ff")
    yield replace("keys_number", decimal("40", 1), "decimal 4.0")
    yield replace("keys_number", decimal("400", 2), "decimal 4.00")
    yield delete("keys_number", raw("ce00000003"))
    yield insert("keys_number", 2**53 + 1, "2^53 + 1")
    yield insert("keys_number", double(2.0**53), "2^53 as a double")
    yield insert("keys_number", 2**64 - 1, "2^64 - 1")
    yield insert("keys_number", double(2.0**64), "2^64 as a double")
    yield insert("keys_number", double(-0.0), "-0.0")
    yield replace("keys_number", 0, "0")
    yield insert("keys_integer", -5, "fb")
    yield replace("keys_integer", raw("d3fffffffffffffffb"), "d3 .. fb")
    yield replace("keys_integer", raw("cf0000000000000007"), "cf .. 07")
    yield update("keys_integer", [7], array("=", "v", "updated by 07"))
    yield replace("keys_integer", 2**64 - 1, "largest")
    yield delete("keys_integer", raw("d0fb"))
    yield insert("keys_decimal", decimal("10", 1), "1.0")
    yield replace("keys_decimal", decimal("1", 0), "1")
    yield insert("keys_decimal", decimal("1", 38), "1e-38")
    yield insert("keys_varbinary", b"", "empty")
    yield insert("keys_varbinary", raw("c5000161"), "a, long form")
    yield replace("keys_varbinary", b"a", "a")
    for key in (True, 1, "1", b"1", decimal("15", 1)):
        yield replace("keys_scalar", key, f"scalar {type(key).__name__}")
    yield replace("keys_scalar", double(1.0), "1 as a double")
    yield insert("keys_two", "v", "b", 1)
    yield replace("keys_two", "w", raw("d90162"), 1)
    yield insert("keys_two", "x", "c", 1)
    yield insert("keys_unsigned", 1, "01")
    yield replace("keys_unsigned", raw("cd0001"), "cd 00 01: to an unsigned part it is another key")
    yield update("keys_unsigned", [raw("cd0001")], array("=", 2, "cd 00 01, updated"))
    yield insert("keys_unsigned", 2, "02")
    yield delete("keys_unsigned", raw("cc02"))
    yield insert("keys_path", {"id": 5, "x": [1]}, "by a path")
    yield replace("keys_path", {"x": [2], "id": 5}, "the same key elsewhere in the map")
    yield insert("keys_path", {"id": 6}, "another")
    yield update("keys_path", [6], array("=", "doc.x", "set by path"))


def odd_values() -> Iterator[Request]:
    """Yield strings that are not UTF-8, maps with any keys, tuples shorter and longer than the format."""
    yield insert("raw", 1, "\udcff\udcfe\udc80", "bytes in a string")
    yield insert("raw", 2, "a\x00b", {1: "one", "1": "text one", 1.5: True, b"\x01": None})
    yield insert("raw", 3, "\udced\udca0\udc80", {"\udcff": "\udcfe"})
    yield insert("raw", 4, "a map with one key twice", raw("82a16b01a16b02"))
    yield insert("raw", 5, "unknown extension", ExtType(99, b"\x01\x02\x03"))
    yield insert("raw", 6, "short")
    yield insert("raw", 7, "long", None, 1, "two", {"three": 3}, None)
    yield Request(
        INSERT, "raw", ((KEY_TUPLE, b"\xdd\x00\x00\x00\x03" + pack(8) + pack("array 32") + pack(1)),)
    )
    yield insert("raw", 9, "not a number", double(float("nan")))
    yield insert("raw", 10, "deep", [[[[[[[[{"a": [{"b": {1: [2]}}]}]]]]]]]])
    yield update("raw", [1], array("=", 3, "\udcf0("), array("=", 4, [raw("cc01").data]))
    yield update("raw", [8], array("+", 3, 1))
    yield insert("my-space", 1, "a field with a blank")
    yield insert("a.b", 1, "a field like a column of the aggregator's")
    yield insert("Счета", 1, "id beside Id", "поле")
    yield replace("sqlt", 1, "beside SQLT")
    yield update("my-space", [1], array("=", "a b", "by its name"), array("=", "x.y", "no path but a name"))
    yield update("Счета", [1], array("=", "имя", "по имени"), array("=", "id", "by the lower one"))


def floats() -> Iterator[Request]:
    """Yield arithmetic whose result is written in four bytes, in eight, or as a decimal."""
    yield insert("big", 10, 0, raw("ca3f000000"), 0, double(0.5), decimal("15", 1))
    yield update("big", [10], array("+", "n", 1), array("+", "d", 1), array("+", "x", double(0.1)))
    yield update("big", [10], array("+", "n", raw("ca3dcccccd")), array("-", "d", double(0.1)))
    yield update("big", [10], array("+", "n", double(0.1)), array("-", "x", raw("ca3dcccccd")))
    yield insert("big", 11, 0, double(1e300), 0, double(1e300), decimal("1", 38))
    yield update(
        "big", [11], array("-", "n", double(1e300)), array("-", "d", double(1e300)), array("-", "x", 1)
    )


def of_b() -> Iterator[Request]:
    """Yield what only B writes: keys that A has too, in other bytes, so that they meet as equal ones."""
    yield replace("keys_number", double(2.0), "B writes a double")
    yield replace("keys_integer", 7, "B writes 07")
    yield replace("keys_decimal", decimal("1000", 3), "B writes 1.000")
    yield replace("keys_scalar", decimal("10", 1), "B writes a decimal 1.0")
    yield replace("keys_two", "B writes a long string", raw("da000162"), 1)
    yield replace("keys_path", Raw(b"\x81\xa2id\xcd\x00\x05"), "B writes cd 00 05")


def requests(side: str) -> Iterator[Request]:
    """Yield all that one side is sent, in this order."""
    yield from types()
    yield from equal_keys()
    yield from odd_values()
    yield from floats()
    yield from of_b() if side == "B" else ()
