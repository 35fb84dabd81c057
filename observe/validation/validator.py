"""Runs checks with Great Expectations, and returns their results.

Rows that are in this process are checked by the library with pandas, and so are few rows of Spark (`MAX_LOCAL_ROWS`),
which are collected once: with Spark the library would need several jobs a check, half a second each. A user's
expectations always run with Spark, since they may contain its SQL. First all expectations of a check run together and
only say whether they hold. Failed expectations run again, for counts and examples. The results of all checks can be
written as Data Docs. The library is imported on first use, since the import takes seconds.
"""

import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow as pa

from observe.log_rows.row_format import tuple_text
from observe.validation.check import MAX_EXAMPLES, Check, CheckResult, Rows, TablesCheck
from observe.validation.user_suites import FILE_META_KEY
from schemas.errors import ConfigurationError

RUN_NAME = "tarantool-aggregator"
"""Name of all runs of this module, and of the site in Data Docs."""


def write_data_docs(context: Any, results: Sequence[tuple[Any, Any]], folder: Path, moment: datetime) -> Path:
    """Write the results as Data Docs, and return the path of the first page."""
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    remove_old_pages(folder)
    run = RunIdentifier(run_name=RUN_NAME, run_time=moment)
    for suite, result in results:
        result.meta |= {"run_id": run, "validation_time": run.run_time}
        key = ValidationResultIdentifier(ExpectationSuiteIdentifier(suite.name), run, suite.name)
        context.suites.add(suite)
        context.validation_results_store.store_validation_results(result, key)
    context.add_data_docs_site(
        RUN_NAME,
        {
            "class_name": "SiteBuilder",
            "show_how_to_buttons": False,
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        },
    )
    context.build_data_docs([RUN_NAME])
    return folder / "index.html"


def remove_old_pages(folder: Path) -> None:
    """Remove the pages of earlier runs from the folder of Data Docs."""
    for pages in folder.glob(f"validations/*/{RUN_NAME}"):
        shutil.rmtree(pages)
        (folder / "expectations" / f"{pages.parent.name}.html").unlink(missing_ok=True)


MAX_LOCAL_ROWS = 50_000
"""Maximum number of rows of a check that are collected from Spark; they take some 100 bytes a column."""

_INDEX_META_KEY = "index"
"""Key in an expectation's `meta` whose value is the index of the expectation in the check."""


def import_library() -> threading.Thread:
    """Import Great Expectations, which takes seconds, in a thread, and return the thread.

    Raises:
        ConfigurationError: It is not installed.
    """
    if find_spec("great_expectations") is None:
        raise ConfigurationError(
            "Great Expectations is not installed",
            advice="install the extra: tarantool-aggregator[validation]",
        )
    thread = threading.Thread(target=import_module, args=("great_expectations.expectations",), daemon=True)
    thread.start()
    return thread


class Validator:
    """Runs checks one after another."""

    def __init__(self, moment: datetime | None = None) -> None:
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
        self._local_source = self._context.data_sources.add_pandas(name="warehouse (few rows)")
        self._moment = moment or datetime.now(UTC)
        self._validated_suites: list[Any] = []
        self._used_suite_names: set[str] = set()

    @cached_property
    def _spark_source(self) -> Any:
        # Cached frames would stay in the executors' memory, each of them a whole table.
        return self._context.data_sources.add_spark(name="warehouse", persist=False)

    def run_check(self, check: Check) -> Iterator[CheckResult]:
        """Run a check, and yield the result of each expectation, in order."""
        results = self._validate(check, with_examples=True)
        for expectation, result in zip(check.expectations, results, strict=True):
            yield _check_result(check, expectation, result)

    def run_tables_check(self, check: TablesCheck) -> Iterator[CheckResult]:
        """Run a check of many tables, and yield the result of each expectation in each table."""
        if isinstance(check.rows, pa.Table):
            yield from self._run_by_halves(check, check.tables)
            return
        rows = check.rows.persist()
        try:
            yield from self._run_by_halves(replace(check, rows=rows), check.tables)
        finally:
            rows.unpersist()

    def _run_by_halves(self, check: TablesCheck, tables: Sequence[str]) -> Iterator[CheckResult]:
        """Check tables together; if an expectation fails, check each half of them in the same way."""
        if not tables:
            return
        joint_check = check.check_of(tables)
        if len(tables) == 1:
            yield from self.run_check(joint_check)
            return
        results = self._validate(joint_check, with_examples=False)
        if all(result.success for result in results):
            yield from (
                replace(_check_result(joint_check, expectation, result), table=table)
                for table in tables
                for expectation, result in zip(joint_check.expectations, results, strict=True)
            )
            return
        middle = len(tables) // 2
        yield from self._run_by_halves(check, tables[:middle])
        yield from self._run_by_halves(check, tables[middle:])

    def _validate(self, check: Check, *, with_examples: bool) -> list[Any]:
        from great_expectations import ExpectationSuite

        for index, expectation in enumerate(check.expectations):
            expectation.meta = {**(expectation.meta or {}), _INDEX_META_KEY: index}
        suite = ExpectationSuite(
            name=self._unused_suite_name(check.name), expectations=list(check.expectations)
        )
        local = None if has_user_expectations(check) else collect_few_rows(check.rows)
        source, rows = (self._spark_source, check.rows) if local is None else (self._local_source, local)
        asset = source.add_dataframe_asset(name=suite.name)
        definition = asset.add_batch_definition_whole_dataframe("whole")
        batch = definition.get_batch({"dataframe": rows})
        result = batch.validate(suite, result_format="BOOLEAN_ONLY")
        results = {_expectation_index(one): one for one in result.results}
        if with_examples:
            failed = _failed_expectation_indexes(result.results)
            results |= {
                _expectation_index(one): one for one in self._results_with_examples(batch, check, failed)
            }
        result.results = [results[index] for index in sorted(results)]
        if with_examples or result.success:
            self._validated_suites.append((suite, result))
        return list(result.results)

    def _unused_suite_name(self, name: str) -> str:
        """Return a name for a suite that no other one has: a table may have the aggregator's suite and the user's."""
        names = chain((name,), (f"{name}_{number}" for number in count(2)))
        new = next(candidate for candidate in names if candidate not in self._used_suite_names)
        self._used_suite_names.add(new)
        return new

    def _results_with_examples(self, batch: Any, check: Check, failed: Sequence[int]) -> Sequence[Any]:
        from great_expectations import ExpectationSuite

        if not failed:
            return ()
        suite = ExpectationSuite(
            name=check.name, expectations=[check.expectations[index] for index in failed]
        )
        result_format: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": MAX_EXAMPLES}
        if check.key_columns:
            result_format["unexpected_index_column_names"] = list(check.key_columns)
        results: Sequence[Any] = batch.validate(suite, result_format=result_format).results
        return results

    def write_docs(self, folder: Path) -> Path:
        """Write the results of all checks as Data Docs, and return the path of the first page."""
        return write_data_docs(self._context, self._validated_suites, folder, self._moment)


def has_user_expectations(check: Check) -> bool:
    """Return whether a check has expectations of a user's file."""
    return any(FILE_META_KEY in (expectation.meta or {}) for expectation in check.expectations)


def collect_few_rows(rows: Rows) -> Any:
    """Return rows as a DataFrame of pandas, with null for null; None for more than `MAX_LOCAL_ROWS` rows of Spark."""
    import pandas as pd

    if isinstance(rows, pa.Table):
        table = rows
    else:
        table = rows.limit(MAX_LOCAL_ROWS + 1).toArrow()
        if table.num_rows > MAX_LOCAL_ROWS:
            return None
    # Without these types, numbers with a null would become floating-point numbers.
    types = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=types.get)


def _expectation_index(result: Any) -> int:
    return int(result.expectation_config.meta[_INDEX_META_KEY])


def _failed_expectation_indexes(results: Sequence[Any]) -> list[int]:
    return sorted(_expectation_index(result) for result in results if not result.success)


def _check_result(check: Check, expectation: Any, result: Any) -> CheckResult:
    source = expectation.meta.get(FILE_META_KEY)
    text = expectation.description or _default_description(expectation)
    if result.success:
        return CheckResult(check.name, text, holds=True, failing_row_count=0, source=source)
    error = _error_message(result.exception_info)
    details = dict(result.result or {})
    rows, failing_row_count = details.get("element_count"), details.get("unexpected_count")
    examples = () if error else _failing_row_examples(check, getattr(expectation, "column", None), details)
    return CheckResult(check.name, text, False, rows, failing_row_count, examples, error, source)


def _failing_row_examples(check: Check, column: str | None, details: dict[str, Any]) -> tuple[str, ...]:
    if column is not None and column in check.find_examples:
        return tuple(check.find_examples[column]())
    rows = details.get("partial_unexpected_index_list") or []
    if rows:
        return tuple(_row_text(row, check.key_columns) for row in rows[:MAX_EXAMPLES])
    if "observed_value" in details:
        return (f"found {details['observed_value']}",)
    return tuple(str(value) for value in (details.get("partial_unexpected_list") or [])[:MAX_EXAMPLES])


def _row_text(row: dict[str, Any], keys: Sequence[str]) -> str:
    names = dict.fromkeys([*(key for key in keys if key in row), *row])
    return ", ".join(f"{name.removeprefix('_')} {_value_text(name, row[name])}" for name in names)


def _value_text(name: str, value: Any) -> str:
    """Return the value of a column as text; a primary key, which is MessagePack in hex, is decoded."""
    if isinstance(value, datetime):
        return str(value.replace(tzinfo=None))
    if name not in ("_key", "key") or not isinstance(value, str):
        return str(value)
    try:
        return tuple_text(bytes.fromhex(value))
    except ValueError:
        return value


def _error_message(info: dict[str, Any] | None) -> str | None:
    for entry in (info, *(info or {}).values()):
        if isinstance(entry, dict) and entry.get("exception_message"):
            return " ".join(str(entry["exception_message"]).split())[:300]
    return None


def _default_description(expectation: Any) -> str:
    kwargs = expectation.configuration.kwargs
    arguments = ", ".join(f"{name} {value}" for name, value in kwargs.items() if name != "batch_id")
    return f"{expectation.expectation_type}({arguments})"
