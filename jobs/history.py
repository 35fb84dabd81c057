"""Print all versions of a space's keys with their periods of validity, by SQL (`observe.space_history`)."""

import sys

from config.deployment import Config
from jobs.main import main
from jobs.runtime.output import say_rows
from jobs.runtime.session import spark_session
from jobs.runtime.steps import log_step
from observe.space_history import register_history
from warehouse.warehouse import Warehouse

SHOWN_ROWS = 20


def show(config: Config, space: str, sql: str | None = None) -> None:
    """Print the result of a query about a space's history."""
    spark = spark_session(config, "history")
    warehouse = Warehouse(spark, config.warehouse, config.database)
    log_step(f"reading the history of {space}")
    view = register_history(warehouse, config, config.spaces.table(space))
    query = sql or f"SELECT * FROM {view} ORDER BY key, replicaset_id, epoch, lsn"
    say_rows(spark.sql(query), SHOWN_ROWS)


if __name__ == "__main__":
    sys.exit(main("history"))
