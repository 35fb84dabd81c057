"""The batch's committed rows, read back from `_changelog`, with their table and canonical key.

A TRUNCATE or a drop becomes a DELETE of every key that the replicaset has in the table at that place of the log,
so the later steps know nothing of them. A space that moves becomes such DELETEs, and its versions stand again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from jobs.batch.base import PRESENT, UNFIT, Keys, base_of, other_versions, outside, table_rows
from jobs.batch.layouts import BEGINS, STANDS, Layout, Move, Wipe, earlier
from jobs.batch.pin import local
from jobs.batch.state import State
from jobs.batch.summary import Order
from jobs.batch.versions import KEYS, ORDER
from schemas.tables import CHANGELOG
from tables.warehouse import Warehouse
from udfs.keys import KEY_SPARK, canonical_keys, key_columns
from udfs.literals import array_literal

ROW_COLUMNS = (
    *KEYS,
    *ORDER,
    "layout",
    "type",
    "tuple",
    "operations",
    "index_base",
    "global_id",
    "lsn",
    "timestamp",
    "key_error",
)
"""Columns of a frame of keyed rows; `_key` is null where `key_error` is not."""


_WITH_TUPLE = ("INSERT", "REPLACE", "UPSERT")
"""Types whose key is in their tuple; the others' stands alone."""


def with_keys(changelog: DataFrame, layouts: Sequence[Layout]) -> DataFrame:
    """Return rows of `_changelog` that have a layout with `k`: their canonical key, or why they have none."""
    key = key_columns([layout.space for layout in layouts])
    from_tuple = F.col("type").isin(*_WITH_TUPLE)
    data = F.when(from_tuple, F.col("tuple")).otherwise(F.col("key"))
    return changelog.withColumn("k", key(data, F.col("layout"), from_tuple))


def with_keys_here(spark: SparkSession, changelog: pa.Table, layouts: Sequence[Layout]) -> DataFrame:
    """Return the same as `with_keys` for rows that the driver holds."""
    rows = changelog.combine_chunks()
    from_tuple = pc.is_in(rows["type"], pa.array(_WITH_TUPLE))
    data = pc.if_else(from_tuple, rows["tuple"], rows["key"])
    spaces = [layout.space for layout in layouts]
    keys = canonical_keys(_whole(data), spaces, _whole(rows["layout"]), _whole(from_tuple))
    rows = rows.append_column("k", keys)
    return local(spark, rows, StructType([*CHANGELOG.fields, StructField("k", KEY_SPARK)]))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def keyed_rows(
    changelog: DataFrame, layouts: Sequence[Layout], tables: Mapping[str, int], snapshots: Sequence[int]
) -> DataFrame:
    """Return the rows that change tables.

    Parameters
    ----------
    changelog : DataFrame
        The batch's rows of `_changelog`, with their keys.
    layouts : sequence of Layout
        By the column `layout`.
    tables : mapping of str to int
        Table name to its number.
    snapshots : sequence of int
        Segments that are snapshots: their rows have no usable time.

    Returns
    -------
    DataFrame
        `ROW_COLUMNS`.

    """
    numbers = [tables[layout.table] for layout in layouts]
    timed = F.when(~F.col("segment").isin(list(snapshots)), F.col("timestamp"))
    rows = changelog.withColumn("timestamp", timed if snapshots else F.col("timestamp"))
    return rows.select(
        F.get(array_literal(numbers, "int"), F.col("layout")).alias("table"),
        "replicaset_id",
        F.col("k.key").alias("_key"),
        *ROW_COLUMNS[len(KEYS) : -1],
        F.col("k.error").alias("key_error"),
    )


def with_wipes(
    rows: DataFrame,
    wipes: Sequence[tuple[Wipe, int | None, int | None]],
    held: Mapping[Wipe, DataFrame | None],
) -> DataFrame:
    """Return the rows with one DELETE for each key that a wipe ends.

    Parameters
    ----------
    rows : DataFrame
        `ROW_COLUMNS`.
    wipes : sequence of (Wipe, table's number, global id)
    held : mapping of Wipe to DataFrame or None
        `_key` of what the replicaset has in the table before the batch.

    """
    result = rows
    for wipe, number, global_id in wipes:
        here = F.struct(*ORDER)
        at = F.struct(
            F.lit(wipe.order.segment).alias("segment"),
            F.lit(wipe.order.position).cast("bigint").alias("position"),
            F.lit(wipe.order.row).alias("row"),
        )
        own = (
            rows.where(
                (F.col("table") == number) & (F.col("replicaset_id") == wipe.replicaset_id) & (here < at)
            )
            .where(F.col("_key").isNotNull())
            .select("_key")
        )
        before = held[wipe]
        keys = (own if before is None else own.unionByName(before)).distinct()
        result = result.unionByName(_deletes(keys, wipe, number, global_id))
    return result


def _deletes(keys: DataFrame, wipe: Wipe, number: int | None, global_id: int | None) -> DataFrame:
    values = {
        "table": F.lit(number),
        "replicaset_id": F.lit(wipe.replicaset_id),
        "_key": F.col("_key"),
        "segment": F.lit(wipe.order.segment),
        "position": F.lit(wipe.order.position).cast("bigint"),
        "row": F.lit(wipe.order.row),
        "layout": F.lit(None).cast("int"),
        "type": F.lit("DELETE"),
        "tuple": F.lit(None).cast("binary"),
        "operations": F.lit(None).cast("binary"),
        "index_base": F.lit(None).cast("int"),
        "global_id": F.lit(global_id).cast("bigint"),
        "lsn": F.lit(wipe.lsn).cast("bigint"),
        "timestamp": F.lit(wipe.timestamp).cast("timestamp"),
        "key_error": F.lit(None).cast("string"),
    }
    return keys.select([values[name].alias(name) for name in ROW_COLUMNS])


def with_moves(
    warehouse: Warehouse,
    state: State,
    rows: DataFrame,
    moves: Sequence[Move],
    held: Mapping[Wipe, DataFrame | None],
    layouts: Sequence[Layout],
    tables: Mapping[str, int],
) -> DataFrame:
    """Return the rows with what stands anew after a space has moved: each version, as it was.

    Two rows a version: one at the time when its key came to be, one as it stands, so that both times stay.

    Parameters
    ----------
    rows : DataFrame
        `ROW_COLUMNS`.
    held : mapping of Wipe to DataFrame or None
        As `with_wipes` takes it.

    """
    result = rows
    for move in moves:
        keys, table = held[move.ends], move.ends.table
        if keys is None:
            continue
        number, layout = tables[table], layouts[move.layout]
        keys = keys.distinct().select(F.lit(number).alias("table"), "_key")
        base = base_of(warehouse, state, {number: table}, Keys(keys), tombstones=False)
        if base is None:
            continue
        own = (F.col("replicaset_id") == move.ends.replicaset_id) & F.col("state").isin(PRESENT, UNFIT)
        key = key_columns([layout.space])(F.col("tuple"), F.lit(0), F.lit(True))
        versions = base.where(own).withColumn("k", key)
        born = versions.where(F.col("created") < F.col("timestamp")).withColumn("timestamp", F.col("created"))
        for part, place in ((born, earlier(move.order, BEGINS)), (versions, earlier(move.order, STANDS))):
            result = result.unionByName(_stands(part, place, tables[layout.table], move.layout))
    return result


def _stands(versions: DataFrame, place: Order, number: int, layout: int) -> DataFrame:
    values = {
        "table": F.lit(number),
        "_key": F.col("k.key"),
        "segment": F.lit(place.segment),
        "position": F.lit(place.position).cast("bigint"),
        "row": F.lit(place.row),
        "layout": F.lit(layout),
        "type": F.lit("REPLACE"),
        "operations": F.lit(None).cast("binary"),
        "index_base": F.lit(None).cast("int"),
        "key_error": F.col("k.error"),
    }
    return versions.select([values.get(name, F.col(name)).alias(name) for name in ROW_COLUMNS])


def held_keys(warehouse: Warehouse, state: State, wipe: Wipe, number: int) -> DataFrame | None:
    """Return the keys that a replicaset has in a table before the batch; None where there is no such table."""
    if wipe.table not in state.versions:
        return None
    own = F.col("replicaset_id") == wipe.replicaset_id
    keys = table_rows(warehouse, state, number, wipe.table).where(own).select("_key")
    if outside(state, wipe.table):
        others = other_versions(warehouse, state, {number: wipe.table}).where(own)
        keys = keys.unionByName(others.where(F.col("state").isin(PRESENT, UNFIT)).select("_key"))
    return keys


def unchanged(
    warehouse: Warehouse, state: State, rows: DataFrame, wipes: Sequence[tuple[Wipe, int]]
) -> DataFrame | None:
    """Return the rows of generations that say what their replicaset's versions say already, as `_SAME`.

    Parameters
    ----------
    rows : DataFrame
        `ROW_COLUMNS`.
    wipes : sequence of (Wipe, table's number)
        Those that renew a space.

    """
    found = None
    for wipe, number in wipes:
        if wipe.table not in state.versions:
            continue
        new = of_generation(rows, wipe, number).select(*_SAME, "tuple")
        asked = Keys(new.select("table", "_key"))
        base = base_of(warehouse, state, {number: wipe.table}, asked, tombstones=False)
        if base is not None:
            same = new.join(base.select(*KEYS, "tuple"), [*KEYS, "tuple"], "left_semi").select(*_SAME)
            found = same if found is None else found.unionByName(same)
    return found


_SAME = [*KEYS, "segment"]


def without(rows: DataFrame, same: DataFrame) -> DataFrame:
    """Return the rows without those that `unchanged` found."""
    return rows.join(same, _SAME, "left_anti").select(*ROW_COLUMNS)


def of_generation(rows: DataFrame, wipe: Wipe, number: int) -> DataFrame:
    """Return the rows that a generation has of a space that it renews."""
    own = (F.col("table") == number) & (F.col("replicaset_id") == wipe.replicaset_id)
    return rows.where(own & (F.col("segment") == wipe.order.segment) & F.col("_key").isNotNull())
