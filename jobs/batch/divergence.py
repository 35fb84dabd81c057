"""Rows that were read before and say something else now: two bodies under one (instance, lsn).

A member that lost its tail and came back writes other rows under numbers that were taken; a conflict that was skipped
is a NOP in one member's log. What was settled first stands; the divergence is named in `_gaps` and in the log. Looked
for wherever a batch brings rows again: a takeover, a backfill, a lost checkpoint. Timestamps are not compared, since
each member stamps its own.
Not here: healing (`jobs.batch.heal`), which the operator asks for; what was healed is not named again.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.batch.changelog import read_before
from jobs.batch.plan import Plan
from jobs.batch.state import State
from jobs.batch.summary import LOCAL_ID
from tables.gaps import DIVERGENCE, HEALED, KEY, OPEN, TABLE
from tables.read import newest_of_each
from tables.warehouse import Warehouse

log = logging.getLogger(__name__)

_NAME = ["replicaset_id", "replica_id", "lsn"]


def repeated(plan: Plan) -> dict[int, tuple[int, int]]:
    """Return the replicasets of which a batch brings rows again, with the least and the greatest of their lsns."""
    found: dict[int, tuple[int, int]] = {}
    for uuid, settlement in plan.settlements.items():
        number = plan.state.replicasets[uuid].id
        for run in plan.summaries[uuid].runs:
            floor = settlement.floors.get((run.start.segment, run.replica_id), -1)
            if run.replica_id != LOCAL_ID and run.first <= floor:
                first, last = found.get(number, (run.first, floor))
                found[number] = (min(first, run.first), max(last, min(run.last, floor)))
    return found


def divergences(
    warehouse: Warehouse, state: State, frame: DataFrame, plan: Plan, epoch: int
) -> list[dict[str, Any]]:
    """Return the rows of `_gaps` that name what diverges; costs nothing where nothing is read again.

    Parameters
    ----------
    state : State
        Before the batch.
    frame : DataFrame
        The batch's rows.

    """
    again = repeated(plan)
    if not again or "_changelog" not in state.versions:
        return []
    first, last = min(lsns[0] for lsns in again.values()), max(lsns[1] for lsns in again.values())
    known = warehouse.read("_changelog", state.versions["_changelog"]).where(
        F.col("replicaset_id").isin(list(again)) & F.col("lsn").between(first, last)
    )
    known = known.where("file LIKE '%.xlog'").select(*_NAME, F.col("hash").alias("said"))
    rows = read_before(frame, plan).where(F.col("file").endswith(".xlog"))
    differ = rows.join(known, _NAME).where(F.col("hash") != F.col("said"))
    for row in _healed(warehouse, state, again):
        own = (F.col("replicaset_id") == row["replicaset_id"]) & (F.col("replica_id") == row["local_id"])
        differ = differ.where(~(own & F.col("lsn").between(row["first_lsn"], row["last_lsn"])))
    told = differ.groupBy("replicaset_id", "source", "replica_id", "file").agg(
        F.min("lsn").alias("first"), F.max("lsn").alias("last"), F.count("lsn").alias("rows")
    )
    return [_named(row, epoch) for row in told.collect()]


def _healed(warehouse: Warehouse, state: State, replicasets: Container[int]) -> list[dict[str, Any]]:
    rows = newest_of_each(warehouse.opened(TABLE, state.versions.get(TABLE)), KEY)
    return [row for row in rows if row["state"] == HEALED and row["replicaset_id"] in replicasets]


def _named(row: Any, epoch: int) -> dict[str, Any]:
    log.error(
        "%s: %d rows of replica id %d, lsn %d to %d, say something else than what was settled under these "
        "numbers: heal it by a snapshot of the member that is right, see jobs/backfill.py --heal",
        *(row.file, row.rows, row.replica_id, row.first, row.last),
    )
    return {
        "epoch": epoch,
        "found_at": datetime.now(UTC),
        "replicaset_id": row.replicaset_id,
        "source": row.source,
        "local_id": row.replica_id,
        "first_lsn": row.first,
        "last_lsn": row.last,
        "kind": DIVERGENCE,
        "file": row.file,
        "state": OPEN,
    }
