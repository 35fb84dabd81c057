"""Primary keys as values that are equal where the server's index says so, however they are written.

Numbers compare by value over integers, floats and decimals; a scalar key also by class (booleans are no
numbers, strings no binaries). Collations are refused.

Source: `src/box/tuple_compare.cc`, `src/box/field_def.c` (which MessagePack a field type takes).
"""

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgpack

from tests.oracle import mp

DECIMAL_EXT, DATETIME_EXT = 1, 4
BINARY_COLLATIONS = (0, 3)
"""Ids of the collations `none` and `binary` (`_collation`): they compare bytes."""

_PATH_TOKEN = re.compile(r"""\.?([^.\[\]"']+)|\[(\d+)\]|\[["'](.*?)["']\]""")


@dataclass(frozen=True)
class Part:
    """One part of a primary key: 0-based field, type, JSON path inside it ("" for the field itself)."""

    field: int
    type: str
    path: str


def parts_of(definition: Sequence[Any]) -> tuple[Part, ...]:
    """Return the parts of an `_index` tuple's last field, in either of its two forms."""
    return tuple(_part(one) for one in definition)


def _part(definition: Any) -> Part:
    if not isinstance(definition, Mapping):
        return Part(definition[0], definition[1], "")
    if definition.get("collation") not in (None, *BINARY_COLLATIONS):
        raise NotImplementedError("a primary key with a collation")
    return Part(definition["field"], definition["type"], definition.get("path", ""))


def path_tokens(path: str) -> list[int | str]:
    """Return the steps of a JSON path: names of map keys, or 0-based numbers of array items."""
    found = _PATH_TOKEN.finditer(path)
    return [int(m[2]) - 1 if m[2] else (m[1] or m[3]) for m in found]


def key_of(fields: Sequence[bytes], parts: Iterable[Part]) -> tuple[Any, ...]:
    return tuple(_part_value(_at(fields[part.field], part.path), part) for part in parts)


def searched(key: bytes, parts: Iterable[Part]) -> tuple[Any, ...]:
    """Return the key that a request looks for: an array of the parts' values."""
    return tuple(_part_value(raw, part) for raw, part in zip(mp.split_array(key), parts, strict=True))


def bound_of(key: bytes, parts: Iterable[Part]) -> tuple[Any, ...]:
    """Return where a range of keys begins or ends, as `order_of` does: an array of the first parts of a key."""
    return order_of(
        tuple(_part_value(raw, part) for raw, part in zip(mp.split_array(key), parts, strict=False))
    )


def order_of(key: Iterable[Any]) -> tuple[Any, ...]:
    """Return a key, or its first parts, as values that order as an ascending index orders them."""
    return tuple(_ordered(value) for value in key)


_CLASSES = ("bool", "number", "str", "bytes", "ext", "datetime")


def _ordered(value: Any) -> tuple[Any, ...]:
    kind, *content = value[0] if isinstance(value[0], tuple) else value
    return (_CLASSES.index(kind), content != ["nan"], *content)


def _part_value(raw: bytes, part: Part) -> Any:
    """Return a part's comparable value; an `unsigned` part compares the first byte first (`mp_compare_uint`).

    So `01` and `cd 00 01` are two keys there, and one key in every other numeric part.
    """
    return (comparable(raw), raw) if part.type == "unsigned" else comparable(raw)


def _at(raw: bytes, path: str) -> bytes:
    for token in path_tokens(path):
        if isinstance(token, int):
            raw = mp.split_array(raw)[token]
        else:
            raw = next(value for key, value in mp.split_map(raw) if mp.decode(key) == token)
    return raw


def comparable(raw: bytes) -> Any:
    """Return a hashable value: equal for two objects that an index takes for the same."""
    value = mp.decode(raw)
    if isinstance(value, msgpack.ExtType):
        if value.code == DECIMAL_EXT:
            return _number(decimal_of(value.data))
        if value.code == DATETIME_EXT:
            seconds, nanoseconds = struct.unpack("<qi", value.data[:12].ljust(12, b"\0"))
            return ("datetime", seconds, nanoseconds)
        return ("ext", value.code, bytes(value.data))
    if isinstance(value, bool | bytes) or value is None:
        return (type(value).__name__, value)
    if isinstance(value, str):
        return ("str", value.encode(errors="surrogateescape"))
    return _number(value)


def _number(value: float | Decimal) -> tuple[str, Any]:
    if math.isfinite(value):
        return ("number", Fraction(_shown(value) if isinstance(value, float) else value))
    return ("number", "nan" if math.isnan(value) else float(value))


def _shown(value: float) -> float | Decimal:
    """Return a double as the decimal of 15 digits that it shows as, if it is that one (`decimal_from_double`)."""
    shown = Decimal(f"{value:.15g}")
    return shown if float(shown) == value else value


def decimal_of(data: bytes) -> Decimal:
    """Return a decimal from its bytes: the scale, then packed BCD, the sign last (`decimal.c`)."""
    reader = mp.unpacker(data)
    scale = reader.unpack()
    nibbles = data[reader.tell() :].hex()
    sign = 1 if nibbles[-1] in "bd" else 0
    return Decimal((sign, tuple(int(digit) for digit in nibbles[:-1]), -scale))


def decimal_raw(value: Decimal) -> bytes:
    """Return a decimal's extension as MessagePack."""
    sign, digits, exponent = value.as_tuple()
    significant = "".join(map(str, digits)).lstrip("0") or "0"
    nibbles = significant + ("d" if sign else "c")
    packed = bytes.fromhex(nibbles if len(nibbles) % 2 == 0 else "0" + nibbles)
    return mp.encode(msgpack.ExtType(DECIMAL_EXT, mp.encode(-int(exponent)) + packed))
