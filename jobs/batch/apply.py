"""Decisions → the Delta tables of spaces.

One MERGE a space's table (one append where it is empty), side by side, each from a session of its own. Typed
columns are made here and only here, from the exact tuple. What does not fit its format goes to `_quarantine` and
stays a version (`unfit`), so that a later UPDATE finds it.
Not here: what wins (`jobs.batch.resolve`), what other tables tell of it (`jobs.batch.tell`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.batch.base import PRESENT
from schemas.layout import ERROR_COLUMN, TableLayout
from schemas.space import Space
from schemas.tables import VERSION_COLUMNS
from tables.spaces import merge_rows
from tables.warehouse import Warehouse
from udfs.tuples import tuple_columns


@dataclass(frozen=True)
class Target:
    """One space's table in a batch.

    Parameters
    ----------
    number : int
        In column `table` of the frames.
    name : str
        The table's.
    layout : TableLayout
        Its typed columns.
    formats : mapping of int to int
        Replicaset id to the index of its format in `layout`.
    is_empty : bool
        Whether nothing was ever written to it.
    spaces : tuple of Space
        The space's definitions, in the order of the layout's formats.

    """

    number: int
    name: str
    layout: TableLayout
    formats: Mapping[int, int]
    is_empty: bool
    spaces: tuple[Space, ...] = ()


def table_changes(decided: DataFrame, number: int) -> DataFrame:
    """Return what changes in one table: the new winner of a key, or that there is none any more."""
    own = decided.where(F.col("table") == number)
    put = F.col("wins") & (F.col("state") == PRESENT)
    moved = F.col("changed") | ~F.col("is_row")
    gone = ~put & F.coalesce(F.col("winner.state") != PRESENT, F.lit(True))
    last_of_key = F.col("is_row") | (
        F.col("changed") & F.col("row_replicaset_id").eqNullSafe(F.col("replicaset_id"))
    )
    return own.where((put & moved) | (gone & last_of_key)).withColumn("put", put)


def typed(changes: DataFrame, target: Target) -> DataFrame:
    """Return the changes with the typed columns in a struct `typed`; its `_error` says what does not fit."""
    decode = tuple_columns(target.layout)
    format_ = format_column(target)
    tuple_ = F.when(F.col("put"), F.col("tuple"))
    return changes.withColumn("typed", decode(tuple_, format_)).withColumn(
        "keep", F.col("put") & F.col("typed").getField(ERROR_COLUMN).isNull()
    )


def format_column(target: Target) -> Column:
    """Return the index of the format of a version's tuple in the table's layout."""
    column = F.lit(None).cast("int")
    for replicaset_id, index in target.formats.items():
        # A tuple that a policy made bears minus the id of the replicaset whose format it has.
        own = F.abs(F.col("replicaset_id")) == replicaset_id
        column = F.when(own, F.lit(index)).otherwise(column)
    return column


def table_columns(target: Target) -> dict[str, Column]:
    """Return the columns of a space's table, from a frame of typed changes."""
    columns = {field.name: F.col("typed").getField(field.name) for field in target.layout.spark_schema()}
    sources = ("_key", "tuple", "global_id", "replicaset_id", "lsn", "timestamp", "created")
    for (name, _), source in zip(VERSION_COLUMNS, sources, strict=True):
        columns[name] = F.col(source)
    return columns


def write_table(warehouse: Warehouse, target: Target, changes: DataFrame, *, goes_on: bool) -> None:
    """Write one space's table.

    Parameters
    ----------
    changes : DataFrame
        From `typed`.
    goes_on : bool
        Whether `began` decides if the row before lends its `_created`: the changes were not joined with it.

    """
    columns = table_columns(target)
    wanted = changes.select(*[column.alias(name) for name, column in columns.items()], "keep", "began")
    if target.is_empty:
        warehouse.append(target.name, wanted.where("keep").drop("keep", "began"))
        return
    merge_rows(warehouse, target.name, wanted, list(columns), goes_on=goes_on)
