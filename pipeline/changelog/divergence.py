"""Rows that were read before and differ now: two bodies under one (instance, lsn).

A member that lost its tail and came back writes other rows under numbers that were taken; a conflict that was skipped
is a NOP in one member's log. What was settled first stays; the divergence is named in `_gaps` and in the log. Looked
for wherever a batch brings rows again: a failover, a backfill, a lost checkpoint. Timestamps are not compared, since
each member stamps its own.

Pure. Not here: healing (`pipeline.requests.generation`), which the operator asks for; what was healed is not named
again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.plan.plan import BatchPlan
from pipeline.plan.summary import LOCAL_ID
from schemas.states import GapKind, GapState

log = logging.getLogger(__name__)

KNOWN = pa.schema([("replica_id", pa.int32()), ("lsn", pa.int64()), ("hash", pa.int64())])
"""Rows of `_changelog` of one replicaset, from its logs."""


@dataclass(frozen=True)
class Divergence:
    """Rows of one file that differ from what was settled under their numbers."""

    replicaset_id: int
    source: str
    file: str
    replica_id: int
    first: int
    last: int
    rows: int


def repeated_lsns(plan: BatchPlan) -> dict[int, tuple[int, int]]:
    """Return the replicasets whose rows a batch brings again, with the least and the greatest of their lsns."""
    found: dict[int, tuple[int, int]] = {}
    for uuid, settlement in plan.settlements.items():
        number = plan.after.replicasets[uuid].id
        for run in plan.summaries[uuid].runs:
            low = settlement.low_watermarks.get((run.start.segment, run.replica_id), -1)
            if run.replica_id != LOCAL_ID and run.first <= low:
                first, last = found.get(number, (run.first, low))
                found[number] = (min(first, run.first), max(last, min(run.last, low)))
    return found


def differing(
    read: pa.Table, known: pa.Table, healed: Iterable[Mapping[str, Any]] = ()
) -> dict[int, NDArray[np.int64]]:
    """Return the lsns of rows that differ, by replica id.

    Parameters
    ----------
    read : pyarrow.Table
        `pipeline.changelog.rows.READ_BEFORE`, of one source.
    known : pyarrow.Table
        `KNOWN`, of its replicaset.
    healed : iterable of mapping
        Rows of `_gaps`, of its replicaset: ranges that were healed.

    """
    found = {}
    ids, lsns, hashes = (read[name].to_numpy() for name in ("replica_id", "lsn", "hash"))
    own_ids, own_lsns, own_hashes = (known[name].to_numpy() for name in KNOWN.names)
    for replica_id in np.unique(ids).tolist():
        settled = own_ids == replica_id
        order = np.argsort(own_lsns[settled], kind="stable")
        numbers, bodies = own_lsns[settled][order], own_hashes[settled][order]
        if not len(numbers):
            continue
        rows = ids == replica_id
        places = np.minimum(np.searchsorted(numbers, lsns[rows]), len(numbers) - 1)
        differs = (numbers[places] == lsns[rows]) & (bodies[places] != hashes[rows])
        for gap in healed:
            if gap["local_id"] == replica_id:
                differs &= (lsns[rows] < gap["first_lsn"]) | (lsns[rows] > gap["last_lsn"])
        if differs.any():
            found[replica_id] = lsns[rows][differs]
    return found


def divergence_rows(found: Iterable[Divergence], epoch: int) -> list[dict[str, Any]]:
    """Return divergences as rows of `_gaps`, those of one file and origin as one; each is an error in the log."""
    whole: dict[tuple[int, str, str, int], Divergence] = {}
    for one in found:
        key = (one.replicaset_id, one.source, one.file, one.replica_id)
        other = whole.get(key, one)
        rows = one.rows if other is one else one.rows + other.rows
        whole[key] = Divergence(*key, min(one.first, other.first), max(one.last, other.last), rows)
    return [_row(one, epoch) for one in whole.values()]


def _row(one: Divergence, epoch: int) -> dict[str, Any]:
    log.error(
        "%s: %d rows of replica id %d, lsn %d to %d, say something else than what was settled under these "
        "numbers: heal it by a snapshot of the member that is right, see aggregator heal",
        *(one.file, one.rows, one.replica_id, one.first, one.last),
    )
    return {
        "epoch": epoch,
        "found_at": datetime.now(UTC),
        "replicaset_id": one.replicaset_id,
        "source": one.source,
        "local_id": one.replica_id,
        "first_lsn": one.first,
        "last_lsn": one.last,
        "kind": GapKind.DIVERGENCE,
        "file": one.file,
        "state": GapState.OPEN,
    }
