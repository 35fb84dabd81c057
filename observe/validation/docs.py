"""Writes the results of checks as Data Docs: Great Expectations' own pages, for the newest run only.

The pages of an earlier run are removed first, identified by the name of our runs; other files in the folder are left
alone. The pages load their styles from public networks when they are opened; the report's pages do not
(`observe.report`).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

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
