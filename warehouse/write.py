"""Creates tables, and appends rows of this process in one commit, by delta-rs: in hundredths of a second.

Not here: files that tasks have written (`warehouse.commits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse.place import Place

MARK = "tarantool-aggregator"
"""The user metadata of every commit of ours."""

OURS = CommitProperties(custom_metadata={"userMetadata": MARK})

OWN_FEATURES = frozenset({"appendOnly", "changeDataFeed", "invariants", "variantType"})
"""What our tables ask of who writes them. What else users turn on is Spark's to keep."""


def schema_of(table: str) -> pa.Schema:
    """Return the columns of a system table as Arrow's; times are UTC."""
    return to_arrow_schema(SYSTEM_TABLES[table], timezone="UTC")


def arrow_rows(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows with all columns of a system table; null where a row does not name one."""
    schema = schema_of(table)
    held = list(rows)
    return pa.table({f.name: pa.array([row.get(f.name) for row in held], f.type) for f in schema}, schema)


def create(place: Place, table: str, schema: StructType, comment: str | None = None) -> None:
    """Create an empty table where none is.

    Raises
    ------
    WarehouseError
        Where it cannot be written.

    """
    with _reported(place, table, "the table cannot be made"):
        if place.has(table):  # `create` would read its log
            return
        DeltaTable.create(
            place.uri(table),
            Schema.from_json(schema.json()),
            mode="ignore",
            description=comment,
            configuration={"delta.enableDeletionVectors": "false"},
            commit_properties=OURS,
        )


def append(place: Place, table: str, rows: pa.Table) -> None:
    """Append rows in one commit.

    Parameters
    ----------
    place : Place
    table : str
    rows : pyarrow.Table
        Exactly its columns, in any order; variants as PySpark has them.

    Raises
    ------
    WarehouseError
        Where the table is not there, has other columns, or cannot be written.

    """
    with _reported(place, table, "the table cannot be written"):
        opened = DeltaTable(place.uri(table))
        wanted = _fitted(opened, table, rows)
        write_deltalake(opened, wanted, mode="append", commit_properties=OURS)


@contextmanager
def _reported(place: Place, table: str, what: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError as error:
        raise WarehouseError("the table is not there", table=table, warehouse=place.root) from error
    except (DeltaError, OSError) as error:
        raise WarehouseError(f"{what}: {error}", table=table) from error


def _fitted(opened: DeltaTable, table: str, rows: pa.Table) -> pa.Table:
    """Return rows with the types and the order of a table's columns; they must have these columns and no others."""
    schema = pa.schema(opened.schema().to_arrow())
    if set(schema.names) != set(rows.column_names):
        differ = ", ".join(sorted(set(schema.names) ^ set(rows.column_names)))
        raise WarehouseError("the table and the rows have other columns", table=table, columns=differ)
    return pa.table([_fitting(rows[field.name], field.type) for field in schema], schema)


def _fitting(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column as a type; what lies under the nulls of a variant is nothing there, and null before."""
    if not pa.types.is_struct(kind) or column.type == kind:
        return column.cast(kind)
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    parts = [pc.fill_null(whole.field(field.name), b"") for field in kind]
    return pa.chunked_array([pa.StructArray.from_arrays(parts, fields=list(kind), mask=whole.is_null())])
