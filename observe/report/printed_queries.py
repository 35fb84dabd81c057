"""The printed report: SQL queries over the tables, as a user would type them, with the first rows of each result.

The page has its own queries (`observe.report.facts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    typed = [column for column in columns if not column.startswith("_")][:MAX_FIELD_COLUMNS]
    shown = ", ".join(f"t.`{column}`" for column in typed)
    has_conflict = f"t._key IN (SELECT key FROM {database}._conflicts WHERE space = '{table}')"
    yield TitledQuery(
        "A space that several replicasets wrote: one row per key, with the origin of the version that won",
        f"SELECT {shown}, t._replicaset_id, t._global_id, t._lsn, t._timestamp FROM {database}.`{table}` t "
        f"WHERE {has_conflict} ORDER BY ALL",
    )
    yield TitledQuery(
        "Who won which conflict",
        f"SELECT t.`{typed[0]}`, c.policy, c.winner_replicaset_id AS winner, c.winner_timestamp, "
        f"c.loser_replicaset_id AS loser, c.loser_timestamp "
        f"FROM {database}._conflicts c JOIN {database}.`{table}` t ON t._key = c.key "
        f"WHERE c.space = '{table}' ORDER BY ALL",
    )


def most_contended_table(spark: SparkSession, database: str) -> str | None:
    """Return the table with the most conflicts; None if there are no conflicts."""
    row = spark.sql(
        f"SELECT space FROM {database}._conflicts GROUP BY space ORDER BY count(*) DESC, space LIMIT 1"
    ).first()
    return None if row is None else str(row.space)


def print_result(spark: SparkSession, query: TitledQuery) -> None:
    """Print a query and its first rows."""
    print(f"-- {query.title}\n{query.sql};", flush=True)
    spark.sql(query.sql).show(MAX_SHOWN_ROWS, truncate=MAX_VALUE_CHARACTERS)


def print_all_results(spark: SparkSession, warehouse: Warehouse, tables: Sequence[str]) -> None:
    """Print the queries that fit a warehouse, with their results.

    Args:
        tables: All tables of the warehouse.
    """
    database = warehouse.database
    register_tables(warehouse, QUERIED_TABLES)
    for query in general_queries(database):
        print_result(spark, query)
    table = most_contended_table(spark, database)
    if table is not None:
        register_tables(warehouse, [table])
        for query in conflict_queries(database):
            print_result(spark, query)
        columns = spark.table(f"{database}.`{table}`").columns
        for query in contended_table_queries(database, table, columns):
            print_result(spark, query)
    spaces = [name for name in tables if is_space_table(name)]
    print(f"{len(spaces)} tables of spaces in {warehouse.root}: {', '.join(spaces)}")
    print(
        'Without Spark: python -c "from deltalake import DeltaTable; '
        f"print(DeltaTable('{warehouse.path('_cluster')}').to_pyarrow_table().to_pylist())\""
    )
