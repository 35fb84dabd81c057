"""Print SQL queries over the tables of a warehouse with their results, and write an HTML page.

    spark-submit jobs/report.py --config FILE [--page FILE]

Reads only, takes no lock, and may run while the stream runs. The page is one HTML file that needs no network; it shows
the newest epoch. Alerts are in `observe.metrics`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

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
from warehouse.delta.location import has_known_scheme, location_of
from warehouse.warehouse import Warehouse

DEFAULT_PAGE = "report.html"


def write_page(warehouse: Warehouse, file: Path, config: Config | None = None) -> None:
    """Write the page of a warehouse; with its configuration it shows what needs attention.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    if not file.parent.is_dir():
        raise ConfigurationError(f"there is no folder {file.parent} for the page", advice="see --page")
    problems = () if config is None else _problems(config)
    costs = None
    if config is not None and has_known_scheme(config.warehouse):
        costs = read_write_costs(config, location_of(config.warehouse, config.database))
    page = render_page(replace(collect_facts(warehouse), problems=problems, costs=costs))
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the page cannot be written to {file}: {error.strerror}", advice="see --page"
        ) from error


def _problems(config: Config) -> tuple[Problem, ...] | None:
    """Return what needs attention in a deployment; None if only Spark can open its warehouse."""
    if not has_known_scheme(config.warehouse):
        return None
    try:
        return tuple(deployment_problems(config))
    except WarehouseError:  # no batch is done yet
        return ()


def report(config: Config, file: str = DEFAULT_PAGE) -> None:
    """Run the queries, write the page, and print its address."""
    spark = spark_session(config, "report")
    warehouse = Warehouse(spark, config.warehouse, config.database)
    warehouse.require_tables()
    tables = warehouse.tables()
    page = Path(file).resolve()
    log_step("collecting what the page shows")
    write_page(warehouse, page, config)
    log_step(f"asking {len(tables)} tables")
    try:
        for line in all_result_lines(spark, warehouse, tables):
            say(line)
    except Exception as error:  # the page is written, and does not depend on them
        say(f"the queries could not be shown: {str(error).partition(chr(10))[0]}", err=True)
    say(f"Everything on one page: {page.as_uri()}")


if __name__ == "__main__":
    sys.exit(main("report"))
