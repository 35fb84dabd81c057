"""Determines how a table of a space must change for a batch (create, add columns, rewrite), and encodes rows again.

If columns change, all rows of a table are encoded again from their exact tuples: values in `_extra` move to their
column, and no reader needs column mapping. A table that only gains columns, and has nothing in `_extra`, gains them
by a change of metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from pipeline.encode.columns import TableEncoding, encode
from pipeline.resolve.resolve import PUTS
from schemas.errors import WarehouseError
from schemas.layout import EXTRA_COLUMN, MISFITS_COLUMN
from schemas.tables import VERSION_COLUMNS
from warehouse import write
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import opened


class TableChange(Enum):
    """The change that a table needs before a batch can write it."""

    CREATE = "create"
    NOTHING = "nothing"
    ADD = "add columns"
    REWRITE = "write again"


def table_schema(encoding: TableEncoding) -> StructType:
    """Return the columns of the exact table: its typed columns, then the columns that all tables of spaces have."""
    shared = [StructField(name, kind) for name, kind in VERSION_COLUMNS]
    return StructType([*encoding.layout.spark_schema().fields, *shared])


def change_needed(tables: OpenTables, encoding: TableEncoding) -> TableChange:
    """Return what the exact table of a space needs before a batch can write it."""
    table, wanted = encoding.exact, table_schema(encoding)
    if not tables.place.has(table):
        return TableChange.CREATE
    present = {field.name: field.dataType for field in tables.columns(table)}
    asked = {field.name: field.dataType for field in wanted}
    if encoding.has_moved_fields:
        return TableChange.REWRITE
    if present == asked and not encoding.has_added_fields:
        return TableChange.NOTHING
    new = {name for name in asked if name not in present}
    lasting = {name: kind for name, kind in asked.items() if name not in new}
    # A table of an earlier release lacks `_misfits`: all of its rows fit.
    of_fields = new - {MISFITS_COLUMN}
    fills_columns = bool(of_fields) or encoding.has_added_fields
    if present != lasting or (
        fills_columns and any(_has_extra(tables, table, file) for file in tables.files(table))
    ):
        return TableChange.REWRITE
    return TableChange.ADD if new else TableChange.NOTHING


def _has_extra(tables: OpenTables, table: str, file: TableFile) -> bool:
    """Return whether a file may have a value in `_extra`, by its footer."""
    with opened(tables.place, table, file.path) as parquet:
        metadata = parquet.metadata
        for number in range(metadata.num_columns):
            if not metadata.schema.column(number).path.startswith(f"{EXTRA_COLUMN}."):
                continue
            for group in range(metadata.num_row_groups):
                found = metadata.row_group(group).column(number).statistics
                if found is None or found.null_count < metadata.row_group(group).num_rows:
                    return True
    return False


def create(tables: OpenTables, table: str, schema: StructType, comment: str) -> None:
    """Create an empty table.

    Raises
    ------
    WarehouseError
        A writer without the lock has created it at the same moment, with other columns.

    """
    write.create(tables.place, table, schema, comment)
    if not same_columns(tables.columns(table), schema.fields):
        raise WarehouseError("the table was created with other columns meanwhile", table=table)


def reencode_rows(rows: pa.Table, encoding: TableEncoding) -> pa.Table:
    """Return rows of an exact table with the columns of a new encoding.

    All rows stay. A tuple whose fields cannot be distinguished has nulls in all typed columns.
    """
    names = {f"_{name}": name for name in PUTS.names if name != "table"}
    puts = rows.select(list(names)).rename_columns(list(names.values()))
    puts = puts.append_column("table", pa.nulls(rows.num_rows, pa.int32())).select(PUTS.names).cast(PUTS)
    encoded = encode(puts, replace(encoding, sets_misfits_aside=False))
    set_aside = encoded.set_aside
    if not set_aside.num_rows:
        return encoded.rows
    kept = set_aside.select(list(names.values())).rename_columns(list(names))
    return pa.concat_tables([encoded.rows, kept], promote_options="default")


def same_columns(one: StructType, other: Sequence[StructField]) -> bool:
    """Return whether two schemas have the same columns; order, comments and nullability do not count."""
    return {f.name: f.dataType for f in one} == {f.name: f.dataType for f in other}
