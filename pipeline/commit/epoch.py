"""Commits a batch, or work between two batches, by one row in `_epochs`; also appends the driver's rows to tables."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from pipeline.state import State
from pipeline.write.system_rows import append_rows
from warehouse.delta.commits import OpenTables
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.system_tables.epochs import Epoch, RollBack

ROLLED_BACK_QUERY_ID = "rolled back"
"""The query id in `_epochs` of the epoch after a batch that was rolled back."""


def after_roll_back(tables: OpenTables, state: State, last: Epoch | None, rolled_back: RollBack) -> State:
    """Commit an epoch without changes after a batch was rolled back, and return the state after it.

    The epoch's number is one more than that of the batch, which is never used again: so a reader that has rows of the
    batch, such as a stream on `_changelog`, sees that they do not count, since `_epochs` does not have their epoch.
    """
    if not rolled_back.restored:
        return state
    skipped = replace(state, epoch=state.epoch + 1)
    end = None if last is None else last.end_offset
    batch = (ROLLED_BACK_QUERY_ID, skipped.epoch + 1)
    return commit_epoch(tables, skipped, rolled_back.restored, batch, (end, end))


def commit_epoch(
    tables: OpenTables,
    state: State,
    versions: Mapping[str, int],
    batch: tuple[str, int],
    offsets: tuple[str | None, str | None] = (None, None),
    row_count: int = 0,
    instant: str | None = None,
    executor: str | None = None,
) -> State:
    """Commit an epoch, and return the state after it.

    Args:
        state: The state after the batch, but with the number and the table versions of the epoch before.
        instant: The label of the instant that the tables have reached.
    """
    after = replace(state, epoch=state.epoch + 1, versions={**state.versions, **versions})
    writers = {
        table: {"replicasets": sorted(w.replicasets), "unfit": w.has_unfit}
        for table, w in after.writers.items()
    }
    row = {
        "epoch": after.epoch,
        "query_id": batch[0],
        "batch_id": batch[1],
        "committed_at": datetime.now(UTC),
        "rows": row_count,
        "start_offset": offsets[0],
        "end_offset": offsets[1],
        "vclock": json.dumps(after.vclocks(), sort_keys=True),
        "versions": list(after.versions.items()),
        "writers": json.dumps(writers, sort_keys=True),
        "settings": after.settings,
        "instant": instant,
        "executor": executor,
    }
    tables.before_epoch()
    append_rows(tables, EPOCHS, [row])
    return after
