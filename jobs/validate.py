"""Validate the tables as of the last epoch, by suites of Great Expectations: ours, and files of your own.

    spark-submit jobs/validate.py --config FILE [--space SPACE ...] [--docs FOLDER]

Reads while the stream runs, which it neither waits for nor stops. Results go to `_validations`, and as Data Docs into a
folder where one is named. Rows that break a unique secondary index together go to `_conflicts` (kind `secondary`) by a
request to the holder of the writer's lock. Exit code 1 where something does not hold.
Not here: what is expected (`observe.validation`, `observe.validation.secondary_keys`).
"""

from __future__ import annotations

import json
import sys
import uuid as uuids
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from config.deployment import Config
from jobs.backfill import carried_out
from jobs.commands.main import main
from jobs.runtime.session import spark_session
from observe.validation.check import Check, CheckFacts, CheckResult, OpenTable, readable
from observe.validation.origins import origins_check
from observe.validation.own import own_suites
from observe.validation.secondary import index_check
from observe.validation.secondary_keys import IndexConflicts, find
from observe.validation.spaces import columns_check, space_tables, spaces_check
from observe.validation.suites import system_checks
from observe.validation.validator import Validator
from pipeline.commit.load import load_state
from pipeline.requests.service import encoded
from pipeline.state import State
from schemas.errors import ConfigurationError, WarehouseError
from schemas.names import is_of_space, table_of_exact_tuples
from schemas.tables import SYSTEM_TABLES
from sources.xlog.datasource import register
from warehouse import requests, validations
from warehouse.newest_epoch import NEVER_ROLLED_BACK
from warehouse.place import known, place_of
from warehouse.warehouse import Warehouse

EXPECTATIONS = "expectations"
"""The folder of the user's suites, beside the configuration, unless that names another one."""


def table_opener(warehouse: Warehouse, state: State) -> OpenTable:
    """Return how tables are read at the versions of the last epoch."""
    made = {name: 0 for name in SYSTEM_TABLES if name not in NEVER_ROLLED_BACK}

    def read(table: str) -> DataFrame:
        version = state.versions.get(table, made.get(table))
        return warehouse.read(table, version) if is_of_space(table) else warehouse.read_own(table, version)

    return read


def facts_of(open_table: OpenTable, state: State, config: Config, moment: datetime) -> CheckFacts:
    """Return what checks of all tables need to know."""
    ids = sorted(
        row.global_id
        for row in open_table("_cluster").select("global_id").collect()
        if row.global_id is not None
    )
    tolerance = config.validation.tolerance()
    replicasets = tuple(sorted(one.id for one in state.replicasets.values()))
    return CheckFacts(tuple(ids), replicasets, None if tolerance is None else moment + tolerance)


def checks(
    open_table: OpenTable,
    state: State,
    facts: CheckFacts,
    names: Sequence[str],
    own: Mapping[str, Sequence[Any]],
) -> Iterator[Check]:
    """Yield all that is expected of single tables; `own` is the user's by table."""
    yield from system_checks(open_table, facts)
    yield origins_check(open_table, state, facts)
    for table, expectations in own.items():
        if table in names:
            rows = readable(open_table(table_of_exact_tuples(state.versions, table)))
            yield Check(table, rows, tuple(expectations), ("_key",))


def tables_of(state: State, config: Config, wanted: Sequence[str] | None) -> list[str]:
    """Return the tables of spaces to look at.

    Raises
    ------
    ConfigurationError
        A space that is asked for has no table.

    """
    known_ = sorted(filter(is_of_space, state.versions))
    if not wanted:
        return known_
    ids = [None, *(one.id for one in state.replicasets.values())]
    found = {space: {config.spaces.table(space, replicaset=i) for i in ids} & set(known_) for space in wanted}
    missing = [space for space, tables in found.items() if not tables]
    if missing:
        raise ConfigurationError(f"there is no table of {', '.join(missing)}", advice="see --space")
    return sorted(set().union(*found.values()))


def own_of(config: Config, file: str) -> dict[str, list[Any]]:
    """Return the user's expectations by table; needs no Spark.

    Raises
    ------
    ConfigurationError
        A file of them is wrong, or the folder that the configuration names is not there.

    """
    named = config.validation.expectations
    folder = Path(named) if named else Path(file).resolve().parent / EXPECTATIONS
    if not folder.is_dir():
        if named:
            raise ConfigurationError(f"there is no folder {folder}", path="validation.expectations")
        return {}
    if not known(config.warehouse):
        raise ConfigurationError("suites of your own need a warehouse that delta-rs opens", path="warehouse")
    tables = place_of(config.warehouse, config.database).tables()
    return own_suites(folder, list(filter(is_of_space, tables)))


def note(spark: SparkSession, config: Config, warehouse: Warehouse, found: IndexConflicts) -> None:
    """Have the conflicts that were found put into `_conflicts`."""
    if found.rows:
        rows = [encoded(row) for row in found.rows]
        carried_out(spark, config, warehouse, requests.ask(warehouse, "conflicts", {"rows": rows}))


def store(warehouse: Warehouse, moment: datetime, epoch: int, told: Sequence[CheckResult]) -> None:
    """Add the verdicts to `_validations`."""
    place = place_of(warehouse.root) if known(warehouse.root) else None
    if place is None or not validations.may_write(place):
        print("the results are not stored: no primary that delta-rs opens")
        return
    validations.append(place, uuids.uuid4().hex, moment, epoch, list(map(row_of, told)))


def row_of(one: CheckResult) -> dict[str, Any]:
    """Return a verdict as a row of `_validations`."""
    return {
        "table": one.table,
        "expectation": one.expected,
        "holds": one.holds,
        "rows": one.rows,
        "unexpected": one.unexpected,
        "examples": json.dumps(one.examples) if one.examples else None,
        "error": one.error,
        "source": one.source,
    }


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def opened(spark: SparkSession, config: Config) -> tuple[Warehouse, State]:
    """Return the warehouse, and its state as of the last epoch.

    Raises
    ------
    WarehouseError
        There is none yet.

    """
    warehouse = Warehouse(spark, config.warehouse, config.database)
    if not warehouse.exists("_epochs"):
        raise WarehouseError(
            "there are no tables yet", warehouse=warehouse.root, advice="start `aggregator run` first"
        )
    return warehouse, load_state(warehouse)


def validate(
    config: Config,
    file: str,
    spaces: Sequence[str] = (),
    docs: str | None = None,
    *,
    as_json: bool = False,
) -> int:
    """Check everything, print what does not hold, and return the exit code.

    Parameters
    ----------
    config : Config
    file : str
        The configuration's; suites of the user's own are in its folder.
    spaces : sequence of str
        Only these; default: all of them.
    docs : str, optional
        Folder of Data Docs; default: the configuration's.
    as_json : bool
        Print each verdict as a line of JSON instead.

    """
    own, moment = own_of(config, file), datetime.now(UTC)
    spark = spark_session(config, "validate")
    register(spark)
    warehouse, state = opened(spark, config)
    if state.epoch < 0:
        print("no batch is done yet: there is nothing to validate")
        return 0
    names, open_table = tables_of(state, config, spaces), table_opener(warehouse, state)
    facts = facts_of(open_table, state, config, moment)
    validator = Validator(moment)
    told = [
        one for check in checks(open_table, state, facts, names, own) for one in validator.verdicts(check)
    ]
    place = warehouse.open_tables.place
    tables = space_tables(place, state, config, names)
    told += validator.verdicts(columns_check(spark, tables))
    told += validator.verdicts_of_tables(spaces_check(spark, place, tables, facts))
    found = find(warehouse, state, config)
    told += validator.verdicts(index_check(spark, found))
    failed = [one for one in told if not one.holds]
    if as_json:
        for row in map(row_of, told):
            print(json.dumps(row))
    say = _to_stderr if as_json else print
    for one in failed:
        say(f"FAILED {one}")
    for index, reason in found.unchecked.items():
        say(f"not checked: the unique index {index}: {reason}")
    note(spark, config, warehouse, found)
    store(warehouse, moment, state.epoch, told)
    hold = f"{len(told) - len(failed)} of {len(told)} expectations hold"
    say(f"epoch {state.epoch}: {hold}, of {len(names)} tables of spaces and the aggregator's own")
    docs = docs or config.validation.docs
    if docs:
        say(f"Data Docs: {validator.write_docs(Path(docs).resolve()).as_uri()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main("validate"))
