"""Each replicaset's versions of a key → the row of the table: before_replace, as native Spark expressions.

The row is a pure function of the versions: they are ordered by (sequence, replicaset uuid, instance uuid, lsn) and
the last one wins. A key that one replicaset alone has written passes through without a decision. Rows of a
snapshot have neither origin nor time: they stand lowest.
Not here: how the choice is written (`jobs.batch.apply`), policies that need Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobs.batch.base import DELETED, PRESENT, UNFIT
from jobs.batch.versions import KEYS

VERSION = ("layout", "tuple", "global_id", "lsn", "timestamp", "created", "state")
TOLD = ("tuple", "global_id", "lsn", "timestamp", "state", "changed")
DECIDED = (
    *(*KEYS, *VERSION, "began", "faults", "changed", "is_row"),
    *("wins", "winner", "row_replicaset_id", "decision"),
)
"""Columns of a decided frame: one row a version. `wins`: it is the key's version now; `winner`: the one that is;
`row_replicaset_id`: whose version the row was before; `decision`: whether versions of several replicasets met;
`began`: the version is to be written as it is, not joined with the row that it replaces."""


@dataclass(frozen=True)
class Identities:
    """Uuids by number: what the order of versions falls back on.

    Parameters
    ----------
    replicasets : sequence of str
        Uuid by replicaset id; position 0 is the aggregator's.
    instances : sequence of str
        Uuid by global id.

    """

    replicasets: Sequence[str]
    instances: Sequence[str]

    def order(self) -> list[Column]:
        """Return what decides between versions of one sequence."""
        return [
            F.get(F.lit(list(self.replicasets)), F.col("replicaset_id")),
            F.get(F.lit(list(self.instances)), F.col("global_id").cast("int")),
            F.col("lsn"),
        ]


def join_base(changes: DataFrame, base: DataFrame | None) -> DataFrame:
    """Return each replicaset's version after the batch, of every key that the batch touched.

    Parameters
    ----------
    changes : DataFrame
        As `jobs.batch.versions` makes them; `exact` where the version before is worked in already.
    base : DataFrame or None
        As `jobs.batch.base` makes it.

    """
    if base is None:
        return _of_changes(changes.where(~F.col("needs_base"))).withColumn("began", F.lit(True))
    old = base.select(*KEYS, F.struct(*[c for c in base.columns if c not in KEYS]).alias("old"))
    new = changes.select(*KEYS, F.struct(*[c for c in changes.columns if c not in KEYS]).alias("new"))
    both = old.join(new, KEYS, "full_outer")
    had = F.coalesce(F.col("old.state") != DELETED, F.lit(False))
    counts = F.col("new").isNotNull() & ~(F.col("new.needs_base") & ~had)
    goes_on = had & F.col("new.present") & ~F.col("new.began") & ~F.col("new.exact")
    timestamp = F.when(goes_on, F.greatest("old.timestamp", "new.timestamp")).otherwise(
        F.col("new.timestamp")
    )
    created = F.when(goes_on, F.col("old.created")).otherwise(F.col("new.created"))
    version = F.struct(
        F.col("new.layout").alias("layout"),
        F.col("new.tuple").alias("tuple"),
        F.col("new.global_id").alias("global_id"),
        F.col("new.lsn").alias("lsn"),
        timestamp.alias("timestamp"),
        created.alias("created"),
        _state("new.").alias("state"),
    )
    kept = F.struct(
        F.lit(None).cast("int").alias("layout"), *[F.col(f"old.{name}").alias(name) for name in VERSION[1:]]
    )
    result = both.withColumn("v", F.when(counts, version).otherwise(kept)).where(F.col("v.state").isNotNull())
    return result.select(
        *KEYS,
        "v.*",
        F.lit(True).alias("began"),
        F.when(counts, F.col("new.faults")).alias("faults"),
        F.coalesce(counts, F.lit(False)).alias("changed"),
        F.coalesce(F.col("old.is_row"), F.lit(False)).alias("is_row"),
    )


def _state(of: str = "") -> Column:
    unfit = F.col(f"{of}faults").isNotNull()
    return F.when(unfit, UNFIT).when(F.col(f"{of}present"), PRESENT).otherwise(DELETED)


def _of_changes(changes: DataFrame) -> DataFrame:
    return changes.select(
        *KEYS,
        *VERSION[:-1],
        _state().alias("state"),
        *("began", "faults"),
        F.lit(True).alias("changed"),
        F.lit(False).alias("is_row"),
    )


def decide(
    versions: DataFrame, identities: Identities, sequences: Mapping[int, Column], deletes_all: Sequence[int]
) -> DataFrame:
    """Choose the winner of each key by last_write_wins.

    Parameters
    ----------
    versions : DataFrame
        As `join_base` makes them.
    identities : Identities
    sequences : mapping of int to Column
        Table number to its sequence as bytes in order; tables without one compare timestamps.
    deletes_all : sequence of int
        Tables in which a deleted version takes part in the choice.

    """
    own = F.lit(None).cast("binary")
    for number, column in sequences.items():
        own = F.when(F.col("table") == number, column).otherwise(own)
    time = F.when(F.col("table").isin(list(sequences)), F.lit(None)).otherwise(F.col("timestamp"))
    # A version that does not fit its format can win, and then there is no row: it must not matter in which
    # batch it was found not to fit.
    takes_part = F.col("state").isin(PRESENT, UNFIT) | (
        F.col("table").isin(list(deletes_all)) & (F.col("state") == DELETED)
    )
    order = F.struct(own, time, *identities.order())
    key = Window.partitionBy("table", "_key")
    numbered = versions.withColumn("order", F.when(takes_part, order))
    what = _told()
    decided = (
        numbered.withColumn("winner", F.max_by(what, "order").over(key))
        .withColumn("row_replicaset_id", F.max(F.when(F.col("is_row"), F.col("replicaset_id"))).over(key))
        .withColumn("candidates", F.count("order").over(key))
    )
    wins = F.coalesce(F.col("winner.replicaset_id") == F.col("replicaset_id"), F.lit(False))
    return decided.withColumn("wins", wins).withColumn("decision", F.col("candidates") > 1).select(*DECIDED)


def _told() -> Column:
    """Return a version as it stands beside the others; a key without a winner has none of it, so all may be null."""
    return F.struct(
        *[F.when(F.col("table") >= 0, F.col(name)).alias(name) for name in ("replicaset_id", *TOLD)]
    )


def sole(changes: DataFrame) -> DataFrame:
    """Return the decided frame of tables that one replicaset writes: each version wins, or is gone.

    Parameters
    ----------
    changes : DataFrame
        Not joined with the versions before: the table's MERGE does that, and says so by `began`.

    """
    present = F.col("state") == PRESENT
    what = _told()
    return _of_changes(changes).select(
        *KEYS,
        *VERSION,
        *("began", "faults", "changed", "is_row"),
        present.alias("wins"),
        F.when(present, what).alias("winner"),
        F.col("replicaset_id").alias("row_replicaset_id"),
        F.lit(False).alias("decision"),
    )
