"""The class of one MessagePack value, without a kernel: `udfs.kernels.values.head` finds the same ones."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.field_types import ValueClass
from udfs.operations.msgpack_kinds import ARRAY, BIN, BOOL, DOUBLE, EXT, FLOAT, INT, KIND, MAP, NIL, STR, UINT
from udfs.operations.msgpack_walk import string_bounds

EXTENSION_CLASSES: Mapping[int, ValueClass] = {
    1: ValueClass.DECIMAL,
    2: ValueClass.UUID,
    3: ValueClass.ERROR,
    4: ValueClass.DATETIME,
    6: ValueClass.INTERVAL,
}
"""The class of an extension by its type (`src/lib/core/mp_extension_types.h`); any other is an `EXTENSION`."""

_CLASS_BY_KIND = {
    NIL: ValueClass.NIL,
    UINT: ValueClass.UNSIGNED,
    INT: ValueClass.INTEGER,
    FLOAT: ValueClass.FLOAT,
    DOUBLE: ValueClass.DOUBLE,
    BOOL: ValueClass.BOOLEAN,
    STR: ValueClass.STRING,
    BIN: ValueClass.BINARY,
    ARRAY: ValueClass.ARRAY,
    MAP: ValueClass.MAP,
}
_UINT64 = 0xCF


def class_of_value(value: bytes) -> ValueClass:
    """Return the class of an encoded value, which must be MessagePack."""
    kind = KIND[value[0]]
    if kind == EXT:
        start, _ = string_bounds(value, 0)
        return EXTENSION_CLASSES.get(value[start - 1], ValueClass.EXTENSION)
    if value[0] == _UINT64 and value[1] & 0x80:
        return ValueClass.UNSIGNED_BIG
    return _CLASS_BY_KIND[kind]
