"""Maps the fields of a space's format to Spark and Arrow types, and unites the formats of several replicasets.

The values that a field accepts are Tarantool's (`src/box/field_def.c`); this module and `TypeOptions` choose the type
of its column. `schemas.names` has the columns' names, `schemas.layout` the fields' positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
    VariantType,
)

from schemas.errors import UnsupportedError
from schemas.space import FIELDS_MAX, Field, Space


@dataclass(frozen=True)
class TypeOptions:
    """The choices in the mapping of Tarantool's types to Spark's.

    Parameters
    ----------
    unsigned : {'precise', 'long'}
        decimal(20,0), or bigint, which cannot hold a value above 2^63 - 1.
    decimal_scale : int or 'string'
        The s of decimal(38,s), 0 to 38: a decimal with more digits before or after the point does not fit; or
        `string`, Tarantool's own text, which always fits.
    integer : {'long', 'decimal'}
        bigint, which cannot hold a value above 2^63 - 1, or decimal(20,0).

    """

    unsigned: Literal["precise", "long"] = "precise"
    decimal_scale: int | Literal["string"] = 18
    integer: Literal["long", "decimal"] = "long"


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


VARIANT_ARROW = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The Arrow type that Spark uses for a variant (`pyspark/sql/pandas/types.py`, `to_arrow_type`)."""

DECIMAL_PRECISION = 38
"""Greatest number of digits of Spark's decimal, of one in a variant, and of Tarantool's (`DECIMAL_MAX_DIGITS`)."""

_CARRIERS = {
    "double": ColumnStorage.DOUBLE,
    "float32": ColumnStorage.DOUBLE,
    "float64": ColumnStorage.DOUBLE,
    "number": ColumnStorage.DOUBLE,
    "string": ColumnStorage.STRING,
    "varbinary": ColumnStorage.BINARY,
    "boolean": ColumnStorage.BOOLEAN,
    "uuid": ColumnStorage.UUID,
    "datetime": ColumnStorage.TIMESTAMP,
    "interval": ColumnStorage.INTERVAL,
    "any": ColumnStorage.VARIANT,
    "map": ColumnStorage.VARIANT,
    "array": ColumnStorage.VARIANT,
    "scalar": ColumnStorage.VARIANT,
}
_UNSIGNED = ("unsigned", "uint8", "uint16", "uint32", "uint64")
_INTEGER = ("integer", "int8", "int16", "int32", "int64")

_SPARK: dict[ColumnStorage, DataType] = {
    ColumnStorage.LONG: LongType(),
    ColumnStorage.WIDE: DecimalType(20, 0),
    ColumnStorage.DOUBLE: DoubleType(),
    ColumnStorage.DECIMAL_TEXT: StringType(),
    ColumnStorage.BOOLEAN: BooleanType(),
    ColumnStorage.STRING: StringType(),
    ColumnStorage.BINARY: BinaryType(),
    ColumnStorage.UUID: StringType(),
    ColumnStorage.TIMESTAMP: TimestampType(),
    ColumnStorage.INTERVAL: StringType(),
    ColumnStorage.VARIANT: VariantType(),
    ColumnStorage.RAW_STRING: BinaryType(),
}
_ARROW: dict[ColumnStorage, pa.DataType] = {
    ColumnStorage.LONG: pa.int64(),
    ColumnStorage.WIDE: pa.decimal128(20, 0),
    ColumnStorage.DOUBLE: pa.float64(),
    ColumnStorage.DECIMAL_TEXT: pa.string(),
    ColumnStorage.BOOLEAN: pa.bool_(),
    ColumnStorage.STRING: pa.string(),
    ColumnStorage.BINARY: pa.binary(),
    ColumnStorage.UUID: pa.string(),
    ColumnStorage.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    ColumnStorage.INTERVAL: pa.string(),
    ColumnStorage.VARIANT: VARIANT_ARROW,
    ColumnStorage.RAW_STRING: pa.binary(),
}

_WIDER: dict[str, tuple[str, ...]] = {
    "unsigned": ("integer", "number", "scalar", "any"),
    "integer": ("number", "scalar", "any"),
    "double": ("number", "scalar", "any"),
    "decimal": ("number", "scalar", "any"),
    "number": ("scalar", "any"),
    "string": ("scalar", "any"),
    "boolean": ("scalar", "any"),
    "varbinary": ("scalar", "any"),
    "uuid": ("scalar", "any"),
    "datetime": ("scalar", "any"),
    "interval": ("any",),
    "scalar": ("any",),
    "array": ("any",),
    "map": ("any",),
    "any": (),
}
"""Per type, the types that include all its values (`field_type_compatibility` in `src/box/field_def.c`)."""


def type_family(field_type: str) -> str:
    """Return the general type of a sized type of 3.x (`uint8`, `int32`, `float64`); any other type itself."""
    if field_type in _UNSIGNED:
        return "unsigned"
    if field_type in _INTEGER:
        return "integer"
    return "double" if field_type in ("float32", "float64") else field_type


def column_storage(field_type: str, options: TypeOptions) -> ColumnStorage:
    """Return how the column of a field is stored.

    Raises
    ------
    UnsupportedError
        This version does not know the type.

    """
    family = type_family(field_type)
    if family == "unsigned":
        return ColumnStorage.WIDE if options.unsigned == "precise" else ColumnStorage.LONG
    if family == "integer":
        return ColumnStorage.WIDE if options.integer == "decimal" else ColumnStorage.LONG
    if family == "decimal":
        return ColumnStorage.DECIMAL_TEXT if options.decimal_scale == "string" else ColumnStorage.DECIMAL
    if family not in _CARRIERS:
        raise UnsupportedError(
            f"the field type {field_type} is not known", advice="leave the space out by `spaces.exclude`"
        )
    return _CARRIERS[family]


def spark_type(kind: ColumnStorage, options: TypeOptions) -> DataType:
    """Return the Spark type of a column."""
    if kind is ColumnStorage.DECIMAL:
        return DecimalType(DECIMAL_PRECISION, int(options.decimal_scale))
    return _SPARK[kind]


def arrow_type(kind: ColumnStorage, options: TypeOptions) -> pa.DataType:
    """Return the Arrow type of a column in the result of an Arrow UDF."""
    if kind is ColumnStorage.DECIMAL:
        return pa.decimal128(DECIMAL_PRECISION, int(options.decimal_scale))
    return _ARROW[kind]


def check_names(space: str, names: Iterable[str]) -> None:
    """Raise for a format that no table can have.

    Raises
    ------
    UnsupportedError
        Two fields have the same name, which no server accepts (their values would share a column), or there are more
        than `FIELDS_MAX` fields.

    """
    counts = Counter(names)
    if counts.total() > FIELDS_MAX:
        raise UnsupportedError(f"a format of {counts.total()} fields, the most are {FIELDS_MAX}", space=space)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise UnsupportedError(f"two fields are called {twice}", space=space)


def _widest(space: str, name: str, kinds: Sequence[str]) -> str:
    for kind in kinds:
        if all(other == kind or kind in _WIDER.get(other, ()) for other in kinds):
            return kind
    raise UnsupportedError(
        f"the field {name} is {' and '.join(kinds)} in different replicasets",
        space=space,
        advice="give the field one type everywhere, or rename or exclude the space of one replicaset",
    )


def union_fields(spaces: Sequence[Space]) -> tuple[Field, ...]:
    """Return the fields of one table for several formats of a space, matched by name.

    The order is that of the first format, followed by the fields that each next one adds. Of several types of a field
    the widest, which includes all values of the others, is used; a field that one format lacks is nullable.

    Parameters
    ----------
    spaces : sequence of Space
        The space's definition in each replicaset (or in each of its versions).

    Raises
    ------
    UnsupportedError
        No type of a field includes the values of the others (the error names space, field and types); or as in
        `check_names`.

    """
    kinds: dict[str, dict[str, None]] = {}
    strict: dict[str, int] = {}
    for space in spaces:
        check_names(space.name, (field.name for field in space.fields))
        for field in space.fields:
            kinds.setdefault(field.name, {})[type_family(field.type)] = None
            strict[field.name] = strict.get(field.name, 0) + (not field.is_nullable)
    return tuple(
        Field(name, _widest(spaces[0].name, name, tuple(found)), strict[name] < len(spaces))
        for name, found in kinds.items()
    )
