"""Where the columns of one table stand in the tuples of each replicaset, and the table's typed columns.

A field may stand at different positions in the formats of two replicasets, and may be of a narrower type in
one of them; so tuples are decoded by their own format into the columns of the table. Pure data, picklable.
Not here: the decoding (`udfs.tuples`) and the choice of column names (`schemas.names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType, VariantType

from schemas.errors import UnsupportedError
from schemas.space import Field, Space
from schemas.types import VARIANT_ARROW, TypeOptions, arrow_type, spark_type, union_fields

EXTRA_COLUMN = "_extra"
"""Variant: an array of the fields past the format; null where there are none."""

INEXACT_COLUMN = "_inexact"
"""String: the columns, joined by commas, that hold less than the tuple does; null where all are exact."""

ERROR_COLUMN = "_error"
"""String: why the tuple does not fit; null where it does. Never a column of a table."""


@dataclass(frozen=True)
class TableLayout:
    """The typed columns of one table and the formats of the tuples that go into it.

    Parameters
    ----------
    space : str
        Name of the space, for errors.
    names : tuple of str
        Column names, one for each of `fields`.
    fields : tuple of Field
        The table's fields, as `schemas.types.union_fields` gives them.
    formats : tuple of tuple of Field
        The format of each kind of tuple; a tuple's layout index is the index here.
    options : TypeOptions
        How types are mapped.

    """

    space: str
    names: tuple[str, ...]
    fields: tuple[Field, ...]
    formats: tuple[tuple[Field, ...], ...]
    options: TypeOptions = field(default_factory=TypeOptions)

    def spark_schema(self) -> StructType:
        """Return the table's columns that a tuple fills: typed ones, `_extra`, `_inexact`; all nullable."""
        columns = [
            StructField(name, spark_type(one.type, self.options))
            for name, one in zip(self.names, self.fields, strict=True)
        ]
        return StructType(
            [*columns, StructField(EXTRA_COLUMN, VariantType()), StructField(INEXACT_COLUMN, StringType())]
        )

    def decoded_schema(self) -> StructType:
        """Return the schema of a decoded tuple: the table's columns and `_error`."""
        return StructType([*self.spark_schema().fields, StructField(ERROR_COLUMN, StringType())])

    def arrow_fields(self) -> list[pa.Field]:
        """Return the Arrow fields of a decoded tuple, in the order of `decoded_schema`."""
        columns = [
            pa.field(name, arrow_type(one.type, self.options))
            for name, one in zip(self.names, self.fields, strict=True)
        ]
        extra = pa.field(EXTRA_COLUMN, VARIANT_ARROW)
        return [*columns, extra, pa.field(INEXACT_COLUMN, pa.string()), pa.field(ERROR_COLUMN, pa.string())]


def table_layout(
    spaces: Sequence[Space], names: Sequence[str] | None = None, options: TypeOptions | None = None
) -> TableLayout:
    """Return the layout of one table over several replicasets' definitions of a space.

    Parameters
    ----------
    spaces : sequence of Space
        At least one; the index in it is the layout index of its tuples.
    names : sequence of str, optional
        Column names in the order of `union_fields(spaces)`; by default the fields' own names.
    options : TypeOptions, optional
        How types are mapped.

    Raises
    ------
    UnsupportedError
        Where two formats contradict each other or a type is not known (`schemas.types`).

    """
    chosen = options or TypeOptions()
    fields = union_fields(spaces)
    columns = tuple(names) if names is not None else tuple(one.name for one in fields)
    if len(columns) != len(fields):
        raise UnsupportedError(f"{len(columns)} column names for {len(fields)} fields", space=spaces[0].name)
    for one in fields:
        spark_type(one.type, chosen)
    return TableLayout(spaces[0].name, columns, fields, tuple(space.fields for space in spaces), chosen)
