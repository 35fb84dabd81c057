"""Run SQL on the tables: one statement, or those that are typed, with all tables, views and functions registered.

The names are those of `aggregator views`: the database, `<database>_views.who_wrote`, `<database>_epoch_<newest>`. The
functions are those of `warehouse.sql_functions`. Nothing is written to the warehouse by this command itself;
the statements of the user may write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.runtime.output import say, say_json_text
from jobs.runtime.session import spark_session
from jobs.runtime.steps import log_step
from observe.sql_views import view_statements
from warehouse.sql_functions import register_functions

SHOWN_ROWS = 1000
"""Rows of a result that are shown as a table; `--json` prints all."""

PROMPT, CONTINUED = "sql> ", "   > "


def sql_session(config: Config) -> SparkSession:
    """Return a Spark session whose catalog has the tables, views and functions of a deployment."""
    spark = spark_session(config, "sql")
    log_step("registering the tables")
    for statement in view_statements(config, []):
        spark.sql(statement)
    register_functions(spark, config.warehouse, config.database)
    spark.catalog.setCurrentDatabase(config.database)
    return spark


def show_result(spark: SparkSession, statement: str, *, as_json: bool = False) -> None:
    """Run a statement and print its rows: as a table, or as one JSON object a line."""
    rows = spark.sql(statement)
    if as_json:
        for line in rows.toJSON().toLocalIterator():
            say_json_text(str(line))
    elif rows.columns:
        rows.show(SHOWN_ROWS, truncate=False)


def typed_statements() -> Iterator[str]:
    """Yield the statements that are typed, or read from a pipe, up to the end; each ends with a semicolon."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (lines can be edited and repeated)
    text = ""
    while True:
        try:
            line = input((CONTINUED if text else PROMPT) if is_terminal else "")
        except EOFError:
            break
        text = f"{text}\n{line}" if text else line
        if text.rstrip().endswith(";"):
            yield text.rstrip().removesuffix(";")
            text = ""
    if text.strip():
        yield text


def sql(config: Config, statement: str | None = None, *, as_json: bool = False) -> int:
    """Run one statement, or those that are typed; an error of a typed one is printed, and the next one is read."""
    spark = sql_session(config)
    if statement is not None:
        show_result(spark, statement.rstrip().removesuffix(";"), as_json=as_json)
        return 0
    code = 0
    for typed in typed_statements():
        if not typed.strip():
            continue
        try:
            show_result(spark, typed, as_json=as_json)
        except PySparkException as error:
            say(f"error: {str(error).splitlines()[0]}", err=True)
            code = 1
    return 0 if sys.stdin.isatty() else code
