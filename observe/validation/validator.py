"""Runs checks with Great Expectations, and returns their results.

First all expectations of a check run at once with counts only, which the library bundles into one aggregation. Only
failed ones run once more, for rows and examples. The results of all checks can be written as Data Docs. The library is
imported on first use, since that takes seconds.

Data Docs show the newest run only: the pages of an earlier run are removed first, identified by the name of our runs;
other files in the folder are left alone. The pages load their styles from public networks when they are opened; the
report's pages do not (`observe.report`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgpack

from observe.validation.check import EXAMPLES, Check, CheckResult, TablesCheck
from observe.validation.user_suites import FILE

RUN = "tarantool-aggregator"
"""Name of our runs, and of the site."""


def write_docs(context: Any, results: Sequence[tuple[Any, Any]], folder: Path, moment: datetime) -> Path:
    """Write the pages, and return the path of the first one.

    Parameters
    ----------
    context : AbstractDataContext
        An ephemeral context; its stores are in memory.
    results : sequence of (ExpectationSuite, ExpectationSuiteValidationResult)
    folder : Path
    moment : datetime
        Time of the run.

    """
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    remove_pages(folder)
    run = RunIdentifier(run_name=RUN, run_time=moment)
    for suite, result in results:
        result.meta |= {"run_id": run, "validation_time": run.run_time}
        key = ValidationResultIdentifier(ExpectationSuiteIdentifier(suite.name), run, suite.name)
        context.suites.add(suite)
        context.validation_results_store.store_validation_results(result, key)
    context.add_data_docs_site(
        RUN,
        {
            "class_name": "SiteBuilder",
            "show_how_to_buttons": False,
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        },
    )
    context.build_data_docs([RUN])
    return folder / "index.html"


def remove_pages(folder: Path) -> None:
    """Remove the pages of our earlier runs."""
    for pages in folder.glob(f"validations/*/{RUN}"):
        shutil.rmtree(pages)
        (folder / "expectations" / f"{pages.parent.name}.html").unlink(missing_ok=True)


_PLACE = "place"
"""Key of an expectation's `meta` for its number in the check."""


class Validator:
    """Runs checks one after another.

    Parameters
    ----------
    moment : datetime, optional
        Time of the run, for Data Docs.

    """

    def __init__(self, moment: datetime | None = None) -> None:
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
        # Cached frames would stay in the executors' memory, each of them a whole table.
        self._source = self._context.data_sources.add_spark(name="warehouse", persist=False)
        self._moment = moment or datetime.now(UTC)
        self._validated_suites: list[Any] = []
        self._names: set[str] = set()

    def verdicts(self, check: Check) -> Iterator[CheckResult]:
        """Yield the result of each expectation of a check, in order."""
        results = self._validated(check, with_examples=True)
        for expectation, result in zip(check.expectations, results, strict=True):
            yield _verdict(check, expectation, result)

    def verdicts_of_tables(self, check: TablesCheck) -> Iterator[CheckResult]:
        """Yield the result of each expectation in each table.

        All tables are checked together; if an expectation fails, each half of them, down to single tables.
        """
        rows = check.rows.persist()
        try:
            yield from self._halved(replace(check, rows=rows), check.tables)
        finally:
            rows.unpersist()

    def _halved(self, check: TablesCheck, tables: Sequence[str]) -> Iterator[CheckResult]:
        if not tables:
            return
        whole = check.of(tables)
        if len(tables) == 1:
            yield from self.verdicts(whole)
            return
        results = self._validated(whole, with_examples=False)
        if all(one.success for one in results):
            yield from (
                replace(_verdict(whole, *one), table=table)
                for table in tables
                for one in zip(whole.expectations, results, strict=True)
            )
            return
        middle = len(tables) // 2
        yield from self._halved(check, tables[:middle])
        yield from self._halved(check, tables[middle:])

    def _validated(self, check: Check, *, with_examples: bool) -> list[Any]:
        """Return the library's result of each expectation."""
        from great_expectations import ExpectationSuite

        for place, one in enumerate(check.expectations):
            one.meta = {**(one.meta or {}), _PLACE: place}
        suite = ExpectationSuite(name=self._new_name(check.name), expectations=list(check.expectations))
        asset = self._source.add_dataframe_asset(name=suite.name)
        whole = asset.add_batch_definition_whole_dataframe("whole")
        batch = whole.get_batch({"dataframe": check.rows})
        result = batch.validate(suite, result_format="BOOLEAN_ONLY")
        results = {_place(one): one for one in result.results}
        if with_examples:
            results |= {
                _place(one): one for one in self._with_examples(batch, check, _failed(result.results))
            }
        result.results = [results[place] for place in sorted(results)]
        if with_examples or result.success:
            self._validated_suites.append((suite, result))
        return list(result.results)

    def _new_name(self, name: str) -> str:
        """Return an unused suite name: a table may have our suite and the user's."""
        names = chain((name,), (f"{name}_{number}" for number in count(2)))
        new = next(one for one in names if one not in self._names)
        self._names.add(new)
        return new

    def _with_examples(self, batch: Any, check: Check, failed: Sequence[int]) -> Sequence[Any]:
        from great_expectations import ExpectationSuite

        if not failed:
            return ()
        suite = ExpectationSuite(name=check.name, expectations=[check.expectations[one] for one in failed])
        whole: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": EXAMPLES}
        if check.keys:
            whole["unexpected_index_column_names"] = list(check.keys)
        found: Sequence[Any] = batch.validate(suite, result_format=whole).results
        return found

    def write_docs(self, folder: Path) -> Path:
        """Write the results of all checks as Data Docs, and return the path of the first page."""
        return write_docs(self._context, self._validated_suites, folder, self._moment)


def _place(result: Any) -> int:
    return int(result.expectation_config.meta[_PLACE])


def _failed(results: Sequence[Any]) -> list[int]:
    return sorted(_place(one) for one in results if not one.success)


def _verdict(check: Check, expectation: Any, result: Any) -> CheckResult:
    source = expectation.meta.get(FILE)
    said = expectation.description or _said(expectation)
    if result.success:
        return CheckResult(check.name, said, holds=True, unexpected=0, source=source)
    error = _error(result.exception_info)
    details = dict(result.result or {})
    rows, unexpected = details.get("element_count"), details.get("unexpected_count")
    examples = () if error else _examples(check, getattr(expectation, "column", None), details)
    return CheckResult(check.name, said, False, rows, unexpected, examples, error, source)


def _examples(check: Check, column: str | None, details: dict[str, Any]) -> tuple[str, ...]:
    if column is not None and column in check.explain:
        return tuple(check.explain[column]())
    rows = details.get("partial_unexpected_index_list") or []
    if rows:
        return tuple(_shown(row, check.keys) for row in rows[:EXAMPLES])
    if "observed_value" in details:
        return (f"found {details['observed_value']}",)
    return tuple(str(value) for value in (details.get("partial_unexpected_list") or [])[:EXAMPLES])


def _shown(row: dict[str, Any], keys: Sequence[str]) -> str:
    names = dict.fromkeys([*(key for key in keys if key in row), *row])
    return ", ".join(f"{name.removeprefix('_')} {_value(name, row[name])}" for name in names)


def _value(name: str, value: Any) -> str:
    if name not in ("_key", "key") or not isinstance(value, str):
        return str(value)
    try:
        return str(
            msgpack.unpackb(bytes.fromhex(value), strict_map_key=False, unicode_errors="surrogateescape")
        )
    except (ValueError, msgpack.UnpackException):
        return value


def _error(info: dict[str, Any] | None) -> str | None:
    """Return the message of an error; the library nests it if only one metric failed."""
    for one in (info, *(info or {}).values()):
        if isinstance(one, dict) and one.get("exception_message"):
            return " ".join(str(one["exception_message"]).split())[:300]
    return None


def _said(expectation: Any) -> str:
    given = expectation.configuration.kwargs
    words = ", ".join(f"{name} {value}" for name, value in given.items() if name != "batch_id")
    return f"{expectation.expectation_type}({words})"
