"""Expectations of `_changelog` by origin: each lsn once, and none missing up to the settled vclock.

One pass over the table counts rows per replicaset and replica id; the expectations apply to these few counts. Only if
one fails, the table is read again for the lsns. Missing lsns that `_gaps` names are allowed. The meaning of a replica
id in the log of another source of its replicaset comes from the applier map. Rows of local spaces are only checked for
duplicates: after a failover to another member, those of the first one end. Rows up to an lsn that maintenance has
removed are skipped (`_retention`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from observe.validation.check import EXAMPLES, Check, CheckFacts, OpenTable, frame_of
from pipeline.state import State
from schemas.iproto import GROUP_LOCAL
from schemas.states import GapKind, GapState
from warehouse.removed_changes import TABLE as RETENTION
from warehouse.removed_changes import last_removed

TABLE = "_changelog"

ORIGIN = ("replicaset_id", "local_id", "instance")
"""Columns of an origin: a replica id; `instance` (a global id) is only set for rows of local spaces."""

COUNTS = ("rows", "first_lsn", "last_lsn", "settled", "absent", "twice", "beyond", "unknown", "late")

_SCHEMA = StructType(
    [
        *[StructField(name, IntegerType() if name != "instance" else LongType()) for name in ORIGIN],
        *[StructField(name, LongType()) for name in COUNTS],
    ]
)


def logged(rows: DataFrame, state: State, gone: Mapping[tuple[int, int], int]) -> DataFrame:
    """Return the rows of logs with their origin columns.

    Parameters
    ----------
    rows : DataFrame
        Rows of `_changelog`.
    state : State
    gone : mapping of (int, int) to int
        By replicaset id and global id: the lsn up to which rows were removed. Remaining rows up to it are left out.

    """
    is_local = F.coalesce(F.col("group_id") == GROUP_LOCAL, F.lit(False))
    found = rows.where("file LIKE '%.xlog' AND lsn IS NOT NULL")
    for (replicaset, global_id), lsn in gone.items():
        own = (F.col("replicaset_id") == replicaset) & (F.col("global_id") == global_id) & ~is_local
        found = found.where(~F.coalesce(own & (F.col("lsn") <= lsn), F.lit(False)))
    return found.select(
        "replicaset_id",
        F.when(is_local, F.lit(0)).otherwise(F.coalesce(_meant(state), F.lit(0))).alias("local_id"),
        F.when(is_local, F.col("global_id")).alias("instance"),
        "global_id",
        "lsn",
        "timestamp",
    )


def _meant(state: State) -> Column:
    """Return the replica id in the replicaset's own ids, if the source uses others."""
    column: Column = F.col("replica_id")
    for replicaset in state.replicasets.values():
        for source, ids in replicaset.id_translations.items():
            for own, meant in ids.items():
                here = (F.col("replicaset_id") == replicaset.id) & (F.col("source") == source)
                column = F.when(here & (F.col("replica_id") == own), F.lit(meant)).otherwise(column)
    return column


def named(gaps: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the missing lsn ranges in `_gaps` by origin, without filled ones.

    Parameters
    ----------
    gaps : iterable of mapping
        All rows of the table, in any order.

    """
    newest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in sorted(gaps, key=lambda row: int(row["epoch"])):
        if row["kind"] == GapKind.MISSING:
            newest[row["replicaset_id"], row["local_id"], row["first_lsn"], row["last_lsn"]] = row
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (replicaset, local_id, first, last), row in newest.items():
        if row["state"] != GapState.FILLED:
            ranges.setdefault((replicaset, local_id), []).append((first, last))
    return ranges


def covered(ranges: Iterable[tuple[int, int]], first: int, last: int) -> int:
    """Return how many numbers from `first` to `last` are in the ranges, which may overlap."""
    count, reached = 0, first - 1
    for begin, end in sorted(ranges):
        low, high = max(begin, reached + 1), min(end, last)
        if high >= low:
            count += high - low + 1
            reached = high
    return count


def completed(
    counts: Iterable[Mapping[str, Any]],
    settled: Mapping[tuple[int, int], int],
    gaps: Mapping[tuple[int, int], list[tuple[int, int]]],
) -> list[dict[str, Any]]:
    """Return the counts of each origin with its missing lsns, and those above the settled vclock.

    Parameters
    ----------
    counts : iterable of mapping
        `ORIGIN`, rows, distinct, first_lsn, last_lsn, unknown, late.
    settled : mapping of (int, int) to int
        (replicaset id, replica id) to lsn.
    gaps : mapping
        From `named`.

    """
    found = []
    for row in counts:
        key = (row["replicaset_id"], row["local_id"])
        known = settled.get(key, 0)
        # A log after a snapshot begins where the snapshot ends; rows of local spaces may end and begin
        # again.
        last = max(known, row["last_lsn"])
        missing = last - row["first_lsn"] + 1 - row["distinct"]
        absent = missing - covered(gaps.get(key, ()), row["first_lsn"], last)
        is_local = row["local_id"] == 0
        counted = {name: row[name] for name in (*ORIGIN, "rows", "first_lsn", "last_lsn", "unknown", "late")}
        counted |= {"settled": known, "twice": row["rows"] - row["distinct"]}
        counted |= {"absent": 0 if is_local else absent}
        found.append(counted | {"beyond": 0 if is_local else max(0, row["last_lsn"] - known)})
    return found


def origins_checks(open_table: OpenTable, state: State, facts: CheckFacts) -> Iterator[Check]:
    """Yield the check of `_changelog`; reads the table."""
    gone = (
        last_removed(row.asDict() for row in open_table(RETENTION).collect())
        if RETENTION in state.versions
        else {}
    )
    rows = logged(open_table(TABLE), state, gone)
    late = F.lit(False) if facts.latest is None else F.col("timestamp") > F.lit(facts.latest)
    counts = rows.groupBy(*ORIGIN).agg(
        F.count("*").alias("rows"),
        F.count_distinct("lsn").alias("distinct"),
        F.min("lsn").alias("first_lsn"),
        F.max("lsn").alias("last_lsn"),
        F.count_if(~F.coalesce(F.col("global_id").isin(list(facts.global_ids)), F.lit(False))).alias(
            "unknown"
        ),
        F.count_if(late).alias("late"),
    )
    settled = {(r.id, i): lsn for r in state.replicasets.values() for i, lsn in r.settled.items()}
    gaps = named(row.asDict() for row in open_table("_gaps").collect())
    found = completed([row.asDict() for row in counts.collect()], settled, gaps)
    frame = frame_of(rows.sparkSession, found, _SCHEMA)
    bad = {name: [one for one in found if one[name]] for name in ("absent", "twice")}
    explain = {
        "absent": partial(_absent, rows, bad["absent"], settled, gaps),
        "twice": partial(_twice, rows, bad["twice"]),
        "unknown": partial(_unknown, rows, facts),
        "late": partial(_late, rows, late),
    }
    yield Check(TABLE, frame, tuple(_expected(facts)), (*ORIGIN, *COUNTS[:4]), explain)


def _expected(facts: CheckFacts) -> list[Any]:
    import great_expectations.expectations as gxe

    said = {
        "absent": "no lsn is missing between the first row of an origin and its settled vclock but those in _gaps",
        "twice": "each lsn of an origin is there once",
        "beyond": "no row is beyond the settled vclock",
        "unknown": "global_id is known in _cluster",
    }
    if facts.latest is not None:
        said["late"] = f"timestamp is not of the future (after {facts.latest:%Y-%m-%d %H:%M:%S} UTC)"
    return [
        gxe.ExpectColumnValuesToBeInSet(column=column, value_set=[0], description=text)
        for column, text in said.items()
    ]


def _of(rows: DataFrame, origin: Mapping[str, Any]) -> DataFrame:
    for name in ORIGIN:
        rows = rows.where(F.col(name).eqNullSafe(F.lit(origin[name])))
    return rows


def _place(origin: Mapping[str, Any]) -> str:
    return f"replicaset {origin['replicaset_id']}, replica id {origin['local_id']}"


def _absent(
    rows: DataFrame,
    bad: Iterable[Mapping[str, Any]],
    settled: Mapping[tuple[int, int], int],
    gaps: Mapping[tuple[int, int], list[tuple[int, int]]],
) -> list[str]:
    """Return the first missing ranges of lsns."""
    texts = []
    for origin in list(bad)[:EXAMPLES]:
        key = (origin["replicaset_id"], origin["local_id"])
        end = rows.sparkSession.range(settled[key] + 1, settled[key] + 2).select(F.col("id").alias("lsn"))
        own = (
            _of(rows, origin)
            .select("lsn")
            .union(end)
            .withColumn("before", F.expr("lag(lsn) OVER (ORDER BY lsn)"))
        )
        for row in own.where("lsn > before + 1").orderBy("lsn").limit(EXAMPLES).collect():
            first, last = row.before + 1, row.lsn - 1
            if covered(gaps.get(key, ()), first, last) < last - first + 1:
                texts.append(f"{_place(origin)}: lsns {first} to {last}")
    return texts[:EXAMPLES]


def _twice(rows: DataFrame, bad: Iterable[Mapping[str, Any]]) -> list[str]:
    texts = []
    for origin in list(bad)[:EXAMPLES]:
        found = _of(rows, origin).groupBy("lsn").agg(F.count("*").alias("n")).where("n > 1")
        for row in found.orderBy("lsn").limit(EXAMPLES).collect():
            texts.append(f"{_place(origin)}: lsn {row.lsn} {row.n} times")
    return texts[:EXAMPLES]


def _unknown(rows: DataFrame, facts: CheckFacts) -> list[str]:
    strange = ~F.coalesce(F.col("global_id").isin(list(facts.global_ids)), F.lit(False))
    return [
        f"{_place(row.asDict())}: lsn {row.lsn} of {row.global_id}" for row in _first(rows.where(strange))
    ]


def _late(rows: DataFrame, late: Column) -> list[str]:
    return [f"{_place(row.asDict())}: lsn {row.lsn} at {row.timestamp}" for row in _first(rows.where(late))]


def _first(rows: DataFrame) -> list[Any]:
    return rows.orderBy(*ORIGIN, "lsn").limit(EXAMPLES).collect()
