"""Times `validate` and `report` on warehouses with many small tables.

    python -m benchmarks.many_tables [--tables 100 1000] [--rows 1000] [--keep FOLDER]

Writes the log of one replicaset with that many spaces, runs one batch without Spark, then the two commands with Spark
running. With `--keep` the tables stay, and a next run on the same folder only asks them: so two states of the code are
compared on the same tables.
"""

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

from config.deployment import Config
from jobs.report import report
from jobs.runtime.session import spark_session
from jobs.validate import validate
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node, replicasets_of

FIRST_SPACE = 600


def tables_of(folder: Path, tables: int, rows: int) -> Config:
    """Return the configuration of a warehouse with so many tables of spaces, which is written if it is not there."""
    log = folder / "a1"
    deployment = Deployment(folder, {"a1": log}, replicasets_of("a1"))
    deployment.database = "aggregator"
    if not log.is_dir():
        node = Node(folder, "a1")
        for space in range(FIRST_SPACE, FIRST_SPACE + tables):
            node.define(space, f"space_{space}")
            for key in range(rows):
                node.put(space, key, f"name {key}", key, 1, at=key)
        node.close()
        deployment.write()
    return deployment.config()


def seconds_of(config: Config, folder: Path) -> tuple[float, float]:
    """Return how long `validate` and `report` take."""
    with contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        validate(config, str(folder / "none.yaml"))
        validated = time.perf_counter()
        report(config, str(folder / "report.html"))
        return validated - began, time.perf_counter() - validated


def main() -> None:
    """Print a line for each number of tables."""
    parser = argparse.ArgumentParser(description="Time validate and report with many tables.")
    parser.add_argument("--tables", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for tables in given.tables:
            folder = (given.keep or Path(temporary)) / str(tables)
            folder.mkdir(parents=True, exist_ok=True)
            config = tables_of(folder, tables, given.rows)
            spark_session(config, "many tables")
            validated, shown = seconds_of(config, folder)
            print(
                f"{tables:5d} tables of {given.rows} rows: validate {validated:.1f} s, report {shown:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
