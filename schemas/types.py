"""Maps the fields of a space's format to Spark and Arrow types, and unites the formats of several replicasets.

`schemas.field_types` has the types; this module and `TypeOptions` choose the type of a column.
`schemas.names` has the columns' names, `schemas.layout` the fields' positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from schemas.field_types import FIELD_TYPES, ColumnStorage, type_family
from schemas.space import FIELDS_MAX, Field, Space


@dataclass(frozen=True)
class TypeOptions:
    """The choices in the mapping of Tarantool's types to Spark's.

    Parameters
    ----------
    unsigned : {'precise', 'long'}
        decimal(20,0), or bigint, which has no values above 2^63 - 1.
    decimal_scale : int or 'string'
        The s of decimal(38,s), 0 to 38: a decimal with more digits before or after the point does not fit; or
        `string`, Tarantool's own text, which always fits.
    integer : {'long', 'decimal'}
        bigint, which has no values above 2^63 - 1, or decimal(20,0).

    """

    unsigned: Literal["precise", "long"] = "precise"
    decimal_scale: int | Literal["string"] = 18
    integer: Literal["long", "decimal"] = "long"


VARIANT_ARROW = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The Arrow type that Spark uses for a variant (`pyspark/sql/pandas/types.py`, `to_arrow_type`)."""

DECIMAL_PRECISION = 38
"""Greatest number of digits of Spark's decimal, of one in a variant, and of Tarantool's (`DECIMAL_MAX_DIGITS`)."""

_TYPES: dict[ColumnStorage, tuple[DataType, pa.DataType]] = {
    ColumnStorage.LONG: (LongType(), pa.int64()),
    ColumnStorage.WIDE: (DecimalType(20, 0), pa.decimal128(20, 0)),
    ColumnStorage.DOUBLE: (DoubleType(), pa.float64()),
    ColumnStorage.DECIMAL_TEXT: (StringType(), pa.string()),
    ColumnStorage.BOOLEAN: (BooleanType(), pa.bool_()),
    ColumnStorage.STRING: (StringType(), pa.string()),
    ColumnStorage.BINARY: (BinaryType(), pa.binary()),
    ColumnStorage.UUID: (StringType(), pa.string()),
    ColumnStorage.TIMESTAMP: (TimestampType(), pa.timestamp("us", tz="UTC")),
    ColumnStorage.INTERVAL: (StringType(), pa.string()),
    ColumnStorage.VARIANT: (VariantType(), VARIANT_ARROW),
    ColumnStorage.RAW_STRING: (BinaryType(), pa.binary()),
}
"""The Spark type and the Arrow type of each storage; those of `DECIMAL` depend on the options."""


def column_storage(field_type: str, options: TypeOptions) -> ColumnStorage:
    """Return how the column of a field is stored.

    Raises
    ------
    UnsupportedError
        This version does not know the type.

    """
    family = type_family(field_type)
    if family not in FIELD_TYPES:
        raise UnsupportedError(
            f"the field type {field_type} is not known", advice="leave the space out by `spaces.exclude`"
        )
    if family == "unsigned" and options.unsigned == "long":
        return ColumnStorage.LONG
    if family == "integer" and options.integer == "decimal":
        return ColumnStorage.WIDE
    if family == "decimal" and options.decimal_scale == "string":
        return ColumnStorage.DECIMAL_TEXT
    return FIELD_TYPES[family].storage


def spark_type(kind: ColumnStorage, options: TypeOptions) -> DataType:
    """Return the Spark type of a column."""
    if kind is ColumnStorage.DECIMAL:
        return DecimalType(DECIMAL_PRECISION, int(options.decimal_scale))
    return _TYPES[kind][0]


def arrow_type(kind: ColumnStorage, options: TypeOptions) -> pa.DataType:
    """Return the Arrow type of a column in the result of an Arrow UDF."""
    if kind is ColumnStorage.DECIMAL:
        return pa.decimal128(DECIMAL_PRECISION, int(options.decimal_scale))
    return _TYPES[kind][1]


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


def _wider(kind: str) -> tuple[str, ...]:
    return FIELD_TYPES[kind].wider if kind in FIELD_TYPES else ()


def _widest(space: str, name: str, kinds: Sequence[str]) -> str:
    for kind in kinds:
        if all(other == kind or kind in _wider(other) for other in kinds):
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
