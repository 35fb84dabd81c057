"""Commits a batch, or work between two batches, by one row in `_epochs`; also appends the driver's rows to tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.state import State
from schemas.tables import SYSTEM_TABLES
from warehouse.commits import OpenTables
from warehouse.data_files import write_file
from warehouse.newest_epoch import EPOCHS
from warehouse.write import arrow_rows

LOW_CARDINALITY: Mapping[str, tuple[str, ...]] = {
    "_changelog": ("source", "state", "space", "file", "instance_uuid", "type", "server_version"),
    "_pending": ("source", "reason", "file", "instance_uuid", "type", "server_version", "earlier"),
    "_versions": ("space", "state"),
    "_conflicts": ("space", "kind", "policy", "sequence", "changed", "note"),
    "_quarantine": ("space", "file", "reason"),
}
"""Columns of system tables with few distinct values, which files encode by dictionaries."""


def append_rows(tables: OpenTables, table: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append rows to a system table, and return its version."""
    return append_table(tables, table, arrow_rows(table, rows))


def append_table(tables: OpenTables, table: str, rows: pa.Table) -> int:
    """Append rows to a system table, if there are any, and return its version.

    A table of an earlier release gets the columns that it lacks.
    """
    if not rows.num_rows:
        return tables.version(table)
    tables.add_columns(table, SYSTEM_TABLES[table])
    dictionary = LOW_CARDINALITY.get(table, ())
    return tables.commit(table, [write_file(tables.location, table, rows, dictionary=dictionary)])


def sorted_for_lookups(table: str, rows: pa.Table) -> pa.Table:
    """Return rows of a system table in the order for lookups: `_versions` by space and key, others unchanged."""
    if table != "_versions":
        return rows
    whole = rows.combine_chunks()
    return whole.take(pc.sort_indices(whole, sort_keys=[("space", "ascending"), ("key", "ascending")]))


def commit_epoch(
    tables: OpenTables,
    state: State,
    versions: Mapping[str, int],
    batch: tuple[str, int],
    offsets: tuple[str | None, str | None] = (None, None),
    row_count: int = 0,
    instant: str | None = None,
) -> State:
    """Commit an epoch, and return the state after it.

    Parameters
    ----------
    tables : OpenTables
    state : State
        The state after the batch, but with the number and the table versions of the epoch before.
    versions : mapping of str to int
        Versions of the tables that were written.
    batch : (str, int)
        The values `query_id` and `batch_id` of a `BatchName`.
    offsets : (str or None, str or None)
        As in `BatchName`.
    row_count : int
        The number of rows that the batch read.
    instant : str, optional
        The label of the instant that the tables have reached.

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
    }
    tables.before_epoch()
    append_rows(tables, EPOCHS, [row])
    return after
