"""Expectations of `_changelog` by origin: each lsn is in it once, and no lsn is missing up to the settled vclock.

One query over the table counts rows per replicaset and replica id; the expectations apply to these few counts. Only if
an expectation fails, the table is read again, to find the lsns. The queries are in the SQL of `observe.query_engines`.

Missing lsns that `_gaps` names are allowed. If members of a replicaset use different replica ids, the state says which
ids mean the same instance. Rows of local spaces are only checked for duplicates: lsns of local spaces may be missing,
since after a failover no more rows of the old leader's local spaces are read. Rows up to an lsn that maintenance has
removed are skipped (`_retention`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from observe.validation.check import MAX_EXAMPLES, Check, CheckFacts, OpenTable, table_of_rows
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


IS_LOCAL = f"coalesce(group_id = {GROUP_LOCAL}, false)"


def logged_rows(state: State, removed_lsns: Mapping[RowOrigin, int]) -> str:
    """Return a query of the rows of `_changelog` that come from logs, not from snapshots, with `ORIGIN_COLUMNS`."""
    own_id = _replica_id_in_replicaset(state)
    removed = ""
    for (replicaset, global_id, replica_id), lsn in removed_lsns.items():
        is_origin = (
            f"replicaset_id = {replicaset} AND global_id = {global_id} AND NOT {IS_LOCAL} AND lsn <= {lsn}"
        )
        if replica_id is not None:
            is_origin += f" AND {own_id} = {replica_id}"
        removed += f" AND NOT coalesce({is_origin}, false)"
    return (
        f"SELECT replicaset_id, CASE WHEN {IS_LOCAL} THEN 0 ELSE coalesce({own_id}, 0) END AS local_id, "
        f"CASE WHEN {IS_LOCAL} THEN global_id END AS instance, global_id, lsn, timestamp "
        f"FROM {{changelog}} WHERE file LIKE '%.xlog' AND lsn IS NOT NULL{removed}"
    )


def _replica_id_in_replicaset(state: State) -> str:
    """Return an expression for the row's replica id as its replicaset numbers instances; its source may differ."""
    cases = "".join(
        f"WHEN replicaset_id = {replicaset.id} AND source = '{source}' AND replica_id = {id_in_source} "
        f"THEN {id_in_replicaset} "
        for replicaset in state.replicasets.values()
        for source, ids in replicaset.id_translations.items()
        for id_in_source, id_in_replicaset in ids.items()
    )
    return f"(CASE {cases}ELSE replica_id END)" if cases else "replica_id"


def is_unknown_id(facts: CheckFacts) -> str:
    """Return the condition that a row's global id is not in `_cluster`."""
    ids = ", ".join(map(str, facts.global_ids))
    return f"NOT coalesce(global_id IN ({ids}), false)" if ids else "true"


def is_in_future(facts: CheckFacts) -> str:
    """Return the condition that a row's time is too late."""
    latest = facts.latest_allowed_time
    return "false" if latest is None else f"timestamp > CAST('{latest:%Y-%m-%dT%H:%M:%S.%fZ}' AS TIMESTAMP)"


def missing_ranges(gaps: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return, by (replicaset id, replica id), the ranges (first lsn, last lsn) that open rows of `_gaps` name."""
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
        counts: For each origin: `ORIGIN_COLUMNS`, `rows`, `lsns` (number of different ones), `first_lsn`, `last_lsn`,
             `unknown_ids`, `in_future`.
    """
    origins = []
    for row in counts:
        key = (row["replicaset_id"], row["local_id"])
        settled_lsn = settled_lsns.get(key, 0)
        # A log after a snapshot begins where the snapshot ends; rows of local spaces may end and begin
        # again.
        last = max(settled_lsn, row["last_lsn"])
        missing = last - row["first_lsn"] + 1 - row["lsns"]
        missing -= count_numbers_in_ranges(missing_ranges_by_origin.get(key, ()), row["first_lsn"], last)
        is_local = row["local_id"] == 0
        names = (*ORIGIN_COLUMNS, "rows", "first_lsn", "last_lsn", "unknown_ids", "in_future")
        origin = {name: row[name] for name in names}
        origin |= {"settled_lsn": settled_lsn, "duplicates": row["rows"] - row["lsns"]}
        origin |= {"missing": 0 if is_local else missing}
        origins.append(origin | {"beyond_settled": 0 if is_local else max(0, row["last_lsn"] - settled_lsn)})
    return origins


def origins_checks(open_table: OpenTable, state: State, facts: CheckFacts) -> Iterator[Check]:
    """Yield the check of `_changelog`; its counts need the whole table."""
    removed_lsns = (
        last_removed_lsns(open_table.rows(RETENTION).to_pylist()) if RETENTION in state.versions else {}
    )
    rows = LoggedRows(open_table, logged_rows(state, removed_lsns))
    counts = rows.query(
        f"""
        SELECT {", ".join(ORIGIN_COLUMNS)}, count(*) AS rows, count(DISTINCT lsn) AS lsns, min(lsn) AS first_lsn,
               max(lsn) AS last_lsn, count(*) FILTER (WHERE {is_unknown_id(facts)}) AS unknown_ids,
               count(*) FILTER (WHERE {is_in_future(facts)}) AS in_future
        FROM logged GROUP BY {", ".join(ORIGIN_COLUMNS)}"""
    )
    settled_lsns = {(r.id, i): lsn for r in state.replicasets.values() for i, lsn in r.settled.items()}
    missing_ranges_by_origin = missing_ranges(open_table.rows("_gaps").to_pylist())
    origins = with_failure_counts(counts, settled_lsns, missing_ranges_by_origin)
    behind = lsns_behind_vclock(_last_lsns(rows, origins, state), open_table.rows(vclock.TABLE).to_pylist())
    origins = [
        one | {"behind_vclock": behind[one["replicaset_id"], one["local_id"]] if one["local_id"] else 0}
        for one in origins
    ]
    failing = {name: [one for one in origins if one[name]] for name in ("missing", "duplicates")}
    find_examples = {
        "missing": partial(
            _missing_lsn_examples, rows, failing["missing"], settled_lsns, missing_ranges_by_origin
        ),
        "duplicates": partial(_duplicate_lsn_examples, rows, failing["duplicates"]),
        "unknown_ids": partial(_unknown_id_examples, rows, facts),
        "in_future": partial(_future_row_examples, rows, facts),
    }
    yield Check(
        CHANGELOG,
        table_of_rows(origins, _COUNTS_SCHEMA),
        tuple(_origin_expectations(facts)),
        (*ORIGIN_COLUMNS, *COUNT_COLUMNS[:4]),
        find_examples,
    )


@dataclass(frozen=True)
class LoggedRows:
    """The rows of `logged_rows`, as the table `logged` of queries."""

    open_table: OpenTable
    selection: str
    """The query that selects them."""

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query's result."""
        rows: list[dict[str, Any]] = self.open_table.query(
            f"WITH logged AS ({self.selection}) {sql}"
        ).to_pylist()
        return rows


def _last_lsns(
    rows: LoggedRows, origins: Iterable[Mapping[str, Any]], state: State
) -> dict[tuple[int, int, int], int]:
    """Return the last lsn in `_changelog` by (replicaset id, replica id, global id)."""
    owners = {
        (one.id, entry.local_id): {e.global_id for e in one.applier_map if e.local_id == entry.local_id}
        for one in state.replicasets.values()
        for entry in one.applier_map
    }
    found: dict[tuple[int, int, int], int] = {}
    shared = []
    for origin in origins:
        key = (origin["replicaset_id"], origin["local_id"])
        if len(owners.get(key, ())) > 1:
            shared.append(f"(replicaset_id = {key[0]} AND local_id = {key[1]})")
        else:
            found |= {(*key, global_id): origin["last_lsn"] for global_id in owners.get(key, ())}
    if shared:
        last = rows.query(
            "SELECT replicaset_id, local_id, global_id, max(lsn) AS lsn FROM logged "
            f"WHERE {' OR '.join(shared)} GROUP BY replicaset_id, local_id, global_id"
        )
        found |= {(row["replicaset_id"], row["local_id"], row["global_id"]): row["lsn"] for row in last}
    return found


def lsns_behind_vclock(
    last_lsns: Mapping[tuple[int, int, int], int], vclock_rows: Iterable[Mapping[str, Any]]
) -> Counter[tuple[int, int]]:
    """Return how many lsns of the instances of each (replicaset id, replica id) are beyond `_vclock`."""
    newest = {
        (one.replicaset_id, one.local_id, one.global_id): one.lsn
        for one in vclock.newest_components(vclock_rows)
    }
    behind: Counter[tuple[int, int]] = Counter()
    for (replicaset, replica_id, global_id), lsn in last_lsns.items():
        behind[replicaset, replica_id] += max(0, lsn - newest.get((replicaset, replica_id, global_id), 0))
    return behind


def _origin_expectations(facts: CheckFacts) -> list[Any]:
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


def _is_origin(origin: Mapping[str, Any]) -> str:
    return " AND ".join(
        f"{name} IS NULL" if origin[name] is None else f"{name} = {origin[name]}" for name in ORIGIN_COLUMNS
    )


def _origin_text(origin: Mapping[str, Any]) -> str:
    return f"replicaset {origin['replicaset_id']}, replica id {origin['local_id']}"


def _missing_lsn_examples(
    rows: LoggedRows,
    origins: Iterable[Mapping[str, Any]],
    settled_lsns: Mapping[tuple[int, int], int],
    missing_ranges_by_origin: Mapping[tuple[int, int], list[tuple[int, int]]],
) -> list[str]:
    texts = []
    for origin in list(origins)[:MAX_EXAMPLES]:
        key = (origin["replicaset_id"], origin["local_id"])
        holes = rows.query(
            f""", listed AS (
              SELECT lsn FROM logged WHERE {_is_origin(origin)} UNION ALL SELECT {settled_lsns[key] + 1} AS lsn
            ), placed AS (SELECT lsn, lag(lsn) OVER (ORDER BY lsn) AS previous FROM listed)
            SELECT previous, lsn FROM placed WHERE lsn > previous + 1 ORDER BY lsn LIMIT {MAX_EXAMPLES}"""
        )
        for hole in holes:
            first, last = hole["previous"] + 1, hole["lsn"] - 1
            if count_numbers_in_ranges(missing_ranges_by_origin.get(key, ()), first, last) < last - first + 1:
                texts.append(f"{_origin_text(origin)}: lsns {first} to {last}")
    return texts[:MAX_EXAMPLES]


def _duplicate_lsn_examples(rows: LoggedRows, origins: Iterable[Mapping[str, Any]]) -> list[str]:
    texts = []
    for origin in list(origins)[:MAX_EXAMPLES]:
        repeated = rows.query(
            f"SELECT lsn, count(*) AS times FROM logged WHERE {_is_origin(origin)} GROUP BY lsn "
            f"HAVING count(*) > 1 ORDER BY lsn LIMIT {MAX_EXAMPLES}"
        )
        texts += [f"{_origin_text(origin)}: lsn {row['lsn']} {row['times']} times" for row in repeated]
    return texts[:MAX_EXAMPLES]


def _unknown_id_examples(rows: LoggedRows, facts: CheckFacts) -> list[str]:
    return [
        f"{_origin_text(row)}: lsn {row['lsn']} of {row['global_id']}"
        for row in _first_rows(rows, is_unknown_id(facts))
    ]


def _future_row_examples(rows: LoggedRows, facts: CheckFacts) -> list[str]:
    return [
        f"{_origin_text(row)}: lsn {row['lsn']} at {row['timestamp'].replace(tzinfo=None)}"
        for row in _first_rows(rows, is_in_future(facts))
    ]


def _first_rows(rows: LoggedRows, condition: str) -> list[dict[str, Any]]:
    return rows.query(
        f"SELECT * FROM logged WHERE {condition} "
        f"ORDER BY replicaset_id, local_id, instance NULLS FIRST, lsn LIMIT {MAX_EXAMPLES}"
    )
