"""Print SQL queries over the tables of a warehouse with their results, and write an HTML page.

Reads only, takes no lock, and may run while the stream runs. Spark starts only if tables are large. The page is one
HTML file that needs no network; it shows the newest epoch. Alerts are in `observe.metrics`.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.main import main
from jobs.runtime.output import say
from jobs.runtime.session import spark_session
from jobs.runtime.steps import log_step
from observe.deployment_problems import deployment_problems
from observe.report.facts import collect_facts
from observe.report.page import render_page
from observe.report.printed_queries import all_result_lines
from observe.write_costs import read_write_costs
from schemas.errors import ConfigurationError, WarehouseError
from schemas.problems import Problem
from warehouse.delta.location import has_known_scheme
from warehouse.warehouse import Warehouse

DEFAULT_PAGE = "report.html"


def write_page(
    warehouse: Warehouse,
    file: Path,
    config: Config | None = None,
    start_spark: Callable[[], SparkSession] | None = None,
) -> None:
    """Write the page of a warehouse; with its configuration it shows what needs attention."""
    if not file.parent.is_dir():
        raise ConfigurationError(f"there is no folder {file.parent} for the page", advice="see --page")
    problems = () if config is None else _problems(config)
    costs = None
    if config is not None and has_known_scheme(config.warehouse):
        costs = read_write_costs(config, warehouse.location)
    page = render_page(replace(collect_facts(warehouse, start_spark), problems=problems, costs=costs))
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the page cannot be written to {file}: {error.strerror}", advice="see --page"
        ) from error


def _problems(config: Config) -> tuple[Problem, ...]:
    try:
        return tuple(deployment_problems(config))
    except WarehouseError:  # no batch is done yet
        return ()


def report(config: Config, file: str = DEFAULT_PAGE) -> None:
    """Run the queries, write the page, and print its address."""
    start_spark = partial(spark_session, config, "report")
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.require_tables()
    tables = warehouse.tables()
    page = Path(file).resolve()
    log_step("collecting what the page shows")
    write_page(warehouse, page, config, start_spark)
    log_step(f"asking {len(tables)} tables")
    try:
        for line in all_result_lines(warehouse, tables, start_spark):
            say(line)
    except Exception as error:  # the page is written, and does not depend on them
        say(f"the queries could not be shown: {str(error).partition(chr(10))[0]}", err=True)
    say(f"Everything on one page: {page.as_uri()}")


if __name__ == "__main__":
    sys.exit(main("report"))
