"""Decisions → the tables that tell of them: `_versions`, `_conflicts`, `_quarantine`.

Frames, and what is to be known of them first; when they are appended is `jobs.batch.spaces`. Not here: the tables of
spaces (`jobs.batch.apply`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.batch.apply import Target
from jobs.batch.base import DELETED, MERGED, PRESENT, UNFIT
from schemas.layout import ERROR_COLUMN
from schemas.tables import CONFLICTS, QUARANTINE, VERSIONS


def version_rows(decided: DataFrame, names: Mapping[int, str], epoch: int) -> DataFrame:
    """Return what is appended to `_versions`: losers that are new or were the row, and deleted versions."""
    tells = ~F.col("wins") & (F.col("changed") | F.col("is_row")) & (F.col("state") != MERGED)
    deleted_winner = F.col("wins") & (F.col("state") == DELETED) & F.col("changed")
    rows = decided.where((tells | deleted_winner) & F.col("_key").isNotNull())
    return _named(rows, names).select(
        "space",
        F.col("_key").alias("key"),
        "replicaset_id",
        # A tuple that a fault left unknown must not be taken for the base of a later UPDATE.
        F.when(~F.col("unknown"), F.col("tuple")).alias("tuple"),
        *(F.col(c).cast(VERSIONS[c].dataType) for c in ("global_id", "lsn", "timestamp", "created")),
        "state",
        F.lit(epoch).cast("bigint").alias("epoch"),
    )


def unfit_versions(changes: DataFrame, target: Target, epoch: int) -> DataFrame:
    """Return the versions that do not fit their format, for `_versions`; a tuple that a policy made is none."""
    own = F.col("put") & ~F.col("keep") & (F.col("replicaset_id") > 0)
    return changes.where(own).select(
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
    return _set_aside(rows, epoch, F.col("fault.global_id"), F.col("fault.lsn"), F.col("fault.reason"))


def conflict_rows(
    decided: DataFrame,
    names: Mapping[int, str],
    epoch: int,
    policies: Mapping[int, str],
    labels: Mapping[int, Sequence[str]],
) -> DataFrame:
    """Return what is appended to `_conflicts`: each version that lost to another replicaset's.

    Parameters
    ----------
    policies : mapping of int to str
        By table number.
    labels : mapping of int to sequence of str
        What a decision was made on, by the column `differs`.

    """
    met = F.col("decision") & ~F.col("wins") & ~F.col("state").isin(UNFIT, MERGED)
    new = F.col("changed") | F.coalesce(F.col("winner.changed"), F.lit(False))
    rows = _named(decided.where(met & new & F.col("fault").isNull()), names)
    policy = F.create_map(*[part for n, p in policies.items() for part in (F.lit(n), F.lit(p))])
    words = F.create_map(*[p for n, w in labels.items() for p in (F.lit(n), F.array(*map(F.lit, w)))])
    unknown = F.col("timestamp").isNull() | F.col("winner.timestamp").isNull()
    nobody = F.col("winner.replicaset_id").isNull()
    columns = {
        "epoch": F.lit(epoch),
        "decided_at": F.current_timestamp(),
        "space": F.col("space"),
        "key": F.col("_key"),
        "policy": F.try_element_at(policy, F.col("table")),
        "kind": F.lit("key"),
        "sequence": F.get(F.try_element_at(words, F.col("table")), F.col("differs")),
        **{
            f"winner_{c}": F.col(f"winner.{c}")
            for c in ("replicaset_id", "global_id", "lsn", "timestamp", "tuple")
        },
        **{f"loser_{c}": F.col(c) for c in ("replicaset_id", "global_id", "lsn", "timestamp", "tuple")},
        "changed": F.when(F.col("changed") & F.col("winner.changed"), "both")
        .when(F.col("changed"), "loser")
        .otherwise("winner"),
        "note": F.when(nobody, "deleted").when(unknown, "time unknown"),
    }
    return rows.select([columns[f.name].cast(f.dataType).alias(f.name) for f in CONFLICTS])


def undecided_rows(decided: DataFrame, names: Mapping[int, str], epoch: int) -> DataFrame:
    """Return what is appended to `_quarantine`: each version of a key of which the policy made nothing."""
    rows = _named(decided.where(F.col("fault").isNotNull() & (F.col("state") != MERGED)), names)
    return _set_aside(rows, epoch, F.col("global_id"), F.col("lsn"), F.col("fault"))


def _set_aside(rows: DataFrame, epoch: int, global_id: Column, lsn: Column, reason: Column) -> DataFrame:
    columns = {
        "epoch": F.lit(epoch),
        "replicaset_id": F.col("replicaset_id"),
        "space": F.col("space"),
        "key": F.col("_key"),
        "tuple": F.col("tuple"),
        "global_id": global_id,
        "lsn": lsn,
        "reason": reason,
    }
    return rows.select([columns.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in QUARANTINE])


def _named(rows: DataFrame, names: Mapping[int, str]) -> DataFrame:
    numbers = [part for number, name in names.items() for part in (F.lit(number), F.lit(name))]
    return rows.withColumn("space", F.try_element_at(F.create_map(*numbers), F.col("table")))


@dataclass(frozen=True)
class Told:
    """What is known of one table's decided versions."""

    replicasets: frozenset[int]
    versions: int
    conflicts: int
    unfit: int
    faults: int
    undecided: int
    puts: int


def told_of(decided: DataFrame) -> dict[int, Told]:
    """Return what is to be known of each table's decided versions, by table number: one Spark job."""
    present = F.col("state") == PRESENT
    wrote = F.col("changed") & (F.col("state") != DELETED) & (F.col("replicaset_id") > 0)
    rows = decided.groupBy("table").agg(
        F.collect_set(F.when(wrote, F.col("replicaset_id"))),
        F.count(F.when(F.col("_key").isNotNull() & (~F.col("wins") | ~present), 1)),
        F.count(F.when(F.col("decision") & ~F.col("wins"), 1)),
        F.count(F.when(F.col("unknown") & F.col("changed"), 1)),
        F.count(F.when(F.col("faults").isNotNull() & F.col("changed"), 1)),
        F.count("fault"),
        F.count(F.when(F.col("put") & F.col("writes"), 1)),
    )
    return {row[0]: Told(frozenset(row[1]), *row[2:]) for row in rows.collect()}
