"""Reads the content of the page from a warehouse at its newest epoch.

The tables are asked by SQL (`QUERIES`), without Spark if they are small (`observe.query_engines`); sizes and the
RID come from the tables' logs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from observe.query_engines import engine_of
from observe.write_costs import WriteCosts
from pipeline.compaction.debt import CompactionDebt, debt_of
from schemas.problems import Problem
from schemas.states import GapState, RowState
from udfs.remap.cluster_replace import FIRST_DAEMON_ID
from warehouse.copies.generations import ComparedRid, read_compared_rid
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import NEVER_ROLLED_BACK
from warehouse.delta.table_files import active_files
from warehouse.system_tables import epochs
from warehouse.warehouse import Warehouse

Row = Mapping[str, Any]
"""A row of a query's result: values by column."""

PARALLEL_QUERIES = 4

QUERIED_TABLES = (
    "_cluster",
    "_applier_map",
    "_vclock",
    "_changelog",
    "_epochs",
    "_conflicts",
    "_gaps",
    "_quarantine",
    "_pending",
    "_schema",
    "_requests",
)

OPTIONAL_TABLES = ("_validations",)
"""Tables that may not exist, since they are created on their first use."""

TARGET_POINTS = 90
"""Approximate number of points of a plot over time."""

HOUR_MILLISECONDS = 3_600_000
POINT_MILLISECONDS = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(60_000 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(HOUR_MILLISECONDS * hours for hours in (1, 2, 3, 6, 12, 24, 7 * 24, 30 * 24, 365 * 24)),
)
"""Possible durations of one point of a plot, in milliseconds."""

MAX_TABLE_ROWS = 200
"""Maximum rows of a table on the page, which also shows the total number."""

MAX_CONFLICT_EXAMPLES = 2
"""Maximum number of shown conflicts per space and pair of replicasets."""

QUERIES = {
    # Subscription daemons are no servers.
    "instances": f"""
WITH moved AS (
  SELECT replicaset_id, local_id, lsn,
         row_number() OVER (PARTITION BY replicaset_id, local_id ORDER BY epoch DESC) AS place
  FROM {{vclock}} WHERE local_id > 0
)
SELECT c.replicaset_id, c.replicaset_uuid, c.local_id, c.global_id, c.uuid, c.first_seen, c.expelled_at, m.lsn
FROM {{cluster}} c
LEFT JOIN moved m ON m.replicaset_id = c.replicaset_id AND m.local_id = c.local_id AND m.place = 1
WHERE c.global_id IS NULL OR c.global_id < {FIRST_DAEMON_ID}
ORDER BY c.replicaset_id NULLS FIRST, c.local_id NULLS FIRST, c.global_id NULLS FIRST""",
    "applier_map": """
SELECT DISTINCT replicaset_id, source, local_id, global_id, since_lsn FROM {applier_map}
ORDER BY replicaset_id, source NULLS FIRST, local_id, since_lsn""",
    # Replicaset 0 is the aggregator itself, which has no source.
    "sources": f"""
SELECT source, replicaset_id, count(*) AS rows, count(*) FILTER (WHERE state = '{RowState.ROLLED_BACK}') AS rolled_back,
       min(timestamp) FILTER (WHERE file LIKE '%.xlog') AS oldest,
       max(timestamp) FILTER (WHERE file LIKE '%.xlog') AS newest
FROM {{changelog}} WHERE replicaset_id > 0 GROUP BY source, replicaset_id
ORDER BY replicaset_id, source NULLS FIRST""",
    # Rows of snapshots have no time.
    "rows_over_time": """
SELECT source, <point> AS at, count(*) AS rows
FROM (
  SELECT source, timestamp AS moment FROM {changelog}
  WHERE replicaset_id > 0 AND file LIKE '%.xlog' AND timestamp IS NOT NULL
) GROUP BY source, <point> ORDER BY source NULLS FIRST, at""",
    # A row waits from its time in the log until the commit of its batch. In an outage the oldest row waits longest.
    "lag_over_time": """
WITH held AS (
  SELECT epoch, source, min(timestamp) AS oldest FROM {changelog}
  WHERE replicaset_id > 0 AND file LIKE '%.xlog' GROUP BY epoch, source
), waited AS (
  SELECT h.source AS source, e.committed_at AS moment, e.committed_at AS committed_at, h.oldest AS oldest
  FROM held h JOIN {epochs} e ON e.epoch = h.epoch
)
SELECT source, <point> AS at, max(<lag>) AS lag FROM waited
GROUP BY source, <point> ORDER BY source NULLS FIRST, at""",
    "epochs": """
SELECT count(*) AS epochs, min(committed_at) AS first, max(committed_at) AS last, sum(rows) AS rows FROM {epochs}""",
    "conflicts": f"""
SELECT space, kind, policy, sequence, winner_replicaset_id AS winner, loser_replicaset_id AS loser,
       count(*) AS conflicts, count(*) OVER () AS whole,
       min(coalesce(winner_timestamp, loser_timestamp, decided_at)) AS first,
       max(coalesce(winner_timestamp, loser_timestamp, decided_at)) AS last
FROM {{conflicts}} GROUP BY space, kind, policy, sequence, winner_replicaset_id, loser_replicaset_id
ORDER BY conflicts DESC, space, winner NULLS FIRST, loser NULLS FIRST LIMIT {MAX_TABLE_ROWS}""",
    "conflicts_over_time": """
SELECT space, <point> AS at, count(*) AS conflicts
FROM (SELECT space, coalesce(winner_timestamp, loser_timestamp, decided_at) AS moment FROM {conflicts})
GROUP BY space, <point> ORDER BY space, at NULLS FIRST""",
    "conflict_examples": f"""
SELECT space, winner_replicaset_id AS winner, loser_replicaset_id AS loser, key, policy, sequence, note,
       winner_tuple, winner_timestamp, winner_lsn, loser_tuple, loser_timestamp, loser_lsn
FROM (SELECT *, row_number() OVER (PARTITION BY space, winner_replicaset_id, loser_replicaset_id
                                   ORDER BY epoch DESC, key, loser_lsn) AS place FROM {{conflicts}})
WHERE place <= {MAX_CONFLICT_EXAMPLES}
ORDER BY space, winner NULLS FIRST, loser NULLS FIRST, place LIMIT {MAX_TABLE_ROWS}""",
    "gaps": f"""
WITH placed AS (
  SELECT *, row_number() OVER (PARTITION BY replicaset_id, source, local_id, first_lsn, last_lsn, kind
                               ORDER BY epoch DESC) AS place FROM {{gaps}}
), newest AS (
  SELECT replicaset_id, source, local_id, first_lsn, last_lsn, kind, min(found_at) AS found_at,
         max(state) FILTER (WHERE place = 1) AS state, max(file) FILTER (WHERE place = 1) AS file
  FROM placed GROUP BY replicaset_id, source, local_id, first_lsn, last_lsn, kind
)
SELECT *, count(*) OVER () AS whole FROM newest
ORDER BY CASE WHEN state = '{GapState.OPEN}' THEN 0 ELSE 1 END, found_at DESC NULLS LAST, replicaset_id, local_id,
         first_lsn LIMIT {MAX_TABLE_ROWS}""",
    "quarantine": f"""
WITH reasons AS (SELECT *, left(reason, 400) AS beginning FROM {{quarantine}}),
placed AS (
  SELECT *, row_number() OVER (PARTITION BY replicaset_id, space, beginning ORDER BY epoch DESC) AS place FROM reasons
)
SELECT replicaset_id, space, beginning AS reason, count(*) AS rows, min(epoch) AS first_epoch,
       max(epoch) AS last_epoch, max(lsn) FILTER (WHERE place = 1) AS lsn, max(file) FILTER (WHERE place = 1) AS file,
       count(*) OVER () AS whole
FROM placed GROUP BY replicaset_id, space, beginning
ORDER BY rows DESC, replicaset_id, space NULLS FIRST, reason LIMIT {MAX_TABLE_ROWS}""",
    "pending": f"""
SELECT replicaset_id, source, reason, count(*) AS rows, min(timestamp) AS oldest, count(*) OVER () AS whole
FROM {{pending}} GROUP BY replicaset_id, source, reason
ORDER BY rows DESC, replicaset_id, source NULLS FIRST, reason LIMIT {MAX_TABLE_ROWS}""",
    "spaces": """
WITH versions AS (
  SELECT *, row_number() OVER (PARTITION BY replicaset_id, space_id ORDER BY epoch DESC) AS place FROM {schema}
)
SELECT name, table_name, engine, format, primary_key, state, min(epoch) AS since_epoch,
       array_agg(DISTINCT replicaset_id) AS replicasets,
       array_agg(DISTINCT replicaset_id) FILTER (WHERE place = 1) AS now
FROM versions GROUP BY name, table_name, engine, format, primary_key, state
ORDER BY name NULLS FIRST, since_epoch, table_name NULLS FIRST, state LIMIT 2000""",
    "requests": """
WITH placed AS (
  SELECT *, row_number() OVER (PARTITION BY request ORDER BY changed_at DESC) AS place FROM {requests}
)
SELECT kind, arguments, max(state) FILTER (WHERE place = 1) AS state, min(asked_at) AS asked_at,
       max(message) FILTER (WHERE place = 1) AS message
FROM placed GROUP BY request, kind, arguments ORDER BY asked_at DESC LIMIT 20""",
    "validations": """
WITH placed AS (
  SELECT *, row_number() OVER (PARTITION BY `table`, expectation ORDER BY validated_at DESC) AS place FROM {validations}
)
SELECT validated_at, `table`, expectation, holds, rows, unexpected, examples, error
FROM placed WHERE place = 1 ORDER BY holds, validated_at DESC, `table`, expectation LIMIT 2000""",
}
"""The SQL queries of the page, by name. `{changelog}` is the table `_changelog` at its version of the epoch,
`<point>` and `<lag>` for expressions of the engine (`QueryEngine.dialect`).

Each result is small even for large tables: it is grouped, or limited to `MAX_TABLE_ROWS` rows with the total number in
the column `whole`."""


@dataclass(frozen=True)
class TableSize:
    """Size of a table at the page's epoch."""

    table: str
    version: int
    file_count: int
    byte_count: int
    """Number of data files, and their total size."""
    row_count: int | None
    """Number of rows from the statistics of the files; None if a file has no statistics."""
    debt: CompactionDebt | None = None
    """The rows that are deleted by deletion vectors; None if the table has no vector."""


@dataclass(frozen=True)
class PageFacts:
    """The content of the page."""

    root: str
    database: str
    """Location of the warehouse, and its name in SQL."""
    epoch: int | None
    """The newest epoch, at which the tables were read; None before the first batch."""
    read_at: datetime
    """Time at which the tables were read, in UTC."""
    rows_by_query: Mapping[str, Sequence[Row]]
    """By name of a query in `QUERIES`: the rows of its result."""
    point_milliseconds_by_query: Mapping[str, int] = field(default_factory=dict)
    """By name of a query for a plot over time (`rows_over_time`, `lag_over_time`, `conflicts_over_time`): the duration
    of one point of the plot, in milliseconds."""
    sizes: Sequence[TableSize] = ()
    rid: ComparedRid | None = None
    costs: WriteCosts | None = None
    """What batches cost; None if it is not known."""
    problems: Sequence[Problem] | None = None
    """What needs attention; None if it is not known."""
    failed_queries: Mapping[str, str] = field(default_factory=dict)

    def rows(self, query: str) -> Sequence[Row]:
        """Return the rows of a query; empty if it did not run."""
        return self.rows_by_query.get(query, ())


def choose_point_milliseconds(first: datetime | None, last: datetime | None) -> int:
    """Return the duration of one point, in milliseconds, with which a plot has about `TARGET_POINTS` points."""
    span = last - first if first is not None and last is not None else timedelta(0)
    shortest = span / timedelta(milliseconds=1) / TARGET_POINTS
    return next((step for step in POINT_MILLISECONDS if step >= shortest), POINT_MILLISECONDS[-1])


def time_range(
    rows: Sequence[Row], first_column: str, last_column: str
) -> tuple[datetime | None, datetime | None]:
    """Return (minimum of one column, maximum of another column) of rows; None if the column has no values."""
    firsts = [row[first_column] for row in rows if row[first_column] is not None]
    lasts = [row[last_column] for row in rows if row[last_column] is not None]
    return (min(firsts, default=None), max(lasts, default=None))


def collect_facts(warehouse: Warehouse, start_spark: Callable[[], SparkSession] | None = None) -> PageFacts:
    """Return the content of the page."""
    runner = _QueryRunner(warehouse, start_spark)
    first = runner.run(
        "instances",
        "applier_map",
        "sources",
        "epochs",
        "conflicts",
        "conflict_examples",
        "gaps",
        "quarantine",
    )
    point_milliseconds_by_query = {
        "rows_over_time": choose_point_milliseconds(*time_range(first["sources"], "oldest", "newest")),
        "lag_over_time": choose_point_milliseconds(*time_range(first["epochs"], "first", "last")),
        "conflicts_over_time": choose_point_milliseconds(*time_range(first["conflicts"], "first", "last")),
    }
    validations = ("validations",) if runner.has_table("validations") else ()
    second = runner.run("pending", "spaces", "requests", *validations, **point_milliseconds_by_query)
    side = read_compared_rid(warehouse.location)
    sizes = _table_sizes(warehouse.location, runner.versions)
    epoch = None if runner.epoch is None else runner.epoch.epoch
    rows_by_query = {**first, **second}
    return PageFacts(
        warehouse.root,
        warehouse.database,
        epoch,
        datetime.now(UTC),
        rows_by_query,
        point_milliseconds_by_query,
        sizes,
        side,
        failed_queries=dict(runner.failed),
    )


class _QueryRunner:
    """Runs queries on the tables of one epoch."""

    def __init__(self, warehouse: Warehouse, start_spark: Callable[[], SparkSession] | None) -> None:
        self.failed: dict[str, str] = {}
        self.epoch = epochs.last(warehouse)
        self.versions: dict[str, int] = {} if self.epoch is None else dict(self.epoch.versions)
        tables = (*QUERIED_TABLES, *(later for later in OPTIONAL_TABLES if warehouse.exists(later)))
        self._names = {table.removeprefix("_") for table in tables}
        self._engine = engine_of(warehouse, tables, start_spark)
        for table in tables:
            self._engine.add(table.removeprefix("_"), table, self._version_to_read(table))

    def has_table(self, name: str) -> bool:
        """Return whether a table of the aggregator exists; `name` is its name without the leading underscore."""
        return name in self._names

    def _version_to_read(self, table: str) -> int | None:
        if self.epoch is None or table in NEVER_ROLLED_BACK:
            return None
        return self.versions.get(table, 0)

    def run(self, *names: str, **point_milliseconds: int) -> dict[str, Sequence[Row]]:
        """Run queries of `QUERIES`, and return the rows of each by name.

        Args:
            **point_milliseconds: By name of a query for a plot over time: the duration of the plot's points in
                milliseconds.
        """
        calls = [*((name, 0) for name in names), *point_milliseconds.items()]
        return dict(_in_threads(lambda call: (call[0], self._rows_of_query(*call)), calls))

    def _rows_of_query(self, name: str, point_milliseconds: int) -> Sequence[Row]:
        try:
            rows = self._engine.plot_query(QUERIES[name], point_milliseconds).to_pylist()
        except Exception as error:  # the rest of the page is shown
            self.failed[name] = str(error).partition("\n")[0]
            return ()
        return tuple(map(_with_sorted_lists, rows))


def _with_sorted_lists(row: Row) -> Row:
    """Return a row whose lists of ids are sorted, with an empty one for NULL."""
    lists = {name: sorted(row[name] or ()) for name in ("replicasets", "now") if name in row}
    return {**row, **lists}


def _table_sizes(location: WarehouseLocation, versions: Mapping[str, int]) -> tuple[TableSize, ...]:
    def size(name: str) -> TableSize | None:
        try:
            table = location.open(name, versions.get(name))
        except DeltaError:  # not a table of the aggregator, or a version that maintenance has removed
            return None
        if table is None:
            return None
        files = active_files(table)
        counts = [file.rows for file in files if file.rows is not None]
        rows = sum(counts) if len(counts) == len(files) else None
        size = sum(file.size for file in files)
        debt = debt_of(files) if any(file.vector is not None for file in files) else None
        return TableSize(name, table.version(), len(files), size, rows, debt)

    sizes = _in_threads(size, location.tables())
    return tuple(sorted((one for one in sizes if one is not None), key=lambda one: -one.byte_count))


def _in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    with ThreadPoolExecutor(PARALLEL_QUERIES) as pool:
        return list(pool.map(work, items))
