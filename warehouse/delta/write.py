"""Creates tables, and appends rows to them, each in one commit of delta-rs, which takes hundredths of a second.

Not here: commits of files that tasks have written (`warehouse.delta.commits`).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.data_files import append_to
from warehouse.delta.location import WarehouseLocation

AGGREGATOR_COMMIT = CommitProperties(custom_metadata={"userMetadata": USER_METADATA})
"""The properties of a commit of the aggregator that has no mark of the fence (`warehouse.delta.fence`)."""

CHECKPOINT_INTERVAL, COMMITS_PER_CHECKPOINT = "delta.checkpointInterval", "10"
"""The property that says after how many commits a checkpoint of a table's log is written, and its value: Spark's.

delta-rs, whose own value is 100, reads all commits after the last checkpoint at each commit. With 10 a commit takes a
third of the time (`benchmarks/old_log.py`)."""


def schema_of(table: str) -> pa.Schema:
    """Return the Arrow schema of a system table, with times in UTC."""
    return to_arrow_schema(SYSTEM_TABLES[table], timezone="UTC")


def arrow_rows(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows of a system table as an Arrow table; a column that a row lacks is null."""
    schema = schema_of(table)
    given = list(rows)
    return pa.table({f.name: pa.array([row.get(f.name) for row in given], f.type) for f in schema}, schema)


def create(location: WarehouseLocation, table: str, schema: StructType, comment: str | None = None) -> None:
    """Create an empty table if there is none; raise WarehouseError if that fails."""
    with _as_warehouse_error(location, table, "the table cannot be created"):
        if location.has(table):  # cheaper than `DeltaTable.create`, which reads the log of an existing table
            return
        DeltaTable.create(
            location.uri(table),
            Schema.from_json(schema.json()),
            mode="ignore",
            description=comment,
            configuration={
                "delta.enableDeletionVectors": "false",
                CHECKPOINT_INTERVAL: COMMITS_PER_CHECKPOINT,
            },
            commit_properties=AGGREGATOR_COMMIT,
        )


def append(location: WarehouseLocation, table: str, rows: pa.Table) -> None:
    """Append rows with exactly the table's columns in one commit; raise WarehouseError if that fails."""
    with _as_warehouse_error(location, table, "the table cannot be written"):
        opened = DeltaTable(location.uri(table))
        wanted = _cast_to_table(opened, table, rows)
        append_to(opened, location, table, wanted, AGGREGATOR_COMMIT)


@contextmanager
def _as_warehouse_error(location: WarehouseLocation, table: str, problem: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError as error:
        raise WarehouseError("the table is not there", table=table, warehouse=location.root) from error
    except (DeltaError, OSError) as error:
        raise WarehouseError(f"{problem}: {error}", table=table) from error


def _cast_to_table(opened: DeltaTable, table: str, rows: pa.Table) -> pa.Table:
    """Return rows with the types and the order of a table's columns; raise WarehouseError if columns differ."""
    schema = pa.schema(opened.schema().to_arrow())
    if set(schema.names) != set(rows.column_names):
        differ = ", ".join(sorted(set(schema.names) ^ set(rows.column_names)))
        raise WarehouseError("the rows do not have the table's columns", table=table, columns=differ)
    return pa.table([_cast_column(rows[field.name], field.type) for field in schema], schema)


def _cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column cast to a type; the fields of a null variant become empty bytes, since they must not be null."""
    if not pa.types.is_struct(kind) or column.type == kind:
        return column.cast(kind)
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    parts = [pc.fill_null(whole.field(field.name), b"") for field in kind]
    return pa.chunked_array([pa.StructArray.from_arrays(parts, fields=list(kind), mask=whole.is_null())])
