"""Validate the tables as of the last epoch: bookkeeping, keys, and unique secondary indexes over all replicasets.

    spark-submit jobs/validate.py --config FILE [--space SPACE ...]

Reads beside the stream. Rows that break a unique secondary index together go to `_conflicts` (kind `secondary`) by a
request to whoever holds the writer's lock. Exit code 1 where something does not hold.
Not here: what is expected (`jobs.expectations`, `jobs.secondary`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

from jobs.backfill import carried_out
from jobs.batch.load import load_state
from jobs.batch.state import State
from jobs.cli import parser, run
from jobs.config import Config
from jobs.expectations import Cut, Verdict, agreements, space_check, system_checks, verdicts
from jobs.requests import encoded
from jobs.secondary import Found, find
from jobs.session import spark_session
from schemas.errors import ConfigurationError, WarehouseError
from sources.xlog.datasource import register
from tables import requests
from tables.warehouse import Warehouse


def cut_of(warehouse: Warehouse, state: State) -> Cut:
    """Return how tables are read at the versions of the last epoch."""

    def read(table: str) -> DataFrame:
        return warehouse.read(table, state.versions.get(table))

    return read


def checked(warehouse: Warehouse, state: State, spaces: list[str]) -> Iterator[Verdict]:
    """Yield what comes of all expectations."""
    cut = cut_of(warehouse, state)
    for check in system_checks(cut):
        yield from verdicts(check)
    yield from agreements(cut)
    for table in spaces:
        yield from verdicts(space_check(cut, table))


def tables_of(state: State, config: Config, wanted: list[str] | None) -> list[str]:
    """Return the tables of spaces to look at.

    Raises
    ------
    ConfigurationError
        A space that is asked for has no table.

    """
    known = sorted(name for name in state.versions if not name.startswith("_"))
    if not wanted:
        return known
    ids = [None, *(one.id for one in state.replicasets.values())]
    found = {space: {config.spaces.table(space, replicaset=i) for i in ids} & set(known) for space in wanted}
    missing = [space for space, tables in found.items() if not tables]
    if missing:
        raise ConfigurationError(f"there is no table of {', '.join(missing)}", advice="see --space")
    return sorted(set().union(*found.values()))


def note(spark: SparkSession, config: Config, warehouse: Warehouse, found: Found) -> None:
    """Have the conflicts that were found put into `_conflicts`."""
    if found.rows:
        rows = [encoded(row) for row in found.rows]
        carried_out(spark, config, warehouse, requests.ask(warehouse, "conflicts", {"rows": rows}))


def validate(config: Config, options: argparse.Namespace) -> int:
    """Check everything, print what does not hold, and return the exit code."""
    spark = spark_session(config, "validate")
    register(spark)
    warehouse = Warehouse(spark, config.warehouse, config.database)
    if not warehouse.exists("_epochs"):
        raise WarehouseError(
            "there are no tables yet", warehouse=warehouse.root, advice="run jobs/aggregate.py first"
        )
    state = load_state(warehouse)
    if state.epoch < 0:
        raise WarehouseError("no batch is done yet", warehouse=warehouse.root)
    told = list(checked(warehouse, state, tables_of(state, config, options.space)))
    failed = [one for one in told if not one.holds]
    for one in failed:
        print(f"FAILED {one.check}: {one.expected} {dict(one.details)}")
    found = find(warehouse, state, config)
    for index, reason in found.unchecked.items():
        print(f"not checked: the unique index {index}: {reason}")
    for row in found.rows:
        print(f"secondary: {row['space']}.{row['sequence']}: two rows with one key, {row['key'].hex()} lost")
    note(spark, config, warehouse, found)
    print(
        f"epoch {state.epoch}: {len(told) - len(failed)} of {len(told)} expectations hold, "
        f"{found.checked} unique secondary indexes, {len(found.rows)} new conflicts in them"
    )
    return 1 if failed or found.rows else 0


def main() -> int:
    """Run the command."""
    arguments = parser((__doc__ or "").partition("\n")[0])
    arguments.add_argument(
        "--space", action="append", metavar="SPACE", help="only this space; may be repeated"
    )
    return run(validate, arguments)


if __name__ == "__main__":
    sys.exit(main())
