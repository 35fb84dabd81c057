"""The typed columns of one table: their Spark and Arrow types, and their positions in the tuples of each replicaset.

A field may be at different positions in the formats of two replicasets, and may have a narrower type in one of them. So
the formats are united to the fields of one table (`union_fields`), and each tuple is decoded by its own format into the
columns of the table (`TableLayout`; `udfs.tuples.tuples` decodes). Pure data, picklable.

`schemas.field_types` has the types of fields; `TypeOptions` chooses the type of a column where there is a choice.
`schemas.names` makes the columns' names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from schemas.errors import UnsupportedError
from schemas.field_types import FIELD_TYPES, ColumnStorage, type_family
from schemas.space import FIELDS_MAX, Field, Space


@dataclass(frozen=True)
class TypeOptions:
    """The choices in the mapping of Tarantool's types to Spark's."""

    unsigned: Literal["precise", "long"] = "precise"
    """decimal(20,0), or bigint, which has no values above 2^63 - 1."""
    decimal_scale: int | Literal["string"] = 18
    """The s of decimal(38,s), 0 to 38: a decimal with more digits after the point is rounded half-even, one with more
    digits before it does not fit; or `string`, Tarantool's own text, which always fits.
    """
    integer: Literal["long", "decimal"] = "long"
    """bigint, which has no values above 2^63 - 1, or decimal(20,0)."""
    nested: Literal["json", "variant"] = "variant"
    """How values of the types any, map, array and scalar are stored, and fields past the format: as JSON text, or as
    Spark's variant.
    """
    exact: bool = False
    """Whether a value does not fit if its column would only have the nearest one of its type."""


VARIANT_ARROW = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The Arrow type that Spark uses for a variant (`pyspark/sql/pandas/types.py`, `to_arrow_type`)."""

DECIMAL_PRECISION = 38
"""Greatest number of digits of a decimal in Spark, in a variant, and in Tarantool before 3.5 (`DECIMAL_MAX_DIGITS`)."""

_TYPES_BY_STORAGE: dict[ColumnStorage, tuple[DataType, pa.DataType]] = {
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
    ColumnStorage.JSON: (StringType(), pa.string()),
}
"""The Spark type and the Arrow type of each storage; those of `DECIMAL` depend on the options."""


def column_storage(field_type: str, options: TypeOptions) -> ColumnStorage:
    """Return how the column of a field is stored.

    Raises:
        UnsupportedError: This version does not know the type.
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
    return _nested_storage(options) if is_nested(family) else FIELD_TYPES[family].storage


def is_nested(field_type: str) -> bool:
    """Whether the values of a field type may be of several types: any, map, array, scalar."""
    family = type_family(field_type)
    return family in FIELD_TYPES and FIELD_TYPES[family].storage is ColumnStorage.VARIANT


def _nested_storage(options: TypeOptions) -> ColumnStorage:
    return ColumnStorage.JSON if options.nested == "json" else ColumnStorage.VARIANT


def spark_type(storage: ColumnStorage, options: TypeOptions) -> DataType:
    """Return the Spark type of a column."""
    if storage is ColumnStorage.DECIMAL:
        return DecimalType(DECIMAL_PRECISION, int(options.decimal_scale))
    return _TYPES_BY_STORAGE[storage][0]


def arrow_type(storage: ColumnStorage, options: TypeOptions) -> pa.DataType:
    """Return the Arrow type of a column in the result of an Arrow UDF."""
    if storage is ColumnStorage.DECIMAL:
        return pa.decimal128(DECIMAL_PRECISION, int(options.decimal_scale))
    return _TYPES_BY_STORAGE[storage][1]


def check_format(space: str, names: Iterable[str]) -> None:
    """Raise if the fields of a format cannot be the columns of a table.

    Raises:
        UnsupportedError: Two fields have the same name, which no server accepts (their values would share a column), or
            there are more than `FIELDS_MAX` fields.
    """
    counts = Counter(names)
    if counts.total() > FIELDS_MAX:
        raise UnsupportedError(f"a format of {counts.total()} fields, the most are {FIELDS_MAX}", space=space)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise UnsupportedError(f"two fields are called {twice}", space=space)


def _wider_types(field_type: str) -> tuple[str, ...]:
    return FIELD_TYPES[field_type].wider_types if field_type in FIELD_TYPES else ()


def _widest_type(space_name: str, field_name: str, types: Sequence[str]) -> str:
    for widest in types:
        if all(other == widest or widest in _wider_types(other) for other in types):
            return widest
    raise UnsupportedError(
        f"the field {field_name} is {' and '.join(types)} in different replicasets",
        space=space_name,
        advice="give the field one type everywhere, or rename or exclude the space of one replicaset",
    )


def union_fields(spaces: Sequence[Space]) -> tuple[Field, ...]:
    """Return the fields of one table for several formats of a space, matched by name.

    The order is that of the first format, followed by the fields that each next one adds. Of several types of a field
    the widest, which includes all values of the others, is used; a field that one format lacks is nullable.

    Args:
        spaces: The space's definition in each replicaset (or in each of its versions).

    Raises:
        UnsupportedError: No type of a field includes the values of the others (the error names space, field and types);
            or as in `check_format`.
    """
    kinds: dict[str, dict[str, None]] = {}
    required_in: dict[str, int] = {}
    for space in spaces:
        check_format(space.name, (one.name for one in space.fields))
        for one in space.fields:
            kinds.setdefault(one.name, {})[type_family(one.type)] = None
            required_in[one.name] = required_in.get(one.name, 0) + (not one.is_nullable)
    return tuple(
        Field(name, _widest_type(spaces[0].name, name, tuple(found)), required_in[name] < len(spaces))
        for name, found in kinds.items()
    )


EXTRA_COLUMN = "_extra"
"""Variant or JSON: an array of the fields past the format; null if there are none."""

INEXACT_COLUMN = "_inexact"
"""String: names of the columns, joined by commas, whose value is less exact than the tuple's; null if all are exact."""

MISFITS_COLUMN = "_misfits"
"""Array of strings: the columns that are null because the tuple's value does not fit; null if all fit."""

MISFITS_ARROW = pa.list_(pa.field("element", pa.string()))

ERROR_COLUMN = "_error"
"""String: why fields of the tuple do not fit, or why it cannot be split into fields (then `_misfits` is null). Null if
all fit. Never a column of a table."""

_REPORT_COLUMNS: tuple[tuple[str, DataType, pa.DataType], ...] = (
    (INEXACT_COLUMN, StringType(), pa.string()),
    (MISFITS_COLUMN, ArrayType(StringType()), MISFITS_ARROW),
)
"""The columns that a tuple fills after the typed ones and `_extra`: name, Spark type, Arrow type."""


@dataclass(frozen=True)
class TableLayout:
    """The typed columns of one table and the formats of the tuples that go into it."""

    space: str
    """Name of the space, for errors."""
    column_names: tuple[str, ...]
    """The column name of each field in `fields`."""
    fields: tuple[Field, ...]
    """The table's fields, from `union_fields`."""
    formats: tuple[tuple[Field, ...], ...]
    """The fields of each format; each decoded row says by an index in this tuple which format it has."""
    options: TypeOptions = field(default_factory=TypeOptions)
    """How types are mapped."""
    binary_fields: frozenset[str] = frozenset()
    """String fields whose columns are binary."""

    def storage_of(self, field: Field) -> ColumnStorage:
        """Return how the column of a field is stored."""
        found = column_storage(field.type, self.options)
        is_raw = found is ColumnStorage.STRING and field.name in self.binary_fields
        return ColumnStorage.RAW_STRING if is_raw else found

    @property
    def extra_storage(self) -> ColumnStorage:
        """How `_extra` is stored."""
        return _nested_storage(self.options)

    def _added_columns(self) -> tuple[tuple[str, DataType, pa.DataType], ...]:
        """Return the columns that a tuple fills after the typed ones: name, Spark type, Arrow type."""
        return ((EXTRA_COLUMN, *_TYPES_BY_STORAGE[self.extra_storage]), *_REPORT_COLUMNS)

    def spark_schema(self) -> StructType:
        """Return the columns that a tuple fills, all nullable: typed ones, `_extra`, `_inexact`, `_misfits`."""
        columns = [
            StructField(name, spark_type(self.storage_of(one), self.options))
            for name, one in zip(self.column_names, self.fields, strict=True)
        ]
        return StructType([*columns, *(StructField(name, kind) for name, kind, _ in self._added_columns())])

    def decoded_schema(self) -> StructType:
        """Return the schema of a decoded tuple: the table's columns and `_error`."""
        return StructType([*self.spark_schema().fields, StructField(ERROR_COLUMN, StringType())])

    def arrow_fields(self) -> list[pa.Field]:
        """Return the Arrow fields of a decoded tuple, in the order of `decoded_schema`."""
        columns = [
            pa.field(name, arrow_type(self.storage_of(one), self.options))
            for name, one in zip(self.column_names, self.fields, strict=True)
        ]
        added = (pa.field(name, kind) for name, _, kind in self._added_columns())
        return [*columns, *added, pa.field(ERROR_COLUMN, pa.string())]


def table_layout(
    spaces: Sequence[Space],
    column_names: Sequence[str] | None = None,
    options: TypeOptions | None = None,
    binary_fields: frozenset[str] = frozenset(),
) -> TableLayout:
    """Return the layout of the table of a space that several replicasets define.

    Args:
        spaces: At least one; each decoded row says by an index in this sequence which format it has.
        column_names: In the order of `union_fields(spaces)`; by default the fields' own names.
        options: How types are mapped.
        binary_fields: String fields whose columns are binary.

    Raises:
        UnsupportedError: Two formats contradict each other, or a type is not known.
    """
    chosen = options or TypeOptions()
    fields = union_fields(spaces)
    columns = tuple(one.name for one in fields) if column_names is None else tuple(column_names)
    if len(columns) != len(fields):
        raise UnsupportedError(f"{len(columns)} column names for {len(fields)} fields", space=spaces[0].name)
    for one in fields:
        column_storage(one.type, chosen)
    formats = tuple(space.fields for space in spaces)
    return TableLayout(spaces[0].name, columns, fields, formats, chosen, binary_fields)
