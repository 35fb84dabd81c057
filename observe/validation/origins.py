"""Expectations of `_changelog` by origin: each lsn is in it once, and no lsn is missing up to the settled vclock.

One pass over the table counts rows per replicaset and replica id; the expectations apply to these few counts. Only if
an expectation fails, the table is read again, to find the lsns. Missing lsns that `_gaps` names are allowed. If members
of a replicaset use different replica ids, the state says which ids mean the same instance. Rows of local spaces are
only checked for duplicates: lsns of local spaces may be missing, since after a failover no more rows of the old
leader's local spaces are read. Rows up to an lsn that maintenance has removed are skipped (`_retention`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from observe.validation.check import MAX_EXAMPLES, Check, CheckFacts, OpenTable, frame_of_rows
from pipeline.state import State
from schemas.iproto import GROUP_LOCAL
from schemas.states import GapKind, GapState
from warehouse.system_tables import vclock
from warehouse.system_tables.maintenance import RETENTION, RowOrigin, last_removed_lsns

CHANGELOG = "_changelog"

ORIGIN_COLUMNS = ("replicaset_id", "local_id", "instance")
"""Columns that identify an origin: `local_id`, a replica id; `instance`, a global id, null except for local spaces."""

COUNT_COLUMNS = (
    *("rows", "first_lsn", "last_lsn", "settled_lsn"),
    *("missing", "duplicates", "beyond_settled", "behind_vclock", "unknown_ids", "in_future"),
)
"""Columns of the checked frame: counts and lsns of an origin's rows, and how many of them fail each expectation."""

_COUNTS_SCHEMA = StructType(
    [
        *[StructField(name, IntegerType() if name != "instance" else LongType()) for name in ORIGIN_COLUMNS],
        *[StructField(name, LongType()) for name in COUNT_COLUMNS],
    ]
)


def logged_rows(rows: DataFrame, state: State, removed_lsns: Mapping[RowOrigin, int]) -> DataFrame:
    """Return the rows of `_changelog` that come from logs, not from snapshots, with the columns `ORIGIN_COLUMNS`.

    Args:
        rows: Rows of `_changelog`.
        removed_lsns: By origin: the lsn up to which maintenance has removed rows. Rows up to this lsn that still exist
            are left out.
    """
    is_local = F.coalesce(F.col("group_id") == GROUP_LOCAL, F.lit(False))
    logged = rows.where("file LIKE '%.xlog' AND lsn IS NOT NULL")
    own_id = _replica_id_in_replicaset(state)
    for (replicaset, global_id, replica_id), lsn in removed_lsns.items():
        is_origin = (F.col("replicaset_id") == replicaset) & (F.col("global_id") == global_id) & ~is_local
        if replica_id is not None:
            is_origin &= own_id == replica_id
        logged = logged.where(~F.coalesce(is_origin & (F.col("lsn") <= lsn), F.lit(False)))
    return logged.select(
        "replicaset_id",
        F.when(is_local, F.lit(0)).otherwise(F.coalesce(own_id, F.lit(0))).alias("local_id"),
        F.when(is_local, F.col("global_id")).alias("instance"),
        "global_id",
        "lsn",
        "timestamp",
    )


def _replica_id_in_replicaset(state: State) -> Column:
    """Return a column with the row's replica id as its replicaset numbers instances; its source may differ."""
    column: Column = F.col("replica_id")
    for replicaset in state.replicasets.values():
        for source, ids in replicaset.id_translations.items():
            for id_in_source, id_in_replicaset in ids.items():
                is_source = (F.col("replicaset_id") == replicaset.id) & (F.col("source") == source)
                is_id = is_source & (F.col("replica_id") == id_in_source)
                column = F.when(is_id, F.lit(id_in_replicaset)).otherwise(column)
    return column


def missing_ranges(gaps: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return, by (replicaset id, replica id), the ranges (first lsn, last lsn) that are missing according to `_gaps`.

    Args:
        gaps: All rows of `_gaps`, in any order. A gap that was filled is not missing.
    """
    newest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in sorted(gaps, key=lambda row: int(row["epoch"])):
        if row["kind"] == GapKind.MISSING:
            newest[row["replicaset_id"], row["local_id"], row["first_lsn"], row["last_lsn"]] = row
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (replicaset, replica_id, first, last), row in newest.items():
        if row["state"] != GapState.FILLED:
            ranges.setdefault((replicaset, replica_id), []).append((first, last))
    return ranges


def count_numbers_in_ranges(ranges: Iterable[tuple[int, int]], first: int, last: int) -> int:
    """Return how many numbers from `first` to `last` (inclusive) are in at least one of some ranges."""
    count, highest = 0, first - 1
    for begin, end in sorted(ranges):
        low, high = max(begin, highest + 1), min(end, last)
        if high >= low:
            count += high - low + 1
            highest = high
    return count


def with_failure_counts(
    counts: Iterable[Mapping[str, Any]],
    settled_lsns: Mapping[tuple[int, int], int],
    missing_ranges_by_origin: Mapping[tuple[int, int], list[tuple[int, int]]],
) -> list[dict[str, Any]]:
    """Return the counts of each origin, with the numbers of failing lsns: `missing`, `duplicates`, `beyond_settled`.

    Args:
        counts: For each origin: `ORIGIN_COLUMNS`, `rows`, `distinct` (number of different lsns), `first_lsn`,
            `last_lsn`, `unknown_ids`, `in_future`.
        settled_lsns: By (replicaset id, replica id): the settled lsn.
        missing_ranges_by_origin: From `missing_ranges`.
    """
    origins = []
    for row in counts:
        key = (row["replicaset_id"], row["local_id"])
        settled_lsn = settled_lsns.get(key, 0)
        # A log after a snapshot begins where the snapshot ends; rows of local spaces may end and begin
        # again.
        last = max(settled_lsn, row["last_lsn"])
        missing = last - row["first_lsn"] + 1 - row["distinct"]
        missing -= count_numbers_in_ranges(missing_ranges_by_origin.get(key, ()), row["first_lsn"], last)
        is_local = row["local_id"] == 0
        names = (*ORIGIN_COLUMNS, "rows", "first_lsn", "last_lsn", "unknown_ids", "in_future")
        origin = {name: row[name] for name in names}
        origin |= {"settled_lsn": settled_lsn, "duplicates": row["rows"] - row["distinct"]}
        origin |= {"missing": 0 if is_local else missing}
        origins.append(origin | {"beyond_settled": 0 if is_local else max(0, row["last_lsn"] - settled_lsn)})
    return origins


def origins_checks(open_table: OpenTable, state: State, facts: CheckFacts) -> Iterator[Check]:
    """Yield the check of `_changelog`; its counts need the whole table."""
    removed_lsns = (
        last_removed_lsns(row.asDict() for row in open_table(RETENTION).collect())
        if RETENTION in state.versions
        else {}
    )
    rows = logged_rows(open_table(CHANGELOG), state, removed_lsns)
    is_future = (
        F.lit(False)
        if facts.latest_allowed_time is None
        else F.col("timestamp") > F.lit(facts.latest_allowed_time)
    )
    counts = rows.groupBy(*ORIGIN_COLUMNS).agg(
        F.count("*").alias("rows"),
        F.count_distinct("lsn").alias("distinct"),
        F.min("lsn").alias("first_lsn"),
        F.max("lsn").alias("last_lsn"),
        F.count_if(~F.coalesce(F.col("global_id").isin(list(facts.global_ids)), F.lit(False))).alias(
            "unknown_ids"
        ),
        F.count_if(is_future).alias("in_future"),
    )
    settled_lsns = {(r.id, i): lsn for r in state.replicasets.values() for i, lsn in r.settled.items()}
    missing_ranges_by_origin = missing_ranges(row.asDict() for row in open_table("_gaps").collect())
    origins = with_failure_counts(
        [row.asDict() for row in counts.collect()], settled_lsns, missing_ranges_by_origin
    )
    last_lsns = _last_lsns(rows, origins, state)
    behind = lsns_behind_vclock(last_lsns, map(Row.asDict, open_table(vclock.TABLE).collect()))
    origins = [
        one | {"behind_vclock": behind[one["replicaset_id"], one["local_id"]] if one["local_id"] else 0}
        for one in origins
    ]
    frame = frame_of_rows(rows.sparkSession, origins, _COUNTS_SCHEMA)
    failing = {name: [one for one in origins if one[name]] for name in ("missing", "duplicates")}
    find_examples = {
        "missing": partial(
            _missing_lsn_examples, rows, failing["missing"], settled_lsns, missing_ranges_by_origin
        ),
        "duplicates": partial(_duplicate_lsn_examples, rows, failing["duplicates"]),
        "unknown_ids": partial(_unknown_id_examples, rows, facts),
        "in_future": partial(_future_row_examples, rows, is_future),
    }
    yield Check(
        CHANGELOG,
        frame,
        tuple(_origin_expectations(facts)),
        (*ORIGIN_COLUMNS, *COUNT_COLUMNS[:4]),
        find_examples,
    )


def _last_lsns(
    rows: DataFrame, origins: Iterable[Mapping[str, Any]], state: State
) -> dict[tuple[int, int, int], int]:
    """Return the last lsn in `_changelog` by (replicaset id, replica id, global id).

    Only rows of replica ids that several instances had are read again.
    """
    owners = {
        (one.id, entry.local_id): {e.global_id for e in one.applier_map if e.local_id == entry.local_id}
        for one in state.replicasets.values()
        for entry in one.applier_map
    }
    found: dict[tuple[int, int, int], int] = {}
    shared = F.lit(False)
    for origin in origins:
        key = (origin["replicaset_id"], origin["local_id"])
        if len(owners.get(key, ())) > 1:
            shared |= (F.col("replicaset_id") == key[0]) & (F.col("local_id") == key[1])
        else:
            found |= {(*key, global_id): origin["last_lsn"] for global_id in owners.get(key, ())}
    if any(len(ids) > 1 for ids in owners.values()):
        last = (
            rows.where(shared)
            .groupBy("replicaset_id", "local_id", "global_id")
            .agg(F.max("lsn").alias("lsn"))
        )
        found |= {(r.replicaset_id, r.local_id, r.global_id): r.lsn for r in last.collect()}
    return found


def lsns_behind_vclock(
    last_lsns: Mapping[tuple[int, int, int], int], vclock_rows: Iterable[Mapping[str, Any]]
) -> Counter[tuple[int, int]]:
    """Return how many lsns of the instances of each (replicaset id, replica id) are beyond `_vclock`.

    Args:
        last_lsns: By (replicaset id, replica id, global id).
        vclock_rows: All rows of `_vclock`, in any order.
    """
    newest = {
        (one.replicaset_id, one.local_id, one.global_id): one.lsn
        for one in vclock.newest_components(vclock_rows)
    }
    behind: Counter[tuple[int, int]] = Counter()
    for (replicaset, replica_id, global_id), lsn in last_lsns.items():
        behind[replicaset, replica_id] += max(0, lsn - newest.get((replicaset, replica_id, global_id), 0))
    return behind


def _origin_expectations(facts: CheckFacts) -> list[Any]:
    """Return the expectations of the checked counts: each number of failures is 0."""
    import great_expectations.expectations as gxe

    # Descriptions are stored in `_validations`, and identify an expectation there.
    descriptions = {
        "missing": "no lsn is missing between the first row of an origin and its settled vclock but those in _gaps",
        "duplicates": "each lsn of an origin is there once",
        "beyond_settled": "no row is beyond the settled vclock",
        "behind_vclock": "the last lsn of each instance is in _vclock",
        "unknown_ids": "global_id is known in _cluster",
    }
    if facts.latest_allowed_time is not None:
        descriptions["in_future"] = (
            f"timestamp is not of the future (after {facts.latest_allowed_time:%Y-%m-%d %H:%M:%S} UTC)"
        )
    return [
        gxe.ExpectColumnValuesToBeInSet(column=column, value_set=[0], description=text)
        for column, text in descriptions.items()
    ]


def _rows_of_origin(rows: DataFrame, origin: Mapping[str, Any]) -> DataFrame:
    """Return the rows of one origin: those that have its values in `ORIGIN_COLUMNS`."""
    for name in ORIGIN_COLUMNS:
        rows = rows.where(F.col(name).eqNullSafe(F.lit(origin[name])))
    return rows


def _origin_text(origin: Mapping[str, Any]) -> str:
    return f"replicaset {origin['replicaset_id']}, replica id {origin['local_id']}"


def _missing_lsn_examples(
    rows: DataFrame,
    origins: Iterable[Mapping[str, Any]],
    settled_lsns: Mapping[tuple[int, int], int],
    missing_ranges_by_origin: Mapping[tuple[int, int], list[tuple[int, int]]],
) -> list[str]:
    """Return some of the missing lsn ranges of some origins, as text."""
    texts = []
    for origin in list(origins)[:MAX_EXAMPLES]:
        key = (origin["replicaset_id"], origin["local_id"])
        end = rows.sparkSession.range(settled_lsns[key] + 1, settled_lsns[key] + 2).select(
            F.col("id").alias("lsn")
        )
        with_previous = (
            _rows_of_origin(rows, origin)
            .select("lsn")
            .union(end)
            .withColumn("before", F.expr("lag(lsn) OVER (ORDER BY lsn)"))
        )
        for row in with_previous.where("lsn > before + 1").orderBy("lsn").limit(MAX_EXAMPLES).collect():
            first, last = row.before + 1, row.lsn - 1
            if count_numbers_in_ranges(missing_ranges_by_origin.get(key, ()), first, last) < last - first + 1:
                texts.append(f"{_origin_text(origin)}: lsns {first} to {last}")
    return texts[:MAX_EXAMPLES]


def _duplicate_lsn_examples(rows: DataFrame, origins: Iterable[Mapping[str, Any]]) -> list[str]:
    texts = []
    for origin in list(origins)[:MAX_EXAMPLES]:
        repeated = _rows_of_origin(rows, origin).groupBy("lsn").agg(F.count("*").alias("n")).where("n > 1")
        for row in repeated.orderBy("lsn").limit(MAX_EXAMPLES).collect():
            texts.append(f"{_origin_text(origin)}: lsn {row.lsn} {row.n} times")
    return texts[:MAX_EXAMPLES]


def _unknown_id_examples(rows: DataFrame, facts: CheckFacts) -> list[str]:
    is_unknown = ~F.coalesce(F.col("global_id").isin(list(facts.global_ids)), F.lit(False))
    return [
        f"{_origin_text(row.asDict())}: lsn {row.lsn} of {row.global_id}"
        for row in _first_rows(rows.where(is_unknown))
    ]


def _future_row_examples(rows: DataFrame, is_future: Column) -> list[str]:
    return [
        f"{_origin_text(row.asDict())}: lsn {row.lsn} at {row.timestamp}"
        for row in _first_rows(rows.where(is_future))
    ]


def _first_rows(rows: DataFrame) -> list[Any]:
    return rows.orderBy(*ORIGIN_COLUMNS, "lsn").limit(MAX_EXAMPLES).collect()
