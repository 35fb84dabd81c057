"""Finds divergences: rows whose content differs from the row settled before under the same instance and lsn.

A member that loses the end of its log and returns writes other rows under lsns that were used. A member that skips a
row because of a conflict writes a NOP in its place. The row that was settled first stays; the divergence is reported in
`_gaps` and in the log. Rows are compared whenever a batch reads them again: after a failover, a backfill, a lost
checkpoint. Timestamps are not compared, since each member sets its own.

An operator can heal a divergence: a snapshot replaces the replicaset's state (`pipeline.requests.healing`). Healed
lsns are not reported again.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.segment_plan import SegmentPlan
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.rows.summary import LOCAL_ID
from schemas.states import GapKind, GapState
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile, read_file

log = logging.getLogger(__name__)

LSN_HASHES = pa.schema([("replica_id", pa.int32()), ("lsn", pa.int64()), ("hash", pa.int64())])
"""The replica id and lsn of rows of a replicaset, and the hash of each row's content (`udfs.keys.row_hash`)."""


@dataclass(frozen=True)
class Divergence:
    """Rows of one file and replica id that differ from the rows settled before under the same lsns.

    `first_lsn` and `last_lsn` are the lowest and the highest lsn of these `row_count` rows.
    """

    replicaset_id: int
    source: str
    file: str
    replica_id: int
    first_lsn: int
    last_lsn: int
    row_count: int


def repeated_lsn_bounds(plan: BatchPlan) -> dict[int, tuple[int, int]]:
    """Return, by replicaset id, the (lowest, highest) lsn of the rows that a batch reads again."""
    found: dict[int, tuple[int, int]] = {}
    for uuid, settlement in plan.settlements.items():
        number = plan.after.replicasets[uuid].id
        for run in plan.summaries[uuid].runs:
            low = settlement.low_watermarks.get((run.start.segment, run.replica_id), -1)
            if run.replica_id != LOCAL_ID and run.first_lsn <= low:
                first, last = found.get(number, (run.first_lsn, low))
                found[number] = (min(first, run.first_lsn), max(last, min(run.last_lsn, low)))
    return found


def differing_lsns(
    read_hashes: pa.Table, settled_hashes: pa.Table, healed_gaps: Iterable[Mapping[str, Any]] = ()
) -> dict[int, NDArray[np.int64]]:
    """Return the lsns of rows that differ from those settled before, by replica id."""
    found = {}
    ids, lsns, hashes = (read_hashes[name].to_numpy() for name in ("replica_id", "lsn", "hash"))
    own_ids, own_lsns, own_hashes = (settled_hashes[name].to_numpy() for name in LSN_HASHES.names)
    for replica_id in np.unique(ids).tolist():
        is_own = own_ids == replica_id
        order = np.argsort(own_lsns[is_own], kind="stable")
        numbers, bodies = own_lsns[is_own][order], own_hashes[is_own][order]
        if not len(numbers):
            continue
        rows = ids == replica_id
        indices = np.minimum(np.searchsorted(numbers, lsns[rows]), len(numbers) - 1)
        differs = (numbers[indices] == lsns[rows]) & (bodies[indices] != hashes[rows])
        for gap in healed_gaps:
            if gap["local_id"] == replica_id:
                differs &= (lsns[rows] < gap["first_lsn"]) | (lsns[rows] > gap["last_lsn"])
        if differs.any():
            found[replica_id] = lsns[rows][differs]
    return found


def divergence_rows(divergences: Iterable[Divergence], epoch: int) -> list[dict[str, Any]]:
    """Return one row of `_gaps` per file and replica id with divergences, and log each as an error."""
    whole: dict[tuple[int, str, str, int], Divergence] = {}
    for one in divergences:
        key = (one.replicaset_id, one.source, one.file, one.replica_id)
        other = whole.get(key, one)
        rows = one.row_count if other is one else one.row_count + other.row_count
        whole[key] = Divergence(
            *key, min(one.first_lsn, other.first_lsn), max(one.last_lsn, other.last_lsn), rows
        )
    return [_report_divergence(one, epoch) for one in whole.values()]


def _report_divergence(divergence: Divergence, epoch: int) -> dict[str, Any]:
    log.error(
        "%s: %d rows of replica id %d, lsn %d to %d, differ from the rows that were settled under these lsns: "
        "heal the replicaset by a snapshot of the member that is right, see aggregator heal",
        *(
            divergence.file,
            divergence.row_count,
            divergence.replica_id,
            divergence.first_lsn,
            divergence.last_lsn,
        ),
    )
    return {
        "epoch": epoch,
        "found_at": datetime.now(UTC),
        "replicaset_id": divergence.replicaset_id,
        "source": divergence.source,
        "local_id": divergence.replica_id,
        "first_lsn": divergence.first_lsn,
        "last_lsn": divergence.last_lsn,
        "kind": GapKind.DIVERGENCE,
        "file": divergence.file,
        "state": GapState.OPEN,
    }


CHANGELOG_TABLE = "_changelog"
_COMPARED_COLUMNS = ["replicaset_id", "replica_id", "lsn", "hash", "file"]


class ChangelogFiles(Protocol):
    """The files of `_changelog` to compare with (`pipeline.work.BatchWork`)."""

    @property
    def location(self) -> WarehouseLocation:
        """The warehouse."""

    @property
    def changelog_files(self) -> Sequence[TableFile]:
        """The files that can have the lsns of rows that are read again."""

    @property
    def healed_gaps(self) -> Sequence[Mapping[str, Any]]:
        """Rows of `_gaps`, each with a range of lsns that a snapshot has healed."""


def find_divergences(read_hashes: pa.Table, plan: SegmentPlan, files: ChangelogFiles) -> list[Divergence]:
    """Return the divergences of a segment, at most one per replica id; rows of a snapshot are not compared.

    `read_hashes` are `LSN_HASHES` of the segment's rows that were read before.
    """
    if not plan.file.endswith(".xlog") or not read_hashes.num_rows:
        return []
    lsns = pc.min_max(read_hashes["lsn"]).as_py()
    known = _settled_hashes(files, plan.replicaset_id, lsns["min"], lsns["max"])
    healed = [row for row in files.healed_gaps if row["replicaset_id"] == plan.replicaset_id]
    return [
        Divergence(
            *(plan.replicaset_id, plan.source, plan.file, replica_id),
            *(int(found.min()), int(found.max()), len(found)),
        )
        for replica_id, found in differing_lsns(read_hashes, known, healed).items()
    ]


def _settled_hashes(files: ChangelogFiles, replicaset_id: int, first_lsn: int, last_lsn: int) -> pa.Table:
    """Return `LSN_HASHES` of a replicaset's rows in `_changelog` that come from logs, in a range of lsns."""
    parts = []
    for file in files.changelog_files:
        rows = read_file(files.location, CHANGELOG_TABLE, file, _COMPARED_COLUMNS)
        mask = pc.and_(pc.equal(rows["replicaset_id"], replicaset_id), pc.ends_with(rows["file"], ".xlog"))
        mask = pc.and_(
            mask, pc.and_(pc.greater_equal(rows["lsn"], first_lsn), pc.less_equal(rows["lsn"], last_lsn))
        )
        parts.append(rows.filter(pc.and_(mask, pc.is_valid(rows["replica_id"]))).select(LSN_HASHES.names))
    return pa.concat_tables(parts).cast(LSN_HASHES) if parts else LSN_HASHES.empty_table()
