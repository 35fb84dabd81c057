"""The printed report: SQL queries over the tables, as a user would type them, with the first rows of each result.

The page has its own queries (`observe.report.facts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO

from pyspark.sql import SparkSession

from schemas.names import is_space_table
from schemas.states import GapState
from warehouse.catalog import register_tables
from warehouse.warehouse import Warehouse

MAX_SHOWN_ROWS = 6
"""Maximum rows of a result."""

MAX_VALUE_CHARACTERS = 40
"""Maximum characters of a value."""

MAX_FIELD_COLUMNS = 4
"""Maximum number of shown columns of a space's fields."""

MAX_BAR_CHARACTERS = 20
"""Characters of the longest bar."""

QUERIED_TABLES = ("_cluster", "_changelog", "_pending", "_gaps", "_quarantine", "_conflicts")
"""The aggregator's own tables in the queries."""


@dataclass(frozen=True)
class TitledQuery:
    """An SQL query with a title."""

    title: str
    sql: str


def general_queries(database: str) -> Iterator[TitledQuery]:
    """Yield the queries that fit every warehouse."""
    yield TitledQuery(
        "Every instance of every replicaset: local ids collide, global ids do not",
        f"SELECT global_id, uuid, local_id, replicaset_id, lsn FROM {database}._cluster ORDER BY global_id",
    )
    yield TitledQuery(
        "Rows of the logs, by their state",
        f"SELECT replicaset_id, state, count(*) AS rows, count(DISTINCT space) AS spaces, max(timestamp) AS newest "
        f"FROM {database}._changelog GROUP BY ALL ORDER BY ALL",
    )
    yield TitledQuery(
        "Rows that wait, gaps in the logs, and rows in quarantine",
        f"SELECT (SELECT count(*) FROM {database}._pending) AS pending, "
        f"(SELECT count(*) FROM {database}._gaps WHERE state = '{GapState.OPEN}') AS gaps, "
        f"(SELECT count(*) FROM {database}._quarantine) AS quarantined",
    )


def conflict_queries(database: str) -> Iterator[TitledQuery]:
    """Yield the queries for a warehouse with conflicts between replicasets."""
    pair = "winner_replicaset_id AS winner, loser_replicaset_id AS loser"
    bar = f"repeat('#', cast(ceil({MAX_BAR_CHARACTERS} * count(*) / max(count(*)) OVER ()) AS int)) AS drawn"
    yield TitledQuery(
        "Conflicts by space and pair of replicasets, and how they were decided",
        f"SELECT space, kind, policy, sequence, {pair}, count(*) AS conflicts, {bar} FROM {database}._conflicts "
        "GROUP BY space, kind, policy, sequence, winner_replicaset_id, loser_replicaset_id "
        "ORDER BY conflicts DESC, space, winner, loser",
    )
    hour = "date_trunc('hour', coalesce(winner_timestamp, loser_timestamp, decided_at))"
    yield TitledQuery(
        "Conflicts by hour",
        f"SELECT {hour} AS hour, count(*) AS conflicts, count(DISTINCT space) AS spaces, {bar} "
        f"FROM {database}._conflicts GROUP BY {hour} ORDER BY hour DESC",
    )


def contended_table_queries(database: str, table: str, columns: list[str]) -> Iterator[TitledQuery]:
    """Yield the queries about the rows of one space with conflicts between replicasets.

    Args:
        columns: The table's columns; the first `MAX_FIELD_COLUMNS` columns of fields are shown.
    """
    typed = [f"t.`{column}`" for column in columns if not column.startswith("_")][:MAX_FIELD_COLUMNS]
    # A space without a format has no columns of its own. A variant cannot be sorted by, the key always can.
    shown = typed or ["hex(t._key) AS key"]
    has_conflict = f"t._key IN (SELECT key FROM {database}._conflicts WHERE space = '{table}')"
    yield TitledQuery(
        "A space that several replicasets wrote: one row per key, with the origin of the version that won",
        f"SELECT {', '.join(shown)}, t._replicaset_id, t._global_id, t._lsn, t._timestamp "
        f"FROM {database}.`{table}` t WHERE {has_conflict} ORDER BY t._key",
    )
    yield TitledQuery(
        "Who won which conflict",
        f"SELECT {shown[0]}, c.policy, c.winner_replicaset_id AS winner, c.winner_timestamp, "
        f"c.loser_replicaset_id AS loser, c.loser_timestamp "
        f"FROM {database}._conflicts c JOIN {database}.`{table}` t ON t._key = c.key "
        f"WHERE c.space = '{table}' ORDER BY t._key, c.epoch, winner, loser",
    )


def most_contended_table(spark: SparkSession, database: str) -> str | None:
    """Return the table with the most conflicts; None if there are no conflicts."""
    row = spark.sql(
        f"SELECT space FROM {database}._conflicts GROUP BY space ORDER BY count(*) DESC, space LIMIT 1"
    ).first()
    return None if row is None else str(row.space)


def result_lines(spark: SparkSession, query: TitledQuery) -> Iterator[str]:
    """Yield a query and its first rows, as lines; one line with the reason if the query fails."""
    yield f"-- {query.title}"
    yield f"{query.sql};"
    try:
        with redirect_stdout(StringIO()) as written:
            spark.sql(query.sql).show(MAX_SHOWN_ROWS, truncate=MAX_VALUE_CHARACTERS)
        shown = written.getvalue()
    except Exception as error:  # the other queries, and the page, do not need this one
        yield f"-- this query failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        shown = ""
    yield from shown.rstrip("\n").split("\n")
    yield ""


def all_result_lines(spark: SparkSession, warehouse: Warehouse, tables: Sequence[str]) -> Iterator[str]:
    """Yield the queries that fit a warehouse with their results, as lines.

    Args:
        tables: All tables of the warehouse.
    """
    database = warehouse.database
    register_tables(warehouse, QUERIED_TABLES)
    for query in general_queries(database):
        yield from result_lines(spark, query)
    table = most_contended_table(spark, database)
    if table is not None:
        register_tables(warehouse, [table])
        columns = spark.table(f"{database}.`{table}`").columns
        for query in (*conflict_queries(database), *contended_table_queries(database, table, columns)):
            yield from result_lines(spark, query)
    spaces = [name for name in tables if is_space_table(name)]
    yield f"{len(spaces)} tables of spaces in {warehouse.root}: {', '.join(spaces)}"
    yield (
        'Without Spark: python -c "from deltalake import DeltaTable; '
        f"print(DeltaTable('{warehouse.path('_cluster')}').to_pyarrow_table().to_pylist())\""
    )
