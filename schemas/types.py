"""A field of a space's format → the Spark and Arrow type of its column; the format of several replicasets.

What a value of the field must be is Tarantool's (`src/box/field_def.c`); what a column of it becomes is
decided here and by `TypeOptions`. Not here: names of columns (`schemas.names`), where a field stands in the tuples of
each replicaset (`schemas.layout`), and the decoding itself (`udfs.tuples.tuples`).
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
    """How Tarantool's types become Spark's where there is a choice.

    Parameters
    ----------
    unsigned : {'precise', 'long'}
        decimal(20,0), or bigint: then a value above 2^63 - 1 does not fit.
    decimal_scale : int or 'string'
        The s of decimal(38,s), 0 to 38: a decimal with more digits before or after the point does not fit;
        or Tarantool's own text, which always fits.
    integer : {'long', 'decimal'}
        bigint: then a value above 2^63 - 1 does not fit; or decimal(20,0).

    """

    unsigned: Literal["precise", "long"] = "precise"
    decimal_scale: int | Literal["string"] = 18
    integer: Literal["long", "decimal"] = "long"


class Carrier(IntEnum):
    """How the column of a field is built."""

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
"""The Arrow type that Spark takes for a variant (`pyspark/sql/pandas/types.py`, `to_arrow_type`)."""

DECIMAL_PRECISION = 38
"""The most digits of Spark's decimal, of one in a variant, and of Tarantool's (`DECIMAL_MAX_DIGITS`)."""

_CARRIERS = {
    "double": Carrier.DOUBLE,
    "float32": Carrier.DOUBLE,
    "float64": Carrier.DOUBLE,
    "number": Carrier.DOUBLE,
    "string": Carrier.STRING,
    "varbinary": Carrier.BINARY,
    "boolean": Carrier.BOOLEAN,
    "uuid": Carrier.UUID,
    "datetime": Carrier.TIMESTAMP,
    "interval": Carrier.INTERVAL,
    "any": Carrier.VARIANT,
    "map": Carrier.VARIANT,
    "array": Carrier.VARIANT,
    "scalar": Carrier.VARIANT,
}
_UNSIGNED = ("unsigned", "uint8", "uint16", "uint32", "uint64")
_INTEGER = ("integer", "int8", "int16", "int32", "int64")

_SPARK: dict[Carrier, DataType] = {
    Carrier.LONG: LongType(),
    Carrier.WIDE: DecimalType(20, 0),
    Carrier.DOUBLE: DoubleType(),
    Carrier.DECIMAL_TEXT: StringType(),
    Carrier.BOOLEAN: BooleanType(),
    Carrier.STRING: StringType(),
    Carrier.BINARY: BinaryType(),
    Carrier.UUID: StringType(),
    Carrier.TIMESTAMP: TimestampType(),
    Carrier.INTERVAL: StringType(),
    Carrier.VARIANT: VariantType(),
    Carrier.RAW_STRING: BinaryType(),
}
_ARROW: dict[Carrier, pa.DataType] = {
    Carrier.LONG: pa.int64(),
    Carrier.WIDE: pa.decimal128(20, 0),
    Carrier.DOUBLE: pa.float64(),
    Carrier.DECIMAL_TEXT: pa.string(),
    Carrier.BOOLEAN: pa.bool_(),
    Carrier.STRING: pa.string(),
    Carrier.BINARY: pa.binary(),
    Carrier.UUID: pa.string(),
    Carrier.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Carrier.INTERVAL: pa.string(),
    Carrier.VARIANT: VARIANT_ARROW,
    Carrier.RAW_STRING: pa.binary(),
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
"""The types that hold all values of a type (`field_type_compatibility` in `src/box/field_def.c`)."""


def type_family(field_type: str) -> str:
    """Return the type that a sized type of 3.x (`uint8`, `int32`, `float64`) is part of, else the type itself."""
    if field_type in _UNSIGNED:
        return "unsigned"
    if field_type in _INTEGER:
        return "integer"
    return "double" if field_type in ("float32", "float64") else field_type


def carrier(field_type: str, options: TypeOptions) -> Carrier:
    """Return how the column of a field is built.

    Raises
    ------
    UnsupportedError
        For a type that this version does not know.

    """
    family = type_family(field_type)
    if family == "unsigned":
        return Carrier.WIDE if options.unsigned == "precise" else Carrier.LONG
    if family == "integer":
        return Carrier.WIDE if options.integer == "decimal" else Carrier.LONG
    if family == "decimal":
        return Carrier.DECIMAL_TEXT if options.decimal_scale == "string" else Carrier.DECIMAL
    if family not in _CARRIERS:
        raise UnsupportedError(
            f"the field type {field_type} is not known", advice="leave the space out by `spaces.exclude`"
        )
    return _CARRIERS[family]


def spark_type(kind: Carrier, options: TypeOptions) -> DataType:
    """Return the Spark type of a column."""
    if kind is Carrier.DECIMAL:
        return DecimalType(DECIMAL_PRECISION, int(options.decimal_scale))
    return _SPARK[kind]


def arrow_type(kind: Carrier, options: TypeOptions) -> pa.DataType:
    """Return the Arrow type that an Arrow UDF gives for a column."""
    if kind is Carrier.DECIMAL:
        return pa.decimal128(DECIMAL_PRECISION, int(options.decimal_scale))
    return _ARROW[kind]


def check_names(space: str, names: Iterable[str]) -> None:
    """Refuse a format that no table can have.

    Raises
    ------
    UnsupportedError
        Two fields have one name, which no server takes and whose values would share a column; or there are absurdly
        many fields.

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

    The order is that of the first format, then what the next ones add. Of several types the one that holds all
    values of the others is taken; a field that one format lacks is nullable.

    Parameters
    ----------
    spaces : sequence of Space
        The space as each replicaset (or each of its versions) defines it.

    Raises
    ------
    UnsupportedError
        Naming the space, the field and the types, where none of them holds the values of the others; and as
        `check_names` says.

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
