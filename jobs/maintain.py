"""Maintain the tables: join small files, and remove those that no kept version needs.

    spark-submit jobs/maintain.py --config FILE [--keep-days DAYS]

The work is asked of whoever holds the writer's lock, as a backfill is: it must not replace files that a batch rewrites.
Versions that are younger than `--keep-days` stay readable, those of the newest epoch in any case.
Not here: what it does to a table (`jobs.service`).
"""

from __future__ import annotations

import argparse
import sys

from config.deployment import Config
from jobs.backfill import carried_out
from jobs.cli import parser, run
from jobs.session import spark_session
from schemas.errors import ConfigurationError, WarehouseError
from sources.xlog.datasource import register
from tables import requests
from tables.requests import DONE
from tables.warehouse import Warehouse

KEEP_DAYS = 7
"""Delta's own default: a reader that began on an older version than this fails."""


def maintain(config: Config, options: argparse.Namespace) -> int:
    """Have the tables maintained, and return the exit code."""
    if options.keep_days < KEEP_DAYS:
        raise ConfigurationError(
            f"--keep-days {options.keep_days} would remove files that readers still need",
            advice=f"keep {KEEP_DAYS} days or more",
        )
    spark = spark_session(config, "maintain")
    register(spark)
    warehouse = Warehouse(spark, config.warehouse, config.database)
    if not warehouse.exists("_epochs"):
        raise WarehouseError("there are no tables yet", warehouse=warehouse.root)
    asked = requests.ask(warehouse, "maintenance", {"keep_days": options.keep_days})
    request = carried_out(spark, config, warehouse, asked)
    print(f"maintenance: {request.message}")
    return 0 if request.state == DONE else 1


def main() -> int:
    """Run the command."""
    arguments = parser((__doc__ or "").partition("\n")[0])
    arguments.add_argument(
        "--keep-days", type=int, default=KEEP_DAYS, metavar="DAYS", help=f"default: {KEEP_DAYS}"
    )
    return run(maintain, arguments)


if __name__ == "__main__":
    sys.exit(main())
