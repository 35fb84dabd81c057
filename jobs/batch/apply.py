"""Decisions → the Delta tables of spaces, and the tables that tell of them.

One MERGE a space's table (one append where it is empty), side by side, each from a session of its own. Typed
columns are made here and only here, from the exact tuple. What does not fit its format goes to `_quarantine` and
stays a version (`unfit`), so that a later UPDATE finds it.
Not here: what wins (`jobs.batch.resolve`), when it is committed (`jobs.batch.run`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.batch.base import DELETED, PRESENT, UNFIT
from schemas.layout import ERROR_COLUMN, TableLayout
from schemas.tables import CONFLICTS, QUARANTINE, VERSION_COLUMNS, VERSIONS
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

    """

    number: int
    name: str
    layout: TableLayout
    formats: Mapping[int, int]
    is_empty: bool


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
        column = F.when(F.col("replicaset_id") == replicaset_id, F.lit(index)).otherwise(column)
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


def version_rows(decided: DataFrame, names: Mapping[int, str], epoch: int) -> DataFrame:
    """Return what is appended to `_versions`: losers that are new or were the row, and deleted versions."""
    tells = ~F.col("wins") & (F.col("changed") | F.col("is_row"))
    deleted_winner = F.col("wins") & (F.col("state") == DELETED) & F.col("changed")
    rows = decided.where((tells | deleted_winner) & F.col("_key").isNotNull())
    return _named(rows, names).select(
        "space",
        F.col("_key").alias("key"),
        "replicaset_id",
        # A tuple that a fault left unknown must not be taken for the base of a later UPDATE.
        F.when(F.col("faults").isNull(), F.col("tuple")).alias("tuple"),
        *(F.col(c).cast(VERSIONS[c].dataType) for c in ("global_id", "lsn", "timestamp", "created")),
        "state",
        F.lit(epoch).cast("bigint").alias("epoch"),
    )


def unfit_versions(changes: DataFrame, target: Target, epoch: int) -> DataFrame:
    """Return the versions that do not fit their format, for `_versions`."""
    return changes.where(F.col("put") & ~F.col("keep")).select(
        F.lit(target.name).alias("space"),
        F.col("_key").alias("key"),
        "replicaset_id",
        "tuple",
        "global_id",
        "lsn",
        "timestamp",
        "created",
        F.lit(UNFIT).alias("state"),
        F.lit(epoch).cast("bigint").alias("epoch"),
    )


def unfit_rows(changes: DataFrame, target: Target, epoch: int) -> DataFrame:
    """Return the same for `_quarantine`, with the reason."""
    return (
        changes.where(F.col("put") & ~F.col("keep"))
        .select(
            F.lit(epoch).cast("bigint").alias("epoch"),
            "replicaset_id",
            F.lit(target.name).alias("space"),
            F.col("_key").alias("key"),
            "tuple",
            F.lit(None).cast("binary").alias("operations"),
            "global_id",
            "lsn",
            F.lit(None).cast("string").alias("file"),
            F.lit(None).cast("bigint").alias("position"),
            F.col("typed").getField(ERROR_COLUMN).alias("reason"),
        )
        .select([f.name for f in QUARANTINE])
    )


def fault_rows(decided: DataFrame, names: Mapping[int, str], epoch: int) -> DataFrame:
    """Return what is appended to `_quarantine`: rows of the log that could not be applied to their key."""
    rows = decided.where(F.col("changed") & F.col("faults").isNotNull())
    rows = _named(rows, names).withColumn("fault", F.explode("faults"))
    columns = {
        "epoch": F.lit(epoch),
        "replicaset_id": F.col("replicaset_id"),
        "space": F.col("space"),
        "key": F.col("_key"),
        "tuple": F.col("tuple"),
        "global_id": F.col("fault.global_id"),
        "lsn": F.col("fault.lsn"),
        "reason": F.col("fault.reason"),
    }
    return rows.select([columns.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in QUARANTINE])


def conflict_rows(
    decided: DataFrame, names: Mapping[int, str], epoch: int, policies: Mapping[int, str]
) -> DataFrame:
    """Return what is appended to `_conflicts`: each version that lost to another replicaset's."""
    met = F.col("decision") & ~F.col("wins") & (F.col("state") != UNFIT)
    rows = _named(decided.where(met & (F.col("changed") | F.col("winner.changed"))), names)
    policy = F.create_map(*[part for n, p in policies.items() for part in (F.lit(n), F.lit(p))])
    unknown = F.col("timestamp").isNull() | F.col("winner.timestamp").isNull()
    columns = {
        "epoch": F.lit(epoch),
        "decided_at": F.current_timestamp(),
        "space": F.col("space"),
        "key": F.col("_key"),
        "policy": F.try_element_at(policy, F.col("table")),
        **{
            f"winner_{c}": F.col(f"winner.{c}")
            for c in ("replicaset_id", "global_id", "lsn", "timestamp", "tuple")
        },
        **{f"loser_{c}": F.col(c) for c in ("replicaset_id", "global_id", "lsn", "timestamp", "tuple")},
        "changed": F.when(F.col("changed") & F.col("winner.changed"), "both")
        .when(F.col("changed"), "loser")
        .otherwise("winner"),
        "note": F.when(unknown, "time unknown"),
    }
    return rows.select([columns[f.name].cast(f.dataType).alias(f.name) for f in CONFLICTS])


def _named(rows: DataFrame, names: Mapping[int, str]) -> DataFrame:
    numbers = [part for number, name in names.items() for part in (F.lit(number), F.lit(name))]
    return rows.withColumn("space", F.try_element_at(F.create_map(*numbers), F.col("table")))
