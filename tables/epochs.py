"""`_epochs`: one row a batch, appended last: *the* commit of the batch, and a consistent cut over all tables.

Tables are written before it, each in commits of its own. What a killed writer left beyond its last epoch is
taken back when the next writer starts (`take_back`): each table is restored to the version that the epoch
names, so a batch is done as a whole or not at all, whatever it is made of and however it is cut next time.
Readers who want the cut read the versions of the newest row; those who read tables as they are may see a batch
in the making.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable

from schemas.errors import WarehouseError
from tables.cut import EPOCHS as TABLE
from tables.cut import NEVER_TAKEN_BACK, RID
from tables.read import newest, rows_of
from tables.warehouse import Warehouse, in_parallel
from tables.write import MARK

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """One committed batch. The fields are the table's columns; the JSON ones are decoded."""

    epoch: int
    query_id: str
    batch_id: int
    vclock: Mapping[str, Mapping[int, int]]
    versions: Mapping[str, int]
    writers: Mapping[str, Mapping[str, Any]]
    end_offset: str | None


def last(warehouse: Warehouse) -> Epoch | None:
    """Return the newest epoch, None before the first."""
    row = newest(warehouse.opened(TABLE), "epoch")
    if row is None:
        return None
    vclock = {uuid: {int(i): lsn for i, lsn in v.items()} for uuid, v in json.loads(row["vclock"]).items()}
    return Epoch(
        row["epoch"],
        row["query_id"],
        row["batch_id"],
        vclock,
        dict(row["versions"]),
        json.loads(row["writers"]),
        row["end_offset"],
    )


def holds(warehouse: Warehouse, query_id: str, batch_id: int) -> bool:
    """Whether a batch was committed."""
    rows = rows_of(warehouse.opened(TABLE), ("query_id", "batch_id"))
    return {"query_id": query_id, "batch_id": batch_id} in rows


def append(warehouse: Warehouse, row: Mapping[str, Any]) -> None:
    """Commit a batch: `row` holds the table's columns, the JSON ones encoded."""
    warehouse.append_rows(TABLE, [row])


def take_back(warehouse: Warehouse, epoch: Epoch | None) -> list[str]:
    """Undo what an unfinished batch left in the tables; return their names.

    Raises
    ------
    WarehouseError
        Where somebody else committed to a table on top of the unfinished batch.

    """
    versions = {} if epoch is None else epoch.versions
    found = [name for name in warehouse.tables() if name not in NEVER_TAKEN_BACK | {RID}]
    undone = [name for name in in_parallel(lambda t: _take_back(warehouse, t, versions), found) if name]
    if undone:
        log.warning("an unfinished batch was taken back from %s", ", ".join(undone))
    return undone


def _take_back(warehouse: Warehouse, table: str, versions: Mapping[str, int]) -> str | None:
    now = warehouse.version(table)
    known = versions.get(table, 0)
    if now <= known:
        return None
    history = warehouse.delta(table).history(now - known).select("version", "userMetadata").collect()
    foreign = sorted(row.version for row in history if row.version > known and row.userMetadata != MARK)
    if len(foreign) == now - known:
        return None
    if foreign:
        raise WarehouseError(
            f"commit {foreign[0]} is not the aggregator's and stands on an unfinished batch",
            table=table,
            advice=f"restore the table to version {known}, or to a version you trust, and start again",
        )
    DeltaTable.forPath(warehouse.writer, warehouse.path(table)).restoreToVersion(known)
    return table
