"""The typed columns of one table, and their positions in the tuples of each replicaset.

A field may be at different positions in the formats of two replicasets, and may have a narrower type in one of them;
so each tuple is decoded by its own format into the columns of the table. Pure data, picklable. `udfs.tuples.tuples`
decodes, `schemas.names` chooses the column names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType, VariantType

from schemas.errors import UnsupportedError
from schemas.field_types import ColumnStorage
from schemas.space import Field, Space
from schemas.types import VARIANT_ARROW, TypeOptions, arrow_type, column_storage, spark_type, union_fields

EXTRA_COLUMN = "_extra"
"""Variant: an array of the fields past the format; null if there are none."""

INEXACT_COLUMN = "_inexact"
"""String: the columns, joined by commas, whose value is less exact than the tuple's; null if all are exact."""

MISFITS_COLUMN = "_misfits"
"""Array of strings: the columns that are null because the tuple's value does not fit; null if all fit."""

MISFITS_ARROW = pa.list_(pa.field("element", pa.string()))

ERROR_COLUMN = "_error"
"""String: why fields of the tuple do not fit, or why it cannot be split into fields (then `_misfits` is null). Null if
all fit. Never a column of a table."""

_ADDED_COLUMNS: tuple[tuple[str, DataType, pa.DataType], ...] = (
    (EXTRA_COLUMN, VariantType(), VARIANT_ARROW),
    (INEXACT_COLUMN, StringType(), pa.string()),
    (MISFITS_COLUMN, ArrayType(StringType()), MISFITS_ARROW),
)
"""The columns that a tuple fills after the typed ones: name, Spark type, Arrow type."""


@dataclass(frozen=True)
class TableLayout:
    """The typed columns of one table and the formats of the tuples that go into it.

    Parameters
    ----------
    space : str
        Name of the space, for errors.
    names : tuple of str
        One column name per field.
    fields : tuple of Field
        The table's fields, from `schemas.types.union_fields`.
    formats : tuple of tuple of Field
        The format of each kind of tuple; a tuple's layout index is the index here.
    options : TypeOptions
        How types are mapped.
    binary : frozenset of str
        String fields whose columns are binary.

    """

    space: str
    names: tuple[str, ...]
    fields: tuple[Field, ...]
    formats: tuple[tuple[Field, ...], ...]
    options: TypeOptions = field(default_factory=TypeOptions)
    binary: frozenset[str] = frozenset()

    def storage_of(self, one: Field) -> ColumnStorage:
        """Return how the column of a field is stored."""
        found = column_storage(one.type, self.options)
        return (
            ColumnStorage.RAW_STRING if found is ColumnStorage.STRING and one.name in self.binary else found
        )

    def spark_schema(self) -> StructType:
        """Return the columns that a tuple fills, all nullable: typed ones, `_extra`, `_inexact`, `_misfits`."""
        columns = [
            StructField(name, spark_type(self.storage_of(one), self.options))
            for name, one in zip(self.names, self.fields, strict=True)
        ]
        return StructType([*columns, *(StructField(name, kind) for name, kind, _ in _ADDED_COLUMNS)])

    def decoded_schema(self) -> StructType:
        """Return the schema of a decoded tuple: the table's columns and `_error`."""
        return StructType([*self.spark_schema().fields, StructField(ERROR_COLUMN, StringType())])

    def arrow_fields(self) -> list[pa.Field]:
        """Return the Arrow fields of a decoded tuple, in the order of `decoded_schema`."""
        columns = [
            pa.field(name, arrow_type(self.storage_of(one), self.options))
            for name, one in zip(self.names, self.fields, strict=True)
        ]
        added = (pa.field(name, kind) for name, _, kind in _ADDED_COLUMNS)
        return [*columns, *added, pa.field(ERROR_COLUMN, pa.string())]


def table_layout(
    spaces: Sequence[Space],
    names: Sequence[str] | None = None,
    options: TypeOptions | None = None,
    binary: frozenset[str] = frozenset(),
) -> TableLayout:
    """Return the layout of the table of a space that several replicasets define.

    Parameters
    ----------
    spaces : sequence of Space
        At least one; the index in it is the layout index of its tuples.
    names : sequence of str, optional
        Column names in the order of `union_fields(spaces)`; by default the fields' own names.
    options : TypeOptions, optional
        How types are mapped.
    binary : frozenset of str
        String fields whose columns are binary.

    Raises
    ------
    UnsupportedError
        Two formats contradict each other, or a type is not known (`schemas.types`).

    """
    chosen = options or TypeOptions()
    fields = union_fields(spaces)
    columns = tuple(names) if names is not None else tuple(one.name for one in fields)
    if len(columns) != len(fields):
        raise UnsupportedError(f"{len(columns)} column names for {len(fields)} fields", space=spaces[0].name)
    for one in fields:
        column_storage(one.type, chosen)
    formats = tuple(space.fields for space in spaces)
    return TableLayout(spaces[0].name, columns, fields, formats, chosen, binary)
