"""Tables that come to be, and rows that this process holds → one commit, by delta-rs: hundredths of a second.

The same commit by Spark costs most of a second, a MERGE more, whatever they hold, and a batch has a handful of them.
Rows that lie in Spark are written there (`tables.warehouse`, `tables.spaces`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from tables.place import Place

MARK = "tarantool-aggregator"
"""The user metadata of every commit of ours."""

OURS = CommitProperties(custom_metadata={"userMetadata": MARK})

BESIDE = ("_keep", "_began")
"""What a change has beside the columns of its table, which no field's column can be called: the row goes where it is
not kept, and lends nothing to a successor that began anew."""

LENT = {"_created": "t._created", "_timestamp": "greatest(t._timestamp, s._timestamp)"}
"""What a row `t` that stays lends to its successor `s`, in SQL of both engines."""

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
        DeltaTable.create(
            place.uri(table),
            Schema.from_json(schema.json()),
            mode="ignore",
            description=comment,
            configuration={"delta.enableDeletionVectors": "false"},
            commit_properties=OURS,
        )


def append(place: Place, table: str, rows: pa.Table, instead_of: str | None = None) -> None:
    """Append rows in one commit.

    Parameters
    ----------
    place : Place
    table : str
    rows : pyarrow.Table
        Exactly its columns, in any order; variants as PySpark has them.
    instead_of : str, optional
        A condition in SQL, true of the new rows: those of which it was true go in the same commit.

    Raises
    ------
    WarehouseError
        Where the table is not there, has other columns, or cannot be written.

    """
    with _reported(place, table, "the table cannot be written"):
        opened = DeltaTable(place.uri(table))
        wanted = _fitted(opened, table, rows)
        mode: Literal["append", "overwrite"] = "append" if instead_of is None else "overwrite"
        write_deltalake(opened, wanted, mode=mode, predicate=instead_of, commit_properties=OURS)


def merge(place: Place, table: str, rows: pa.Table, *, goes_on: bool) -> None:
    """Write a batch's changes in one MERGE, as `tables.spaces.merge_rows` does.

    Parameters
    ----------
    rows : pyarrow.Table
        The table's columns and `BESIDE`; one row a `_key`.
    goes_on : bool
        Whether a row that stays lends its `_created`, and its `_timestamp` where that is later, to its
        successor, unless `_began`.

    Raises
    ------
    WarehouseError
        Where the table is not there, has other columns, or cannot be written.

    """
    with _reported(place, table, "the table cannot be written"):
        opened = DeltaTable(place.uri(table))
        beside = {name: rows[name] for name in BESIDE}
        wanted = _fitted(opened, table, rows.drop_columns(list(beside)))
        names = wanted.column_names
        for name, column in beside.items():
            wanted = wanted.append_column(name, column)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in names}
        update = dict(values)
        if goes_on:
            for name, lent in LENT.items():
                update[_quoted(name)] = f"CASE WHEN NOT s._began THEN {lent} ELSE s.{name} END"
        (
            opened.merge(
                wanted,
                "t._key = s._key",
                source_alias="s",
                target_alias="t",
                commit_properties=OURS,
            )
            .when_matched_update(update, predicate="s._keep")
            .when_matched_delete(predicate="NOT s._keep")
            .when_not_matched_insert(values, predicate="s._keep")
            .execute()
        )


def is_writable(table: DeltaTable) -> bool:
    """Whether a table asks no more of who writes it than ours do."""
    return set(table.protocol().writer_features or ()) <= OWN_FEATURES


def set_property(place: Place, table: str, name: str, value: str) -> None:
    """Set a property of a table, in a commit of its own.

    Raises
    ------
    WarehouseError
        Where the table is not there or cannot be written.

    """
    with _reported(place, table, f"the property {name} cannot be set"):
        opened = DeltaTable(place.uri(table))
        opened.alter.set_table_properties({name: value}, raise_if_not_exists=False, commit_properties=OURS)


@contextmanager
def _reported(place: Place, table: str, what: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError as error:
        raise WarehouseError("the table is not there", table=table, warehouse=place.root) from error
    except (DeltaError, OSError) as error:
        raise WarehouseError(f"{what}: {error}", table=table) from error


def _fitted(opened: DeltaTable, table: str, rows: pa.Table) -> pa.Table:
    """Return rows with the types and the order of a table's columns, all of which they must have, and no others."""
    schema = pa.schema(opened.schema().to_arrow())
    if set(schema.names) != set(rows.column_names):
        differ = ", ".join(sorted(set(schema.names) ^ set(rows.column_names)))
        raise WarehouseError("the table and the rows have other columns", table=table, columns=differ)
    return pa.table([_fitting(rows[field.name], field.type) for field in schema], schema)


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _fitting(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column as a type; what lies under the nulls of a variant is nothing there, and null before."""
    if not pa.types.is_struct(kind) or column.type == kind:
        return column.cast(kind)
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    parts = [pc.fill_null(whole.field(field.name), b"") for field in kind]
    return pa.chunked_array([pa.StructArray.from_arrays(parts, fields=list(kind), mask=whole.is_null())])
