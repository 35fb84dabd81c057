"""Chooses the rows of `_changelog` that are older than their retention time and cannot be applied again.

A row stays as long as it may be applied again, or is the only copy:

- rows of the aggregator itself, and rows that define spaces and members: their histories are read from these rows;
- rows of spaces that are refused, or whose rows wait for their definition;
- rows after the newest snapshot that the tables have reached: healing, and reading a space again, apply them;
- rows of a replicaset with an open divergence.

For each instance and replica id, all other rows up to an lsn are removed, and `_retention` gets this lsn. A later
request would need removed rows if its snapshot is older than this lsn; then `check_rows_kept` refuses it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.replica_ids import NO_REPLICA_ID, lsns_of_ids, replica_ids_in_replicaset
from pipeline.plan.rows.summary import CONTROL_SPACES
from pipeline.retention.progress import ReadProgress, SourceProgress
from pipeline.retention.removal import Removal, read_columns, without_nulls
from pipeline.state import ReplicasetState, State
from schemas.errors import UnsupportedError
from schemas.iproto import GROUP_LOCAL
from warehouse.delta.commits import OpenTables
from warehouse.system_tables.maintenance import CHANGELOG, read_last_removed_lsns

_READ_COLUMNS = (
    "epoch",
    "replicaset_id",
    "source",
    "space_id",
    "group_id",
    "global_id",
    "replica_id",
    "lsn",
    "file",
)
_INSTANCE_COLUMNS = ("replicaset_id", "global_id", "local_id")
"""Columns that identify an instance in its replicaset; `local_id` is its replica id."""


def changelog_removal(
    tables: OpenTables, state: State, sources: SourceProgress, progress: ReadProgress, days: int
) -> tuple[Removal, list[str]]:
    """Return the rows of `_changelog` to remove, and texts: why other old rows stay."""
    until = progress.old_epoch(days)
    if until is None:
        return Removal(CHANGELOG), []
    if sources.unreadable:
        names = ", ".join(sorted(sources.unreadable))
        return Removal(CHANGELOG), [f"_changelog stays: {names} cannot be read"]
    replicasets = {one.id: one for one in state.replicasets.values() if one.id not in progress.diverged}
    snapshot_vclocks = {one.id: sources.snapshot_vclocks.get(one.uuid) for one in replicasets.values()}
    files = []
    parts: list[pa.Table] = []
    for file in tables.files_between(CHANGELOG, "epoch", 0, until):
        rows = read_columns(tables, CHANGELOG, file, _READ_COLUMNS)
        gone = without_nulls(
            pc.and_(pc.less_equal(rows["epoch"], until), _is_not_needed(rows, replicasets, snapshot_vclocks))
        )
        if gone.true_count:
            files.append((file, gone))
            parts.append(_last_lsns(rows.filter(gone), replicasets))
    stay_reasons = [
        f"_changelog of replicaset {n} stays: a divergence is open" for n in sorted(progress.diverged)
    ]
    return Removal(CHANGELOG, files, _join_last_lsns(parts)), stay_reasons


def _is_not_needed(
    rows: pa.Table,
    replicasets: Mapping[int, ReplicasetState],
    snapshot_vclocks: Mapping[int, Mapping[int, int] | None],
) -> pa.ChunkedArray:
    """Return for each row whether it can be removed, since no request can apply it again or needs it."""
    control = pa.array([int(space) for space in CONTROL_SPACES], pa.int32())
    found = pc.and_(
        pc.is_in(rows["replicaset_id"], pa.array(sorted(replicasets), pa.int32())),
        pc.invert(pc.is_in(rows["space_id"], control)),
    )
    for number, one in replicasets.items():
        is_own = pc.equal(rows["replicaset_id"], number)
        spaces = pa.array(sorted(one.refused.keys() | one.unknown_spaces), pa.int32())
        found = pc.and_(found, pc.invert(pc.and_(is_own, pc.is_in(rows["space_id"], spaces))))
        snapshot = snapshot_vclocks[number]
        if snapshot is not None:
            is_later = pa.array(_is_later(rows, one, snapshot))
            found = pc.and_(found, pc.invert(pc.and_(is_own, is_later)))
    return found


def _is_later(
    rows: pa.Table, replicaset: ReplicasetState, snapshot_vclock: Mapping[int, int]
) -> NDArray[np.bool_]:
    """Return for each row whether it comes after a snapshot: its lsn is above the snapshot's lsn of its replica id.

    One comparison is enough for all instances that had the id, since each continues the lsns of the one before.
    """
    ids = replica_ids_in_replicaset(rows, replicaset)
    lsns = pc.fill_null(rows["lsn"], 0).to_numpy()
    is_log = pc.ends_with(rows["file"], ".xlog").to_numpy()
    later: NDArray[np.bool_] = is_log & (ids != NO_REPLICA_ID) & (lsns > lsns_of_ids(ids, snapshot_vclock))
    return later


def _last_lsns(rows: pa.Table, replicasets: Mapping[int, ReplicasetState]) -> pa.Table:
    """Return the number of rows, and the last lsn without local changes, by replicaset, instance and replica id."""
    is_shared = pc.fill_null(pc.not_equal(rows["group_id"], GROUP_LOCAL), True)
    counted = pc.and_(pc.ends_with(rows["file"], ".xlog"), is_shared)
    lsns = pc.if_else(counted, rows["lsn"], pa.scalar(None, pa.int64()))
    numbers, ids = rows["replicaset_id"].to_numpy(), np.full(rows.num_rows, NO_REPLICA_ID, np.int64)
    for number in np.unique(numbers).tolist():
        is_own = numbers == number
        ids[is_own] = replica_ids_in_replicaset(rows.filter(pa.array(is_own)), replicasets[number])
    found = rows.select(["replicaset_id", "global_id"])
    found = found.append_column("local_id", pa.array(ids, pa.int32(), mask=ids == NO_REPLICA_ID))
    found = found.append_column("lsn", lsns)
    found = found.append_column("rows", pa.array(np.ones(rows.num_rows, np.int64)))
    return _aggregated_by_instance(found)


def _aggregated_by_instance(rows: pa.Table) -> pa.Table:
    whole = rows.group_by(_INSTANCE_COLUMNS).aggregate([("lsn", "max"), ("rows", "sum")])
    return whole.select([*_INSTANCE_COLUMNS, "lsn_max", "rows_sum"]).rename_columns(
        [*_INSTANCE_COLUMNS, "lsn", "rows"]
    )


def _join_last_lsns(parts: Sequence[pa.Table]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        _aggregated_by_instance(pa.concat_tables(parts)).to_pylist() if parts else []
    )
    return found


def check_rows_kept(
    tables: OpenTables, replicaset: ReplicasetState, snapshot_vclock: Mapping[int, int], source: str
) -> None:
    """Raise UnsupportedError if some of the rows after a snapshot were removed from `_changelog`."""
    last_ids = {entry.global_id: entry.local_id for entry in replicaset.applier_map}
    for (number, global_id, replica_id), lsn in read_last_removed_lsns(tables.location).items():
        known = snapshot_vclock.get(
            last_ids.get(global_id, NO_REPLICA_ID) if replica_id is None else replica_id, 0
        )
        if number == replicaset.id and lsn > known:
            raise UnsupportedError(
                f"rows since the snapshot are not in _changelog any more: it is kept from lsn {lsn + 1} of "
                f"instance {global_id} on",
                source=source,
                replicaset=replicaset.uuid,
                advice="take a new one: box.snapshot(); or keep rows longer: retention.changelog",
            )
