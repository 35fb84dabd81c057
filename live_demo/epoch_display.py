"""Shows each new epoch of the demonstration: SQL queries with their rows on the terminal, and the report page."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.report import write_page
from jobs.runtime.session import spark_session
from observe.report.questions import Question, show
from warehouse.catalog import register_tables
from warehouse.newest_epoch import BEFORE_THE_FIRST, last_epoch
from warehouse.place import place_of
from warehouse.warehouse import Warehouse

SPACE = "accounts"
QUERIED_TABLES = ("_cluster", "_changelog", "_conflicts", SPACE)


def questions(database: str) -> tuple[Question, ...]:
    """Return the queries, each with its title."""
    pair = "winner_replicaset_id AS winner, loser_replicaset_id AS loser"
    return (
        Question(
            "The newest rows of one space over both replicasets, with the origin of the version that won",
            f"SELECT id, owner, balance, _replicaset_id, _global_id, _lsn, _timestamp FROM {database}.{SPACE} "
            f"ORDER BY _timestamp DESC",
        ),
        Question(
            "Who won how many keys",
            f"SELECT {pair}, count(*) AS conflicts FROM {database}._conflicts GROUP BY ALL ORDER BY ALL",
        ),
        Question(
            "Rows of each instance: in each replicaset ids start at 1, global ids do not collide",
            f"SELECT c.replicaset_id, c.local_id, c.global_id, count(*) AS rows, max(l.timestamp) AS newest "
            f"FROM {database}._changelog l JOIN {database}._cluster c ON c.global_id = l.global_id "
            f"GROUP BY ALL ORDER BY ALL",
        ),
    )


class EpochDisplay:
    """Queries the tables of a deployment in a Spark session of its own, while the stream writes them.

    `first_rows_at` is the time of the monotonic clock at which the first rows were printed.

    Parameters
    ----------
    config : Config
    page : Path
        The file of the report page.

    """

    def __init__(self, config: Config, page: Path) -> None:
        self._config, self._page = config, page
        self._shown_epoch = BEFORE_THE_FIRST
        self._place = place_of(config.warehouse, config.database)
        self._session: SparkSession | None = None
        self.first_rows_at: float | None = None

    def start(self) -> None:
        """Start the Spark session."""
        self._session = spark_session(self._config, "live demonstration")
        self._session.sparkContext.setLogLevel("ERROR")

    def has_new_epoch(self) -> bool:
        """Whether an epoch was committed after the shown one, and the table of the space exists."""
        return last_epoch(self._place) > self._shown_epoch and self._place.open(SPACE) is not None

    def show(self) -> None:
        """Print the queries with their results, and write the page."""
        warehouse = Warehouse(self._session, self._config.warehouse, self._config.database)
        epoch = last_epoch(self._place)
        register_tables(warehouse, QUERIED_TABLES)
        print(f"\n== epoch {epoch}", flush=True)
        for question in questions(self._config.database):
            show(warehouse.session, question)
            self.first_rows_at = self.first_rows_at or time.monotonic()
        written = self._page.with_suffix(".new")
        write_page(warehouse, written)
        written.replace(self._page)
        self._shown_epoch = epoch

    def stop(self) -> None:
        """Stop the Spark session."""
        if self._session is not None:
            self._session.stop()
