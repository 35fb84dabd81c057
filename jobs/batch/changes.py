"""Keyed rows → decided changes of all tables of a batch: reduce, fold, meet what was there, choose.

The data's way, in order: rows with only puts and deletes are reduced natively; keys with an UPDATE or UPSERT are
folded in Arrow over the version before; what needs it meets the versions before; tables that several
replicasets write go through the choice. Each table takes the shortest way that is right for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.batch.base import PRESENT, UNFIT, base_of, entries_of, keys_of
from jobs.batch.choices import Choice
from jobs.batch.decide import decide
from jobs.batch.identities import Identities
from jobs.batch.pin import Pinned, Pins, by_key, local
from jobs.batch.resolve import changes_and_entries, first, met, sole
from jobs.batch.state import State
from jobs.batch.versions import APART, KEYS, ORDER, reduce_puts, reduce_rows
from tables.warehouse import Warehouse
from udfs.fold_arrow import RESULT_FIELDS, RESULT_SPARK, ROW_COLUMNS, fold_arrow
from udfs.tuple_format import TupleFormat

FOLDED = pa.schema(
    [("table", pa.int32()), ("replicaset_id", pa.int32()), ("_key", pa.binary()), *RESULT_FIELDS]
)


OPERATIONS = ("UPDATE", "UPSERT")


@dataclass(frozen=True)
class Traits:
    """What is known of one table's rows in a batch before they are looked at.

    Parameters
    ----------
    number : int
    name : str
    deletes, operations : bool
        Whether there are DELETEs (also by a truncation), UPDATEs or UPSERTs.
    contended : bool
        Whether several replicasets write it, or have versions outside of it.

    """

    number: int
    name: str
    deletes: bool
    operations: bool
    contended: bool


def _of(rows: DataFrame, traits: Sequence[Traits]) -> DataFrame:
    return rows.where(F.col("table").isin([t.number for t in traits]))


def simple_changes(rows: DataFrame, traits: Sequence[Traits]) -> list[DataFrame]:
    """Return the changes of tables without operations."""
    puts = [t for t in traits if not t.deletes and not t.operations]
    deletes = [t for t in traits if t.deletes and not t.operations]
    found = []
    if puts:
        found.append(reduce_puts(_of(rows, puts)))
    if deletes:
        found.append(reduce_rows(_of(rows, deletes)))
    return found


def folded_changes(
    warehouse: Warehouse,
    state: State,
    rows: Pinned,
    traits: Sequence[Traits],
    formats: Sequence[TupleFormat],
    pins: Pins,
) -> list[DataFrame]:
    """Return the changes of tables with operations: keys without any are reduced, the others folded."""
    mixed = [t for t in traits if t.operations]
    if not mixed:
        return []
    whole = Window.partitionBy(*APART)
    operates = F.col("type").isin(*OPERATIONS)
    marked = _of(rows.frame, mixed).withColumn("operated", F.max(operates).over(whole))
    folds = F.col("operated") & F.col("_key").isNotNull()
    plain = marked.where(~folds).drop("operated")
    operated = marked.where(folds).drop("operated")
    names = {t.number: t.name for t in mixed}
    one = (
        pc.field("type").isin(OPERATIONS) & pc.field("_key").is_valid() & pc.field("table").isin(list(names))
    )
    keys = keys_of(rows, operates & F.col("_key").isNotNull() & F.col("table").isin(list(names)), one)
    base = base_of(warehouse, state, names, keys, tombstones=False)
    return [reduce_rows(plain), _fold(operated, base, formats, pins)]


def _fold(rows: DataFrame, base: DataFrame | None, formats: Sequence[TupleFormat], pins: Pins) -> DataFrame:
    columns = [*KEYS, *ORDER, *ROW_COLUMNS]
    stream = rows.withColumn("created", F.lit(None).cast("timestamp")).select(*columns)
    if base is not None:
        stream = stream.unionByName(_base_rows(base).select(*columns))
    fields = list(formats)
    schema = "table int, replicaset_id int, _key binary, " + RESULT_SPARK
    if pins.is_small:
        ordered = stream.sort(*APART, *ORDER).drop(*ORDER).toArrow()
        batches = list(fold_arrow(ordered.to_batches(), KEYS, fields))
        folded = local(
            rows.sparkSession,
            pa.Table.from_batches(batches, FOLDED),
            cast(StructType, StructType.fromDDL(schema)),
        )
    else:

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return fold_arrow(batches, KEYS, fields)

        apart = by_key(stream).sortWithinPartitions(*APART, *ORDER).drop(*ORDER)
        folded = apart.mapInArrow(run, schema)
    folded = folded.where((F.col("state") != "absent") & (F.col("is_changed") | (F.size("faults") > 0)))
    return folded.select(
        *KEYS,
        F.when(F.col("layout") >= 0, F.col("layout")).alias("layout"),
        F.col("state").isin(PRESENT, UNFIT).alias("present"),
        *("tuple", "global_id", "lsn", "timestamp", "created"),
        F.lit(True).alias("began"),
        F.lit(False).alias("needs_base"),
        F.lit(True).alias("exact"),
        F.when(F.size("faults") > 0, F.col("faults")).alias("faults"),
        (F.col("state") == UNFIT).alias("unknown"),
    )


def _base_rows(base: DataFrame) -> DataFrame:
    return base.select(
        *KEYS,
        F.lit(-(2**31)).alias("segment"),
        F.lit(0).cast("bigint").alias("position"),
        F.lit(0).alias("row"),
        F.when(F.col("tuple").isNull(), "UNFIT").otherwise("VERSION").alias("type"),
        "tuple",
        F.lit(None).cast("binary").alias("operations"),
        F.lit(None).cast("int").alias("index_base"),
        "global_id",
        "lsn",
        "timestamp",
        F.lit(-1).alias("layout"),
        "created",
    )


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows of frames with the same columns."""
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionByName(frame)
    return result


def decided_changes(
    warehouse: Warehouse,
    state: State,
    changes: Pinned,
    traits: Sequence[Traits],
    identities: Identities,
    choices: Mapping[int, Choice],
    pins: Pins,
) -> DataFrame:
    """Return the decided versions (`jobs.batch.resolve.DECIDED`) of all keys that the batch touched.

    Parameters
    ----------
    changes : Pinned
        Of all tables, as `jobs.batch.versions.COLUMNS`.
    choices : mapping of int to Choice
        By table number.

    """
    found = []
    alone = [t for t in traits if not t.contended]
    together = [t for t in traits if t.contended]
    if alone:
        found.append(sole(_effective(warehouse, state, changes, alone, pins)))
    if together:
        own = _of(changes.frame, together)
        names = {t.number: t.name for t in together}
        keys = keys_of(changes, F.col("table").isin(list(names)), pc.field("table").isin(list(names)))
        entries = entries_of(warehouse, state, names, keys, tombstones=True)
        versions = (
            first(own) if entries is None else met(pins.beside(*changes_and_entries(own, pins.near(entries))))
        )
        of_them = {t.number: choices[t.number] for t in together}
        found.append(decide(versions, identities, of_them, pins.cache))
    return union(found)


def _effective(
    warehouse: Warehouse, state: State, changes: Pinned, traits: Sequence[Traits], pins: Pins
) -> DataFrame:
    """Leave out the DELETEs that found nothing, where one replicaset writes alone."""
    own = _of(changes.frame, traits)
    doubtful = {t.number: t.name for t in traits if t.deletes or t.operations}
    if not doubtful:
        return own
    numbers = [t.number for t in traits]
    asked = own.where("needs_base")
    certain = own.where("NOT needs_base")
    keys = keys_of(
        changes,
        F.col("needs_base") & F.col("table").isin(numbers),
        pc.field("needs_base") & pc.field("table").isin(numbers),
    )
    base = base_of(warehouse, state, doubtful, keys, tombstones=False)
    if base is None:
        return certain
    known = pins.near(base.select(*KEYS))
    return certain.unionByName(asked.join(known, KEYS, "left_semi").select(*changes.frame.columns))
