"""Validate the tables as of the last epoch, by suites of Great Expectations: the aggregator's and the user's.

May run while the stream runs, and does not block it. Spark starts only for suites of the user's, large tables, and
spaces with unique secondary indexes. Groups of rows that violate a unique secondary index go to `_conflicts` (kind
`secondary`), by a request to the holder of the writer lock. The expectations are in `observe.validation`.
"""

import json
import sys
import uuid as uuids
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from config.deployment import Config
from jobs.backfill import request_and_wait
from jobs.main import main
from jobs.runtime.output import say, say_json
from jobs.runtime.session import log_reading_session
from jobs.runtime.steps import log_step
from observe.validation.check import CheckResult
from observe.validation.checks import CheckedTables, check_facts, checks, tables_of_spaces, user_expectations
from observe.validation.secondary_keys import IndexConflicts, find_index_conflicts, index_check
from observe.validation.spaces import columns_check, space_tables, spaces_check
from observe.validation.validator import Validator, import_library
from pipeline.commit.load import load_state
from pipeline.requests.service import conflict_to_json
from schemas.states import RequestKind
from warehouse.copies.rid import is_writable
from warehouse.delta.location import has_known_scheme, location_of
from warehouse.delta.newest_epoch import newest_row
from warehouse.system_tables import validations
from warehouse.system_tables.table_differences import TableDifference, TableState, table_differences
from warehouse.warehouse import Warehouse


def request_conflict_rows(
    config: Config, open_table: CheckedTables, warehouse: Warehouse, conflicts: IndexConflicts
) -> None:
    """Request that the holder of the writer lock adds the rows to `_conflicts`, and wait for it."""
    if conflicts.conflict_rows:
        rows = [conflict_to_json(row) for row in conflicts.conflict_rows]
        request_and_wait(
            config, warehouse, RequestKind.CONFLICTS, {"rows": rows}, lambda: open_table.warehouse.session
        )


def store_results(warehouse: Warehouse, moment: datetime, epoch: int, results: Sequence[CheckResult]) -> None:
    """Add the results to `_validations`; if the warehouse may not be written, print that instead."""
    location = location_of(warehouse.root) if has_known_scheme(warehouse.root) else None
    if location is None or not is_writable(location):
        say("the results are not stored: no primary that delta-rs opens")
        return
    validations.append(location, uuids.uuid4().hex, moment, epoch, list(map(result_row, results)))


def result_row(result: CheckResult) -> dict[str, Any]:
    """Return a result as a row of `_validations`."""
    return {
        "table": result.table,
        "expectation": result.expectation,
        "holds": result.holds,
        "rows": result.checked_row_count,
        "unexpected": result.failing_row_count,
        "examples": json.dumps(result.examples) if result.examples else None,
        "error": result.error,
        "source": result.source,
    }


def _print_to_stderr(line: str) -> None:
    say(line, err=True)


def _differing_tables(config: Config) -> tuple[Warehouse, list[TableDifference]]:
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.require_tables()
    location = warehouse.location
    return warehouse, list(table_differences(location, newest_row(location)))


def _difference_result(one: TableDifference) -> CheckResult:
    text = f"{one.text}; {one.advice}"
    return CheckResult(one.table, "it is as the newest epoch names it", holds=False, error=text)


def validate(
    config: Config,
    file: str,
    spaces: Sequence[str] = (),
    docs: str | None = None,
    *,
    as_json: bool = False,
) -> int:
    """Run all suites on the tables, print the failed expectations, and return the exit code.

    Args:
        as_json: Whether every result is printed as a JSON line on stdout, and the failed ones as text on stderr.
    """
    importing, moment = import_library(), datetime.now(UTC)
    user_suites = user_expectations(config, file)
    log_step("reading what the last epoch holds")
    warehouse, differences = _differing_tables(config)
    if any(one.state in (TableState.LOST, TableState.OLDER) for one in differences):
        for one in map(_difference_result, differences):
            say_json(result_row(one)) if as_json else say(f"FAILED {one}")
        say("nothing else is checked, since tables of the newest epoch are not there", err=True)
        return 1
    state = load_state(warehouse)
    if state.epoch < 0:
        say("no batch is done yet: there is nothing to validate")
        return 0
    names = tables_of_spaces(state, config, spaces)
    open_table = CheckedTables(warehouse, state, partial(log_reading_session, config, "validate"))
    facts = check_facts(open_table, state, config, moment)
    location = warehouse.open_tables.location
    log_step(f"reading {len(names)} tables of spaces")
    tables = space_tables(location, state, config, names)
    rows_check = spaces_check(location, tables, facts, lambda: open_table.warehouse.session)
    importing.join()
    validator = Validator(moment)
    log_step("validating the aggregator's own tables")
    results = list(map(_difference_result, differences))
    results += [
        one
        for check in checks(open_table, state, facts, names, user_suites)
        for one in validator.run_check(check)
    ]
    log_step(f"validating {len(names)} tables of spaces")
    results += validator.run_check(columns_check(tables))
    results += validator.run_tables_check(rows_check)
    log_step("looking for keys that a unique index has twice")
    found = find_index_conflicts(lambda: open_table.warehouse, state, config)
    results += validator.run_check(index_check(found))
    failed = [one for one in results if not one.holds]
    if as_json:
        for row in map(result_row, results):
            say_json(row)
    tell = _print_to_stderr if as_json else say
    for one in failed:
        tell(f"FAILED {one}")
    for index, reason in found.reason_by_unchecked_index.items():
        tell(f"not checked: the unique index {index}: {reason}")
    request_conflict_rows(config, open_table, warehouse, found)
    store_results(warehouse, moment, state.epoch, results)
    hold = f"{len(results) - len(failed)} of {len(results)} expectations hold"
    tell(f"epoch {state.epoch}: {hold}, of {len(names)} tables of spaces and the aggregator's own")
    docs = docs or config.validation.docs
    if docs:
        tell(f"Data Docs: {validator.write_docs(Path(docs).resolve()).as_uri()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main("validate"))
