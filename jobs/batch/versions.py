"""Rows of `_changelog` → what each replicaset did to each key in this batch.

Native Spark. One row a (layout's table, replicaset, key): the last tuple, or that it was deleted, with what is
needed to join it to the version from before. Keys with an UPDATE or UPSERT do not pass through here: they are
folded in order (`jobs.batch.folding`).

A key's *life* begins with an insertion where there was no tuple, and ends with a DELETE. `timestamp` is the latest
of the life's changes (a version's never goes back behind the one it replaces), `created` that of its first. A
DELETE that finds nothing changes nothing; whether the first row of a batch finds something only the table
knows, so `needs_base` leaves it open.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

KEYS = ["table", "replicaset_id", "_key"]

APART = ["_key", "table", "replicaset_id"]
"""The same, in the order to sort and group by: Spark compares eight bytes of the first column most quickly."""

COLUMNS = (
    *KEYS,
    "layout",
    "present",
    "tuple",
    "global_id",
    "lsn",
    "timestamp",
    "created",
    "began",
    "needs_base",
    "exact",
    "faults",
    "unknown",
)
"""Columns of a frame of changes.

`present`: whether the last change left a tuple; `began`: whether its life began in this batch for certain;
`needs_base`: the change is a DELETE that counts only if there was a tuple before the batch; `exact`: the version
before is worked in already; `faults`: rows that could not be applied; `unknown`: whether the tuple is not known since.
"""

FAULTS = "array<struct<global_id: bigint, lsn: bigint, code: int, reason: string>>"

ORDER = ("segment", "position", "row")


def _order() -> Column:
    return F.struct(*ORDER)


def _worst() -> Column:
    """Rows whose key cannot be told are one group, under no key; one of them stands for all."""
    count = F.count("key_error").alias("count")
    what = F.struct("global_id", "lsn", F.col("key_error").alias("error"))
    return F.struct(F.max_by(what, "key_error").alias("row"), count).alias("worst")


def _faults() -> Column:
    more = F.when(
        F.col("worst.count") > 1, F.concat(F.lit(" (rows like it: "), F.col("worst.count"), F.lit(")"))
    )
    reason = F.concat(F.col("worst.row.error"), F.coalesce(more, F.lit("")))
    one = F.struct(
        F.col("worst.row.global_id").alias("global_id"),
        F.col("worst.row.lsn").alias("lsn"),
        F.lit(None).cast("int").alias("code"),
        reason.alias("reason"),
    )
    return F.when(F.col("worst.row").isNotNull(), F.array(one)).cast(FAULTS).alias("faults")


def _deletes() -> Column:
    return F.col("type") == "DELETE"


def reduce_puts(rows: DataFrame) -> DataFrame:
    """Return the changes of rows among which is no DELETE.

    Parameters
    ----------
    rows : DataFrame
        `KEYS`, `ORDER`, layout, type, tuple, global_id, lsn, timestamp, key_error.

    """
    last = F.max_by(F.struct("layout", "tuple", "global_id", "lsn"), _order())
    reduced = rows.groupBy(*APART).agg(
        last.alias("last"),
        F.max("timestamp").alias("timestamp"),
        F.min_by("timestamp", _order()).alias("created"),
        _worst(),
    )
    return reduced.select(
        *KEYS,
        "last.layout",
        F.lit(True).alias("present"),
        "last.tuple",
        "last.global_id",
        "last.lsn",
        "timestamp",
        "created",
        F.lit(False).alias("began"),
        F.lit(False).alias("needs_base"),
        F.lit(False).alias("exact"),
        _faults(),
        F.col("worst.row").isNotNull().alias("unknown"),
    )


def reduce_rows(rows: DataFrame) -> DataFrame:
    """Return the changes of rows among which are DELETEs; arguments and result as in `reduce_puts`."""
    ordered = Window.partitionBy(*APART).orderBy(*ORDER)
    whole = Window.partitionBy(*APART)
    before = F.lag(_deletes()).over(ordered)
    marked = rows.withColumn("ends", _deletes() & ~F.coalesce(before, F.lit(False)))
    marked = marked.withColumn("first", before.isNull())
    last_end = F.max(F.when(F.col("ends"), _order())).over(whole)
    marked = marked.withColumn("last_end", last_end)
    # Only the last life counts, and the DELETE before it; a DELETE behind another one finds nothing.
    lasting = marked.where(F.col("last_end").isNull() | (_order() >= F.col("last_end")))
    lasting = lasting.where(~_deletes() | F.col("ends"))
    put = ~_deletes()
    end = F.max_by(
        F.struct("layout", "global_id", "lsn", "timestamp", "first"), F.when(F.col("ends"), _order())
    )
    reduced = lasting.groupBy(*APART).agg(
        F.max_by(F.struct("layout", "tuple", "global_id", "lsn"), F.when(put, _order())).alias("last"),
        F.max(F.when(put, F.col("timestamp"))).alias("timestamp"),
        F.min_by("timestamp", F.when(put, _order())).alias("created"),
        end.alias("end"),
        _worst(),
    )
    present = F.col("last").isNotNull()
    source = F.coalesce(F.col("last.layout"), F.col("end.layout"))
    return reduced.select(
        *KEYS,
        source.alias("layout"),
        present.alias("present"),
        F.col("last.tuple").alias("tuple"),
        F.when(present, F.col("last.global_id")).otherwise(F.col("end.global_id")).alias("global_id"),
        F.when(present, F.col("last.lsn")).otherwise(F.col("end.lsn")).alias("lsn"),
        F.when(present, F.col("timestamp")).otherwise(F.col("end.timestamp")).alias("timestamp"),
        F.col("created"),
        (present & F.col("end").isNotNull()).alias("began"),
        (~present & F.col("end.first")).alias("needs_base"),
        F.lit(False).alias("exact"),
        _faults(),
        F.col("worst.row").isNotNull().alias("unknown"),
    )
