"""The commit of a batch, or of work between two batches: one row in `_epochs`, after all other tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from pipeline.commit.delta import append_rows
from pipeline.state import State
from warehouse.commits import OpenTables
from warehouse.newest_epoch import EPOCHS


def commit_epoch(
    tables: OpenTables,
    state: State,
    versions: Mapping[str, int],
    name: tuple[str, int],
    offsets: tuple[str | None, str | None] = (None, None),
    rows: int = 0,
    instant: str | None = None,
) -> State:
    """Commit what was written, and return the state after it.

    Parameters
    ----------
    tables : OpenTables
    state : State
        After the batch, with the number and the versions of the epoch before.
    versions : mapping of str to int
        Versions of the tables that were written.
    name : (str, int)
        Id of the query and number of the batch.
    offsets : (str or None, str or None)
        Where the batch began and ended in the stream; None where it was no batch of it.
    rows : int
        Rows read.
    instant : str, optional
        The label of the point of a sharded cluster that the tables are at.

    """
    after = replace(state, epoch=state.epoch + 1, versions={**state.versions, **versions})
    writers = {
        table: {"replicasets": sorted(w.replicasets), "unfit": w.unfit} for table, w in after.writers.items()
    }
    row = {
        "epoch": after.epoch,
        "query_id": name[0],
        "batch_id": name[1],
        "committed_at": datetime.now(UTC),
        "rows": rows,
        "start_offset": offsets[0],
        "end_offset": offsets[1],
        "vclock": json.dumps(after.vclocks(), sort_keys=True),
        "versions": list(after.versions.items()),
        "writers": json.dumps(writers, sort_keys=True),
        "settings": after.settings,
        "instant": instant,
    }
    tables.before_epoch()
    append_rows(tables, EPOCHS, [row])
    return after
