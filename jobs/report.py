"""Print SQL queries over the tables of a warehouse with their results, and write an HTML page.

    spark-submit jobs/report.py --config FILE [--page FILE]

Reads only, takes no lock, and may run while the stream runs. The page is one HTML file that needs no network; it shows
the newest epoch. Alerts are in `observe.metrics`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from config.deployment import Config
from jobs.commands.main import main
from jobs.runtime.session import spark_session
from jobs.runtime.steps import log_step
from observe.report.facts import collect_facts
from observe.report.page import render_page
from observe.report.printed_queries import print_all_results
from schemas.errors import ConfigurationError
from warehouse.warehouse import Warehouse

DEFAULT_PAGE = "report.html"


def write_page(warehouse: Warehouse, file: Path) -> None:
    """Write the page of a warehouse.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    if not file.parent.is_dir():
        raise ConfigurationError(f"there is no folder {file.parent} for the page", advice="see --page")
    page = render_page(collect_facts(warehouse))
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the page cannot be written to {file}: {error.strerror}", advice="see --page"
        ) from error


def report(config: Config, file: str = DEFAULT_PAGE) -> None:
    """Run the queries, write the page, and print its address."""
    spark = spark_session(config, "report")
    warehouse = Warehouse(spark, config.warehouse, config.database)
    warehouse.require_tables()
    tables = warehouse.tables()
    log_step(f"asking {len(tables)} tables")
    print_all_results(spark, warehouse, tables)
    page = Path(file).resolve()
    log_step("collecting what the page shows")
    write_page(warehouse, page)
    print(f"\nEverything on one page: {page.as_uri()}")


if __name__ == "__main__":
    sys.exit(main("report"))
