"""What the tables hold of some keys before the batch: each replicaset's version.

The row in a space's table is its winner's version, or was made of several (`_replicaset_id` is negative then and
the row is no version); the others lie in `_versions`, of which the newest entry of a
(key, replicaset) holds, unless that replicaset's version is the row itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from jobs.batch.pin import Pinned
from jobs.batch.state import State
from jobs.batch.versions import APART, KEYS
from schemas.names import held_in
from schemas.tables import VERSION_COLUMNS, VERSIONS
from tables.warehouse import Warehouse

PRESENT, DELETED, UNFIT, MERGED = "present", "deleted", "unfit", "merged"
"""States of a version. MERGED is the row of a table that a policy made of several versions: nobody's own."""

_ROW = StructType([StructField(name, kind) for name, kind in VERSION_COLUMNS])

COLUMNS = (*KEYS, "tuple", "global_id", "lsn", "timestamp", "created", "state", "is_row")

NEWEST = ("is_row", "epoch")
"""What orders the entries of one key and replicaset."""


@dataclass(frozen=True)
class Keys:
    """Keys that are asked for.

    Parameters
    ----------
    frame : DataFrame
        Columns table and _key, distinct.
    here : pyarrow.Table or None
        The same where the driver holds them, and may hold what is found of them; some may stand twice.

    """

    frame: DataFrame
    here: pa.Table | None = None

    def of_table(self, number: int) -> pa.Array | None:
        """Return the keys of one table that the driver holds."""
        if self.here is None:
            return None
        return self.here.filter(pc.equal(self.here["table"], number))["_key"].combine_chunks()


def keys_of(rows: Pinned, wanted: Column, here: pc.Expression) -> Keys:
    """Return the keys of some rows.

    Parameters
    ----------
    rows : Pinned
        Columns table and _key among others.
    wanted : Column
        Which rows.
    here : pyarrow.compute.Expression
        The same condition.

    """
    frame = rows.frame.where(wanted).select("table", "_key").distinct()
    return Keys(frame, None if rows.rows is None else rows.rows.filter(here).select(["table", "_key"]))


def table_rows(warehouse: Warehouse, state: State, number: int, table: str) -> DataFrame:
    """Return the rows of a space's table as versions."""
    held = held_in(state.versions, table)
    return _of_table(number, warehouse.near(held, state.versions.get(held), _ROW))


def _of_table(number: int, rows: DataFrame) -> DataFrame:
    return rows.select(
        F.lit(number).alias("table"),
        F.col("_replicaset_id").alias("replicaset_id"),
        "_key",
        F.col("_tuple").alias("tuple"),
        F.col("_global_id").alias("global_id"),
        F.col("_lsn").alias("lsn"),
        F.col("_timestamp").alias("timestamp"),
        F.col("_created").alias("created"),
        F.when(F.col("_replicaset_id") < 0, MERGED).otherwise(PRESENT).alias("state"),
        F.lit(True).alias("is_row"),
        F.lit(0).cast("bigint").alias("epoch"),
    )


def other_versions(warehouse: Warehouse, state: State, tables: Mapping[int, str]) -> DataFrame:
    """Return the entries of `_versions` of some tables, stale ones included."""
    return _of_versions(warehouse.near("_versions", state.versions.get("_versions"), VERSIONS), tables)


def _of_versions(rows: DataFrame, tables: Mapping[int, str]) -> DataFrame:
    numbers = [part for number, name in tables.items() for part in (F.lit(name), F.lit(number))]
    rows = rows.where(F.col("space").isin(list(tables.values())))
    return rows.select(
        F.try_element_at(F.create_map(*numbers), F.col("space")).alias("table"),
        "replicaset_id",
        F.col("key").alias("_key"),
        "tuple",
        "global_id",
        "lsn",
        "timestamp",
        "created",
        "state",
        F.lit(False).alias("is_row"),
        "epoch",
    )


def outside(state: State, table: str) -> bool:
    """Whether versions of a table may lie in `_versions` that are more than tombstones of its only writer."""
    writers = state.writers.get(table)
    return writers is not None and (len(writers.replicasets) > 1 or writers.unfit)


def _is_mixed(state: State, table: str, *, tombstones: bool) -> bool:
    """Whether a table's versions are looked for in `_versions` too."""
    return table in state.versions and (tombstones or outside(state, table))


def entries_of(
    warehouse: Warehouse, state: State, tables: Mapping[int, str], keys: Keys, *, tombstones: bool
) -> DataFrame | None:
    """Return what the tables hold of some keys: `base_of` with epoch, and with entries that do not hold any more.

    `NEWEST` of a key and replicaset tells which one does.
    """
    known = {number: name for number, name in tables.items() if name in state.versions}
    if not known:
        return None
    parts = [_rows_with(warehouse, state, number, name, keys) for number, name in known.items()]
    mixed = {n: name for n, name in known.items() if _is_mixed(state, name, tombstones=tombstones)}
    if mixed:
        parts.append(_others_with(warehouse, state, mixed, keys))
    union = parts[0]
    for part in parts[1:]:
        union = union.unionByName(part)
    return union.select(*COLUMNS, "epoch")


def _rows_with(warehouse: Warehouse, state: State, number: int, table: str, keys: Keys) -> DataFrame:
    held, own = held_in(state.versions, table), keys.of_table(number)
    if own is not None:
        rows = warehouse.keyed(held, state.versions.get(held), _ROW, "_key", own)
        if rows is not None:
            return _of_table(number, rows)
    asked = keys.frame.where(F.col("table") == number).select("_key")
    return table_rows(warehouse, state, number, table).join(asked, "_key", "left_semi")


def _others_with(warehouse: Warehouse, state: State, tables: Mapping[int, str], keys: Keys) -> DataFrame:
    rows = None
    if keys.here is not None:
        own = keys.here["_key"].combine_chunks()
        rows = warehouse.keyed("_versions", state.versions.get("_versions"), VERSIONS, "key", own)
    found = other_versions(warehouse, state, tables) if rows is None else _of_versions(rows, tables)
    return found.join(keys.frame, ["table", "_key"], "left_semi")


def base_of(
    warehouse: Warehouse, state: State, tables: Mapping[int, str], keys: Keys, *, tombstones: bool
) -> DataFrame | None:
    """Return each replicaset's version of some keys as it stood before the batch.

    Parameters
    ----------
    warehouse : Warehouse
    state : State
        Tables are read at its versions.
    tables : mapping of int to str
        Number, as in column `table` of `keys`, to name.
    keys : Keys
    tombstones : bool
        Whether deleted versions are wanted; then `_versions` is read for each table.

    Returns
    -------
    DataFrame or None
        `COLUMNS`; None where no table existed.

    """
    entries = entries_of(warehouse, state, tables, keys, tombstones=tombstones)
    if entries is None:
        return None
    if any(_is_mixed(state, name, tombstones=tombstones) for name in tables.values()):
        newest = F.max_by(F.struct(*COLUMNS[len(KEYS) :]), F.struct(*NEWEST)).alias("v")
        entries = entries.groupBy(*APART).agg(newest).select(*KEYS, "v.*")
    entries = entries.select(*COLUMNS)
    return entries if tombstones else entries.where(F.col("state") != DELETED)
