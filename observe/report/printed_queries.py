"""The printed report: SQL queries over the tables, as a user would type them, with the first rows of each result.

Spark understands them as well (`aggregator sql`), whichever engine runs them here (`observe.query_engines`). The
page has its own queries (`observe.report.facts`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from observe.query_engines import QueryEngine, engine_of
from schemas.names import is_space_table
from schemas.states import GapState
from warehouse.warehouse import Warehouse

MAX_SHOWN_ROWS = 6

MAX_VALUE_CHARACTERS = 40

MAX_FIELD_COLUMNS = 4
"""Maximum number of shown columns of a space's fields."""

MAX_BAR_CHARACTERS = 20

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
        f"FROM {database}._changelog GROUP BY replicaset_id, state ORDER BY replicaset_id, state",
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
    bar = (
        f"repeat('#', cast(ceil({MAX_BAR_CHARACTERS}.0 * count(*) / max(count(*)) OVER ()) AS int)) AS drawn"
    )
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
    """Yield the queries about the rows of one space with conflicts between replicasets."""
    typed = [f"t.`{column}`" for column in columns if not column.startswith("_")][:MAX_FIELD_COLUMNS]
    # A space without a format has no columns of its own.
    shown = typed or ["t._key AS key"]
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


def most_contended_table(engine: QueryEngine, database: str) -> str | None:
    """Return the table with the most conflicts; None if there are no conflicts."""
    found = engine.query(
        f"SELECT space FROM {database}._conflicts GROUP BY space ORDER BY count(*) DESC, space LIMIT 1"
    )
    return str(found["space"][0].as_py()) if found.num_rows else None


def plain_columns(engine: QueryEngine, table: str) -> list[str]:
    """Return the columns of a table but those with nested values, such as variants, which are bytes to most readers."""
    schema = engine.query(f"SELECT * FROM {table} LIMIT 0").schema
    return [column.name for column in schema if not pa.types.is_nested(column.type)]


def grid_lines(rows: pa.Table) -> Iterator[str]:
    """Yield the first rows of a table as lines of text, in the form in which Spark shows rows."""
    shown = rows.slice(0, MAX_SHOWN_ROWS).to_pylist()
    lines = [[*rows.column_names], *([_cell_text(row[name]) for name in rows.column_names] for row in shown)]
    widths = [max(3, *map(len, cells)) for cells in zip(*lines, strict=True)]
    border = f"+{'+'.join('-' * width for width in widths)}+"
    yield border
    for number, line in enumerate(lines):
        yield f"|{'|'.join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))}|"
        if number == 0:
            yield border
    yield border
    if rows.num_rows > MAX_SHOWN_ROWS:
        yield f"only showing top {MAX_SHOWN_ROWS} rows"


def _cell_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.%f}".rstrip("0").rstrip(".")
    text = value.hex(" ").upper() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[: MAX_VALUE_CHARACTERS - 3]}..."


def result_lines(engine: QueryEngine, query: TitledQuery) -> Iterator[str]:
    """Yield a query and its first rows, as lines; one line with the reason if the query fails."""
    yield f"-- {query.title}"
    yield f"{query.sql};"
    try:
        # One row more than is shown says whether there are more.
        yield from grid_lines(engine.query(f"{query.sql} LIMIT {MAX_SHOWN_ROWS + 1}"))
    except Exception as error:  # the other queries, and the page, do not need this one
        yield f"-- this query failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    yield ""


def all_result_lines(
    warehouse: Warehouse, tables: Sequence[str], start_spark: Callable[[], SparkSession] | None = None
) -> Iterator[str]:
    """Yield the queries that fit a warehouse with their results, as lines."""
    database = warehouse.database
    engine = engine_of(warehouse, QUERIED_TABLES, start_spark)
    engine.register(QUERIED_TABLES)
    for query in general_queries(database):
        yield from result_lines(engine, query)
    contended = most_contended_table(engine, database)
    if contended is not None:
        engine = engine_of(warehouse, [*QUERIED_TABLES, contended], start_spark)
        engine.register([*QUERIED_TABLES, contended])
        columns = plain_columns(engine, f"{database}.`{contended}`")
        for query in (*conflict_queries(database), *contended_table_queries(database, contended, columns)):
            yield from result_lines(engine, query)
    spaces = [name for name in tables if is_space_table(name)]
    yield f"{len(spaces)} tables of spaces in {warehouse.root}: {', '.join(spaces)}"
    yield (
        'Without Spark: python -c "from deltalake import DeltaTable; '
        f"print(DeltaTable('{warehouse.path('_cluster')}').to_pyarrow_table().to_pylist())\""
    )
