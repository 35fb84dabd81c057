"""Rows whose MessagePack is made by hand: keys written in several ways, bytes that Lua cannot write.

Each step is one request: its type, space, and body as bytes. Not here: who sends them.
"""

from __future__ import annotations

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
    """Return MessagePack given in hexadecimal."""
    return Raw(bytes.fromhex(hexadecimal))


def double(value: float) -> Raw:
    """Return a value as a MessagePack double."""
    return Raw(b"\xcb" + struct.pack(">d", value))


def decimal(digits: str, scale: int, *, negative: bool = False) -> ExtType:
    """Return Tarantool's decimal: the scale, then packed BCD whose last half byte is the sign (`decimal.c`)."""
    nibbles = digits + ("d" if negative else "c")
    return ExtType(DECIMAL, pack(scale) + bytes.fromhex(nibbles if len(nibbles) % 2 == 0 else "0" + nibbles))


def uuid(number: int) -> ExtType:
    """Return Tarantool's uuid: 16 bytes."""
    return ExtType(UUID_EXT, UUID(int=(0x0E << 120) | (4 << 76) | (8 << 60) | number).bytes)


def insert(space: str, *fields: Any) -> Request:
    """Return an INSERT of a tuple."""
    return Request(INSERT, space, ((KEY_TUPLE, array(*fields)),))


def replace(space: str, *fields: Any) -> Request:
    """Return a REPLACE of a tuple."""
    return Request(REPLACE, space, ((KEY_TUPLE, array(*fields)),))


def delete(space: str, *key: Any) -> Request:
    """Return a DELETE by key."""
    return Request(DELETE, space, ((KEY_KEY, array(*key)),))


def update(space: str, key: list[Any], *operations: bytes) -> Request:
    """Return an UPDATE by key; field numbers count from 1."""
    body = ((KEY_INDEX_BASE, pack(1)), (KEY_KEY, array(*key)), (KEY_TUPLE, array(*map(Raw, operations))))
    return Request(UPDATE, space, body)


def types() -> Iterator[Request]:
    """Rows with each field type of 2.6, at its ends and written in unusual ways."""
    yield insert(
        "types", uuid(1), 0, "", 0, double(0.0), 0, False, b"", True, decimal("0", 0), [], {}, None, None
    )
    yield insert(
        "types", uuid(2), 2**64 - 1, "текст", 2**64 - 1, double(1.7976931348623157e308), 2**64 - 1, True,
        b"\x00\xff", 2**64 - 1, decimal("9" * 38, 0), [1, "a", [None]], {"k": {"n": [1, {}]}}, b"bin", "all",
    )  # fmt: skip
    yield insert(
        "types", uuid(3), 1, "s", -(2**63), double(-0.0), -(2**63), True, b"v", "scalar text",
        decimal("123456789", 38, negative=True), [uuid(9), decimal("15", 1)], {1: "int key", -2: 3.5}, uuid(4),
    )  # fmt: skip
    yield insert(
        "types", uuid(4), raw("cd0001"), raw("d9026162"), raw("ca3f000000"), double(float("inf")), raw("d3ffffffffffffffff"),
        False, raw("c5000161"), -1.5, decimal("1", -2), raw("dc000101"), raw("de00010102"), raw("cf0000000000000005"), None,
    )  # fmt: skip
    yield insert(
        "types", uuid(5), 2**63, "x" * 300, 2**53 + 1, double(5e-324), 2**63, True, b"b" * 300, b"scalar bytes",
        decimal("100", 2), list(range(40)), {f"key {i}": i for i in range(20)}, {"any": [True, None, 1.5]}, "m", "beyond", 2,
    )  # fmt: skip
    yield update("types", [uuid(5)], array("+", "number", 1), array("-", 6, 1), array("=", -1, {3: b"\x01"}))
    yield replace(
        "types", uuid(6), 7, "short", 1.5, double(2.0), 3, True, b"1", False, decimal("25", 1), [], {}
    )
    yield delete("types", uuid(6))
    yield delete("types", uuid(77))


def equal_keys() -> Iterator[Request]:
    """Keys that compare as equal though their bytes differ."""
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
    yield replace("keys_two", "w", raw("d90162"), raw("cc01"))
    yield insert("keys_two", "x", "c", 1)
    yield insert("keys_path", {"id": 5, "x": [1]}, "by a path")
    yield replace("keys_path", {"x": [2], "id": 5}, "the same key elsewhere in the map")
    yield insert("keys_path", {"id": 6}, "another")
    yield update("keys_path", [6], array("=", "doc.x", "set by path"))


def odd_values() -> Iterator[Request]:
    """Strings that are not UTF-8, maps with any keys, tuples shorter and longer than the format."""
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
    yield update("my-space", [1], array("=", "a b", "by its name"))
    yield update("Счета", [1], array("=", "имя", "по имени"), array("=", "id", "by the lower one"))


def requests() -> Iterator[Request]:
    """All of them, in the order in which they are sent."""
    yield from types()
    yield from equal_keys()
    yield from odd_values()
