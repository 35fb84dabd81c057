"""Each replicaset's versions of a key → the row of the table: before_replace, as native Spark expressions.

The row is a pure function of the versions: the policy orders them, at last by (replicaset uuid, instance uuid, lsn),
and the last one wins. A key that one replicaset alone has written passes through without a decision. Rows of a
snapshot have neither origin nor time: they stand lowest.
Not here: the order of a policy (`jobs.batch.choices`), policies that make tuples (`jobs.batch.decide`), how the choice
is written (`jobs.batch.apply`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from jobs.batch.base import DELETED, NEWEST, PRESENT, UNFIT
from jobs.batch.choices import Choice, by_table
from jobs.batch.identities import Identities
from jobs.batch.versions import APART, KEYS

VERSION = ("layout", "tuple", "global_id", "lsn", "timestamp", "created", "state")
TOLD = ("tuple", "global_id", "lsn", "timestamp", "state", "changed")
DECIDED = (
    *(*KEYS, *VERSION, "began", "faults", "unknown", "changed", "is_row"),
    *("wins", "winner", "row_replicaset_id", "decision", "differs", "fault"),
)
"""Columns of a decided frame: one row a version. `wins`: it is the key's version now; `winner`: the one that is;
`row_replicaset_id`: whose version the row was before; `decision`: whether versions of several replicasets met;
`began`: the version is to be written as it is, not joined with the row that it replaces; `differs`: which place of the
order told the version from the winner (`jobs.batch.choices.Choice.labels`); `fault`: why the policy has no result."""

BY_UUID, BY_RESOLVER = 4, 5
"""Values of `differs`, behind the named places of the order."""


def of_key() -> WindowSpec:
    """Return the window over all versions of a key."""
    return Window.partitionBy("_key", "table")


def changes_and_entries(changes: DataFrame, entries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return both with what they say in one column, `new` or `old`: for a union, which lets `met` pass over it once.

    Parameters
    ----------
    changes : DataFrame
        As `jobs.batch.versions` makes them; `exact` where the version before is worked in already.
    entries : DataFrame
        As `jobs.batch.base.entries_of` makes them.

    """
    return _in_one(changes, "new"), _in_one(entries, "old")


def _in_one(frame: DataFrame, name: str) -> DataFrame:
    return frame.select(*KEYS, F.struct(*[c for c in frame.columns if c not in KEYS]).alias(name))


def first(changes: DataFrame) -> DataFrame:
    """Return the versions after the first batch of its tables: each change is one, if it was to anything."""
    return _of_changes(changes.where(~F.col("needs_base"))).withColumn("began", F.lit(True))


def met(both: DataFrame) -> DataFrame:
    """Return each replicaset's version after the batch, of every key that the batch touched.

    Parameters
    ----------
    both : DataFrame
        The union of `changes_and_entries`.

    """
    order = F.when(F.col("old").isNotNull(), F.struct(*[F.col(f"old.{name}") for name in NEWEST]))
    both = both.groupBy(*APART).agg(
        F.max_by("old", order).alias("old"), F.max_by("new", F.when(F.col("new").isNotNull(), 1)).alias("new")
    )
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
        F.coalesce(counts & F.col("new.unknown"), F.lit(False)).alias("unknown"),
        F.coalesce(counts, F.lit(False)).alias("changed"),
        F.coalesce(F.col("old.is_row"), F.lit(False)).alias("is_row"),
    )


def _state(of: str = "") -> Column:
    return F.when(F.col(f"{of}unknown"), UNFIT).when(F.col(f"{of}present"), PRESENT).otherwise(DELETED)


def _of_changes(changes: DataFrame) -> DataFrame:
    return changes.select(
        *KEYS,
        *VERSION[:-1],
        _state().alias("state"),
        *("began", "faults", "unknown"),
        F.lit(True).alias("changed"),
        F.lit(False).alias("is_row"),
    )


def ordered(versions: DataFrame, identities: Identities, choices: Mapping[int, Choice]) -> DataFrame:
    """Return the versions with their place in the order, null where they take no part, and how many do."""
    deletes_all = [number for number, choice in choices.items() if choice.deletes_all]
    # A version that does not fit its format can win, and then there is no row: it must not matter in which
    # batch it was found not to fit.
    takes_part = F.col("state").isin(PRESENT, UNFIT) | (
        F.col("table").isin(deletes_all) & (F.col("state") == DELETED)
    )
    counted = versions.withColumn("takes_part", takes_part)
    counted = counted.withColumn("candidates", F.count(F.when(takes_part, 1)).over(of_key()))
    layout = by_table(choices, "int", lambda choice: choice.layout)
    # What no other version contends for is not looked into.
    contended = counted.withColumn("kept", F.col("tuple")).withColumn(
        "tuple", F.when(F.col("candidates") > 1, F.col("tuple"))
    )
    contended = contended.withColumn("format", layout)
    place = F.struct(
        by_table(choices, "bigint", lambda choice: choice.preference).alias("preference"),
        by_table(choices, "binary", lambda choice: choice.value).alias("value"),
        by_table(choices, "binary", lambda choice: choice.sequence).alias("sequence"),
        F.when(~F.col("table").isin(_sequenced(choices)), F.col("timestamp")).alias("time"),
        *identities.order(),
    )
    placed = contended.withColumn("order", F.when(F.col("takes_part"), place))
    return placed.withColumn("tuple", F.col("kept")).drop("kept", "takes_part")


def _sequenced(choices: Mapping[int, Choice]) -> list[int]:
    return [number for number, choice in choices.items() if choice.sequence is not None]


def chosen(placed: DataFrame) -> DataFrame:
    """Return the decided frame: the version that stands last wins."""
    decided = (
        placed.withColumn("winner", F.max_by(told(), "order").over(of_key()))
        .withColumn("best", F.max("order").over(of_key()))
        .withColumn(
            "row_replicaset_id", F.max(F.when(F.col("is_row"), F.col("replicaset_id"))).over(of_key())
        )
    )
    wins = F.coalesce(F.col("winner.replicaset_id") == F.col("replicaset_id"), F.lit(False))
    differs = F.coalesce(
        *[
            F.when(~F.col(f"best.{name}").eqNullSafe(F.col(f"order.{name}")), F.lit(i))
            for i, name in enumerate(("preference", "value", "sequence", "time"))
        ],
        F.lit(BY_UUID),
    )
    return (
        decided.withColumn("wins", wins)
        .withColumn("decision", F.col("candidates") > 1)
        .withColumn("differs", differs)
        .withColumn("fault", F.lit(None).cast("string"))
    )


def told() -> Column:
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
    what = told()
    return _of_changes(changes).select(
        *KEYS,
        *VERSION,
        *("began", "faults", "unknown", "changed", "is_row"),
        present.alias("wins"),
        F.when(present, what).alias("winner"),
        F.col("replicaset_id").alias("row_replicaset_id"),
        F.lit(False).alias("decision"),
        F.lit(None).cast("int").alias("differs"),
        F.lit(None).cast("string").alias("fault"),
    )
