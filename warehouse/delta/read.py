"""Reads rows of small Delta tables, above all system tables, in this process by delta-rs' own engine.

A PyArrow dataset is not used: its background threads may still use Python's buffers when the interpreter ends, which
aborts the process (seen in one of six runs of a short command).
Not here: opening the table (`warehouse.delta.location`), and large tables, which Spark reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from schemas.errors import WarehouseError
from warehouse.delta.table_files import active_files

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LARGEST_IN_MEMORY_BYTES = 16 * 2**20
"""Tables up to this size are read as a whole, and passed to Spark as rows where a session needs them."""

LARGEST_WITHOUT_SPARK_BYTES = 256 * 2**20
"""If the tables of one task are together larger, Spark reads them. Up to here they are read part by part, which takes
at most about the time in which Spark starts and does the same."""


def rows_of(table: DeltaTable, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a table at its open version, in no particular order; the value of a map is a list of pairs.

    Args:
        columns: Columns to read; empty for all.
    """
    wanted = ", ".join(_quoted(name) for name in columns) or "*"
    return query_rows(table, f"SELECT {wanted} FROM opened")


def newest(table: DeltaTable, column: str) -> dict[str, Any] | None:
    """Return the row with the highest value in a column, None if the table is empty."""
    found = query_rows(table, f"SELECT * FROM opened ORDER BY {_quoted(column)} DESC NULLS LAST LIMIT 1")
    return found[0] if found else None


def newest_of_each(table: DeltaTable, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the row with the highest `epoch` for each value of the key columns; any of them if there are several."""
    within = f"PARTITION BY {', '.join(_quoted(name) for name in keys)} ORDER BY epoch DESC"
    columns = ", ".join(_quoted(field.name) for field in table.schema().fields)
    numbered = f"SELECT *, row_number() OVER ({within}) AS row_index FROM opened"
    return query_rows(table, f"SELECT {columns} FROM ({numbered}) WHERE row_index = 1")


def arrow_of(table: DeltaTable, schema: pa.Schema) -> pa.Table:
    """Return all rows of a table with the columns and types of a schema."""
    columns = ", ".join(_quoted(name) for name in schema.names)
    read = _query(table, f"SELECT {columns} FROM opened")
    # Spark does not take columns without any chunk.
    return read.cast(schema) if read.num_rows else schema.empty_table()


def query_rows(table: DeltaTable, query: str) -> list[dict[str, Any]]:
    """Return the rows of an SQL query's result, by column; the table's name in the query is `opened`."""
    rows: list[dict[str, Any]] = _query(table, query).to_pylist()
    return rows


def size_of(table: DeltaTable) -> int:
    """Return the total size of a table's files, in bytes."""
    return sum(file.size for file in active_files(table))


def columns_of(table: DeltaTable) -> StructType:
    """Return the columns of an open table."""
    from pyspark.sql.types import StructType  # commands that read rows alone do not need it

    return StructType.fromJson(json.loads(table.schema().to_json()))


def _query(table: DeltaTable, query: str) -> pa.Table:
    try:
        return pa.table(QueryBuilder().register("opened", table).execute(query).read_all())
    except Exception as error:
        if type(error) is not Exception:
            raise
        # The engine has no class of its own for errors such as a missing file or a damaged one.
        raise WarehouseError(
            f"a table cannot be read: {error}",
            table=table.table_uri,
            advice="bring its files back, or see `aggregator doctor`",
        ) from error


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
