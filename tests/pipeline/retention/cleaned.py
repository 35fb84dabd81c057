"""A deployment whose tables are cleaned between its batches, as maintenance does it, at a time of the test's choice."""

from datetime import UTC, datetime, timedelta
from typing import Any

from config.retention import Retention
from pipeline.commit.epoch import commit_epoch
from pipeline.retention.cleaning import Cleaning, clean, clean_epochs, plan_cleaning
from pipeline.retention.progress import source_progress
from tests.pipeline.deployment import Deployment

S = 600
DAY = 86_400.0
ALL = {"default": {"deletes": "all"}}


def planned(deployment: Deployment, days: float = 1000, keep_days: int = 7, **settings: Any) -> Cleaning:
    """Return what goes when it is so many days later."""
    return _cleaning(deployment, days, keep_days, Retention(**settings), is_done=False)


def cleaned(deployment: Deployment, days: float = 1000, keep_days: int = 7, **settings: Any) -> Cleaning:
    """Do it, and return what went."""
    return _cleaning(deployment, days, keep_days, Retention(**settings), is_done=True)


def _cleaning(
    deployment: Deployment, days: float, keep_days: int, retention: Retention, *, is_done: bool
) -> Cleaning:
    with deployment.writer() as (warehouse, writer):
        tables, now = warehouse.open_tables, datetime.now(UTC) + timedelta(days=days)
        sources = source_progress(writer.log_stream, writer.state)
        found = plan_cleaning(tables, writer.state, writer.config, retention, sources, keep_days, now)
        if is_done:
            versions = clean(tables, found, writer.state.epoch + 1)
            if versions:
                writer.state = commit_epoch(tables, writer.state, versions, ("cleaning", writer.state.epoch))
            clean_epochs(tables, found)
    return found


def gone(cleaning: Cleaning) -> dict[str, int]:
    """Return how many rows go of each table."""
    return {
        one.table: one.row_count for one in (*cleaning.removals, cleaning.epochs_removal) if one.row_count
    }
