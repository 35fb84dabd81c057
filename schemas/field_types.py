"""The table of Tarantool's field types: a new one is an entry here.

An entry says how a column of the type is stored, which values a field accepts, and which types include all its values.
Sources: `src/box/field_def.c` (`field_mp_type`, `field_ext_type`, `field_type_compatibility`). Since 2.11.1 a
field of type `double` accepts every number but a decimal. Older servers accept only doubles there, so one rule serves
the logs of all versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

ANY, SCALAR, NUMBER, INTEGER, DOUBLE = "any", "scalar", "number", "integer", "double"


class ColumnStorage(IntEnum):
    """How the column of a field is stored."""

    LONG = 0
    WIDE = 1  # decimal(20,0): all of -2^63 .. 2^64 - 1
    DOUBLE = 2
    DECIMAL = 3
    DECIMAL_TEXT = 4
    BOOLEAN = 5
    STRING = 6
    BINARY = 7
    UUID = 8
    TIMESTAMP = 9
    INTERVAL = 10
    VARIANT = 11
    RAW_STRING = 12  # bytes of a string, whether they are UTF-8 or not
    JSON = 13  # text


class ValueClass(IntEnum):
    """The classes of MessagePack values, with the numbers of `udfs.kernels.values`."""

    NIL = 1
    UNSIGNED = 2
    UNSIGNED_BIG = 3
    INTEGER = 4
    FLOAT = 5
    DOUBLE = 6
    BOOLEAN = 7
    STRING = 8
    BINARY = 9
    ARRAY = 10
    MAP = 11
    DECIMAL = 12
    UUID = 13
    ERROR = 14
    DATETIME = 15
    INTERVAL = 16
    EXTENSION = 17


_UNSIGNED = (ValueClass.UNSIGNED, ValueClass.UNSIGNED_BIG)
_INTEGERS = (*_UNSIGNED, ValueClass.INTEGER)
_REALS = (*_INTEGERS, ValueClass.FLOAT, ValueClass.DOUBLE)
_NUMBERS = (*_REALS, ValueClass.DECIMAL)
_SCALARS = (
    *(*_NUMBERS, ValueClass.STRING, ValueClass.BINARY, ValueClass.BOOLEAN),
    *(ValueClass.UUID, ValueClass.DATETIME),
)


@dataclass(frozen=True)
class FieldType:
    """One field type."""

    name: str
    storage: ColumnStorage
    """How a column is stored, unless `schemas.layout.TypeOptions` chooses another storage for the type."""
    accepted_classes: tuple[ValueClass, ...]
    """The values that a field accepts; a nullable field also accepts nil."""
    wider_types: tuple[str, ...] = (SCALAR, ANY)
    """The types that include all values of this one."""
    is_indexable: bool = True
    """Whether it may be a part of a primary key."""
    sized_types: tuple[str, ...] = ()
    """The types of 3.x with a size in bits that are stored in the same way."""


DECIMAL_DIGITS: Mapping[str, int] = {
    "decimal32": 9,
    "decimal64": 18,
    "decimal128": 38,
    "decimal256": 76,
}
"""Greatest number of digits of the decimals of 3.9 that have a size; a field of such a type has a `scale` too."""

FIELD_TYPES: Mapping[str, FieldType] = {
    one.name: one
    for one in (
        FieldType(
            *("unsigned", ColumnStorage.WIDE, _UNSIGNED, (INTEGER, NUMBER, SCALAR, ANY)),
            sized_types=("uint8", "uint16", "uint32", "uint64"),
        ),
        FieldType(
            *(INTEGER, ColumnStorage.LONG, _INTEGERS, (NUMBER, SCALAR, ANY)),
            sized_types=("int8", "int16", "int32", "int64"),
        ),
        FieldType(
            *(DOUBLE, ColumnStorage.DOUBLE, _REALS, (NUMBER, SCALAR, ANY)), sized_types=("float32", "float64")
        ),
        FieldType(
            *("decimal", ColumnStorage.DECIMAL, (ValueClass.DECIMAL,), (NUMBER, SCALAR, ANY)),
            sized_types=tuple(DECIMAL_DIGITS),
        ),
        FieldType(NUMBER, ColumnStorage.DOUBLE, _NUMBERS),
        FieldType("string", ColumnStorage.STRING, (ValueClass.STRING,)),
        FieldType("boolean", ColumnStorage.BOOLEAN, (ValueClass.BOOLEAN,)),
        FieldType("varbinary", ColumnStorage.BINARY, (ValueClass.BINARY,)),
        FieldType("uuid", ColumnStorage.UUID, (ValueClass.UUID,)),
        FieldType("datetime", ColumnStorage.TIMESTAMP, (ValueClass.DATETIME,)),
        FieldType("interval", ColumnStorage.INTERVAL, (ValueClass.INTERVAL,), (ANY,), is_indexable=False),
        FieldType(SCALAR, ColumnStorage.VARIANT, _SCALARS, (ANY,)),
        FieldType("array", ColumnStorage.VARIANT, (ValueClass.ARRAY,), (ANY,), is_indexable=False),
        FieldType("map", ColumnStorage.VARIANT, (ValueClass.MAP,), (ANY,), is_indexable=False),
        FieldType(ANY, ColumnStorage.VARIANT, tuple(ValueClass), (), is_indexable=False),
    )
}

_FAMILY_OF_SIZED_TYPE = {sized: one.name for one in FIELD_TYPES.values() for sized in one.sized_types}


def type_family(field_type: str) -> str:
    """Return the general type of a sized type of 3.x (`uint8`, `int32`, `float64`); any other type itself."""
    return _FAMILY_OF_SIZED_TYPE.get(field_type, field_type)
