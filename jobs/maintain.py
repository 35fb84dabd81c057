"""Maintain the tables: join small files, and remove files and rows by age.

The holder of the writer lock does the work, as for a backfill, since files must not be replaced while a batch rewrites
them. `pipeline.requests.service` maintains a table, `pipeline.retention` selects rows.
"""

import sys
from functools import partial

from config.deployment import Config
from jobs.backfill import request_and_wait
from jobs.main import main
from jobs.runtime.output import say
from jobs.runtime.session import log_reading_session
from jobs.runtime.steps import log_step
from pipeline.commit.load import load_state
from pipeline.requests.arguments import KEEP_DAYS
from pipeline.retention.cleaning import plan_cleaning
from pipeline.retention.progress import source_progress
from pipeline.source_options import open_log_stream
from schemas.errors import ConfigurationError
from schemas.states import RequestKind, RequestState
from warehouse.warehouse import Warehouse


def maintain(
    config: Config, keep_days: int = KEEP_DAYS, *, purge: bool = False, dry_run: bool = False
) -> int:
    """Request maintenance of the tables, and return the exit code."""
    if keep_days < KEEP_DAYS:
        raise ConfigurationError(
            f"--keep-days {keep_days} would remove files that readers still need",
            advice=f"keep {KEEP_DAYS} days or more",
        )
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.require_tables()
    if dry_run:
        show_removable_rows(warehouse, config, keep_days)
        return 0
    arguments = {
        "keep_days": keep_days,
        "retention": config.retention.model_dump(mode="json"),
        "sources": [source.name for source in config.sources],
        "purge": purge,
    }
    session = partial(log_reading_session, config, "maintain")
    request = request_and_wait(config, warehouse, RequestKind.MAINTENANCE, arguments, session)
    say(f"maintenance: {request.message}")
    return 0 if request.state == RequestState.DONE else 1


def show_removable_rows(warehouse: Warehouse, config: Config, keep_days: int) -> None:
    """Print how many rows would be removed, and why some rows would stay although they are old enough."""
    log_step(f"reading {len(warehouse.tables())} tables, and the newest snapshots of the sources")
    state = load_state(warehouse)
    sources = source_progress(open_log_stream(config, state), state)
    log_step("looking for rows that are older than their retention")
    cleaning = plan_cleaning(warehouse.open_tables, state, config, config.retention, sources, keep_days)
    for count in cleaning.count_texts() or ["nothing"]:
        say(f"{count} would be removed")
    for reason in cleaning.stay_reasons:
        say(reason)


if __name__ == "__main__":
    sys.exit(main("maintain"))
