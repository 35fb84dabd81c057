"""Run SQL on the tables: one statement, or those that are typed, with the tables, views and functions that it names.

The names are those of `aggregator views`: the database, `<database>_views.who_wrote`, `<database>_epoch_<newest>`. The
functions are those of `warehouse.sql_functions`. Nothing is written to the warehouse by this command itself;
the statements of the user may write.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress

from pyspark.errors import PySparkException

from config.deployment import Config
from jobs.runtime.command_line import DONE, is_verbose, print_error
from jobs.runtime.output import say_json_text, say_rows
from jobs.runtime.session import spark_session
from jobs.runtime.steps import log_step
from observe.sql_views import view_statements
from schemas.escaping import escaped
from warehouse.sql_functions import register_functions

SHOWN_ROWS = 1000
"""Rows of a result that are shown as a table; `--json` prints all."""

MANY_STATEMENTS = 20
"""If a statement needs more statements before it, a line says so."""

PROMPT, CONTINUED = "sql> ", "   > "


LISTING = {"show", "use", "list", "information_schema"}
"""Words of statements that may list all tables and views."""


class Catalog:
    """The catalog of a Spark session, to which the tables and views of a deployment are added when they are named."""

    def __init__(self, config: Config) -> None:
        self.spark = spark_session(config, "sql")
        self._config = config
        self._executed: set[str] = set()
        self.add_named_in("")
        register_functions(self.spark, config.warehouse, config.database)
        self.spark.catalog.setCurrentDatabase(config.database)

    def add_named_in(self, statement: str) -> None:
        """Register the tables and views that a statement may name; all of them, if it may list them."""
        words = {*re.findall(r"\w+", statement.lower())}
        wanted = None if words & LISTING else words
        new = [text for text in view_statements(self._config, [], words=wanted) if text not in self._executed]
        if len(new) > MANY_STATEMENTS:
            log_step(f"registering tables and views by {len(new)} statements")
        for text in new:
            self.spark.sql(text)
        self._executed.update(new)


def show_result(catalog: Catalog, statement: str, *, as_json: bool = False) -> None:
    """Run a statement and print its rows: as a table, or as one JSON object a line."""
    catalog.add_named_in(statement)
    rows = catalog.spark.sql(statement)
    if as_json:
        for line in rows.toJSON().toLocalIterator():
            say_json_text(str(line))
    elif rows.columns:
        say_rows(rows, SHOWN_ROWS)


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
    """Run one statement, or those that are typed; an error of one is printed, and the next one is run."""
    catalog = Catalog(config)
    code = DONE
    for text in typed_statements() if statement is None else [statement.rstrip().removesuffix(";")]:
        if not text.strip():
            continue
        try:
            show_result(catalog, text, as_json=as_json)
        except PySparkException as error:
            code = print_error(error, verbose=is_verbose(), line=error_line(error))
    return DONE if statement is None and sys.stdin.isatty() else code


def error_line(error: PySparkException) -> str:
    """Return the first line of an error of Spark, which may name what the statement names."""
    text = str(error)
    for value in (error.getMessageParameters() or {}).values():
        text = text.replace(value, escaped(value))
    return text.partition("\n")[0]
