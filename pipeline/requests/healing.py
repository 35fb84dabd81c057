"""Plans how a member's snapshot replaces a replicaset or some of its spaces, and which rows are applied again after it.

The snapshot becomes a generation of the tables (`pipeline.plan.ids.generation`) although the tables are newer. The rows
of `_changelog` after its vclock are applied again after it, in the same batch and in their first order. So the result
depends neither on the snapshot's age nor on the stream's progress. `_changelog` gets the snapshot's rows, and keeps the
rows that were settled first; divergences before the snapshot become `healed` in `_gaps`. Rows of a diverged instance
are reapplied only if the member's log has them too: the others belong to the end of a log that the member lost, and
`_gaps` keeps them as an open divergence.

`pipeline.requests.snapshots` chooses the snapshot and reads it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.divergence import LSN_HASHES
from pipeline.changelog.replica_ids import lsns_of_ids, replica_ids_in_replicaset
from pipeline.changelog.rows import CHANGELOG_ARROW
from pipeline.plan.healing import Healing
from pipeline.plan.rows.summary import CONTROL_SPACES, has_inapplicable_rows
from pipeline.plan.spaces.system_rows import row_space_id
from pipeline.retention.changelog import check_rows_kept
from pipeline.state import ReplicasetState
from schemas.errors import UnsupportedError
from schemas.iproto import SystemSpace
from schemas.row_types import CHANGE_TYPES
from schemas.states import GapKind, GapState, RowState
from sources.xlog.format.vclock import Vclock, is_at_most
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import in_schema
from warehouse.delta.read import newest_of_each
from warehouse.delta.table_files import read_file
from warehouse.system_tables.gaps import KEY

GapRows = list[Mapping[str, Any]]


ReadLog = Callable[[], pa.Table]
"""Returns the rows of a member's log after its snapshot, as `LSN_HASHES`, in the replicaset's ids."""


def plan_healing(
    tables: OpenTables,
    replicaset: ReplicasetState,
    source: str,
    source_vclock: Vclock,
    read_log: ReadLog,
    spaces: frozenset[int] | None = None,
) -> Healing:
    """Plan how a snapshot of a source replaces a replicaset's state, or some of its spaces.

    Raises:
        UnsupportedError: The snapshot cannot be used, or not yet.
    """
    ids = replicaset.id_translations.get(source, {})
    snapshot_vclock = {ids.get(i, i): lsn for i, lsn in source_vclock.items()}
    where = {"source": source, "replicaset": replicaset.uuid}
    if replicaset.has_waiting_rows:
        raise UnsupportedError("rows of it wait, see _pending: they must be applied first", **where)
    if not is_at_most(snapshot_vclock, replicaset.settled):
        raise UnsupportedError(
            f"the snapshot is at {snapshot_vclock}, the tables are at {dict(replicaset.settled)}",
            **where,
            advice="wait until the stream has reached it, then ask again",
        )
    check_rows_kept(tables, replicaset, snapshot_vclock, source)
    rows = _later_rows(tables, replicaset, snapshot_vclock)
    if _has_control_rows(rows, spaces):
        raise UnsupportedError(
            "spaces, indexes or members were changed since the snapshot, or a space was truncated",
            **where,
            advice="take a new one: box.snapshot()",
        )
    if has_inapplicable_rows(_rows_of_spaces(rows, spaces)):
        raise UnsupportedError(
            "there are rows since the snapshot that cannot be applied",
            **where,
            advice="take a new one: box.snapshot()",
        )
    later = rows.filter(pc.is_in(rows["type"], pa.array(CHANGE_TYPES)))
    healed, still_open = _open_divergences(tables, replicaset, snapshot_vclock)
    lost = _is_lost(later, replicaset, [*healed, *still_open], read_log)
    newly_open = _newly_open_divergences(
        later.filter(pa.array(lost)), replicaset, [*healed, *still_open], still_open
    )
    later = later.filter(pa.array(~lost))
    later = _rows_of_spaces(later, spaces)
    if spaces is not None:
        healed, still_open, newly_open = [], [*still_open, *healed, *newly_open], []
    numbers = later.group_by(["space_id", "type"]).aggregate([([], "count_all")]).to_pylist()
    counts = {(row["space_id"], row["type"]): row["count_all"] for row in numbers}
    return Healing(replicaset.uuid, (later,), counts, healed, still_open, newly_open, spaces)


def _rows_of_spaces(rows: pa.Table, spaces: frozenset[int] | None) -> pa.Table:
    return (
        rows
        if spaces is None
        else rows.filter(pc.is_in(rows["space_id"], pa.array(sorted(spaces), pa.int32())))
    )


def _has_control_rows(rows: pa.Table, spaces: frozenset[int] | None) -> bool:
    """Return whether any row changes `_cluster`, or defines or truncates one of the spaces (any space for None)."""
    control = rows.filter(pc.is_in(rows["space_id"], pa.array([int(s) for s in CONTROL_SPACES], pa.int32())))
    if spaces is None:
        return bool(control.num_rows)
    return any(
        row["space_id"] == SystemSpace.CLUSTER or row_space_id(row["key"], row["tuple"]) in spaces
        for row in control.select(["space_id", "key", "tuple"]).to_pylist()
    )


def _is_lost(
    rows: pa.Table, replicaset: ReplicasetState, divergences: GapRows, read_log: ReadLog
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether its instance has diverged, and the member's log does not have the row."""
    lost = np.zeros(rows.num_rows, np.bool_)
    diverged = {_translated_replica_id(replicaset, row) for row in divergences}
    ids, lsns, hashes = (
        replica_ids_in_replicaset(rows, replicaset),
        rows["lsn"].to_numpy(),
        rows["hash"].to_numpy(),
    )
    origins = {replica_id: ids == replica_id for replica_id in sorted(diverged)}
    if not any(own.any() for own in origins.values()):
        return lost
    known = read_log()
    known_ids, known_lsns, known_hashes = (known[name].to_numpy() for name in LSN_HASHES.names)
    for replica_id, own in origins.items():
        theirs = known_ids == replica_id
        order = np.argsort(known_lsns[theirs], kind="stable")
        numbers, bodies = known_lsns[theirs][order], known_hashes[theirs][order]
        lost[own] = True
        if len(numbers):
            indices = np.minimum(np.searchsorted(numbers, lsns[own]), len(numbers) - 1)
            lost[own] = (numbers[indices] != lsns[own]) | (bodies[indices] != hashes[own])
    return lost


def _newly_open_divergences(
    lost_rows: pa.Table, replicaset: ReplicasetState, divergences: GapRows, still_open: GapRows
) -> GapRows:
    """Return, for each diverged instance with lost rows, a new row of `_gaps` with the range of their lsns."""
    found: GapRows = []
    ids, lsns = replica_ids_in_replicaset(lost_rows, replicaset), lost_rows["lsn"].to_numpy()
    named = {_translated_replica_id(replicaset, row): row for row in divergences}
    for replica_id, row in sorted(named.items()):
        own = lsns[ids == replica_id]
        if not len(own):
            continue
        first, last = int(own.min()), int(own.max())
        is_named = any(
            _translated_replica_id(replicaset, other) == replica_id
            and other["first_lsn"] <= first
            and last <= other["last_lsn"]
            for other in still_open
        )
        if not is_named:
            found.append({**row, "first_lsn": first, "last_lsn": last, "state": GapState.OPEN})
    return found


def _later_rows(tables: OpenTables, replicaset: ReplicasetState, snapshot_vclock: Vclock) -> pa.Table:
    """Return the rows of `_changelog` from a replicaset's logs that come after a snapshot, in log order."""
    parts = []
    for file in tables.files("_changelog"):
        found = read_file(tables.location, "_changelog", file, CHANGELOG_ARROW.names)
        rows = in_schema(found, CHANGELOG_ARROW)
        mask = pc.and_(
            pc.equal(rows["replicaset_id"], replicaset.id), pc.equal(rows["state"], RowState.COMMITTED)
        )
        own = rows.filter(pc.and_(mask, pc.ends_with(rows["file"], ".xlog")))
        parts.append(own.filter(pa.array(_is_later(own, replicaset, snapshot_vclock))))
    whole = pa.concat_tables(parts) if parts else CHANGELOG_ARROW.empty_table()
    order = [(name, "ascending") for name in ("epoch", "segment", "position", "row")]
    return whole.take(pc.sort_indices(whole, sort_keys=order)).combine_chunks()


def _is_later(
    rows: pa.Table, replicaset: ReplicasetState, snapshot_vclock: Vclock
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether it comes after a snapshot: its lsn is above the snapshot's lsn of its replica id.

    One comparison is enough for all instances that had the id, since each continues the lsns of the one before.
    """
    later: np.ndarray[Any, np.dtype[np.bool_]]
    later = rows["lsn"].to_numpy() > lsns_of_ids(replica_ids_in_replicaset(rows, replicaset), snapshot_vclock)
    return later


def _open_divergences(
    tables: OpenTables, replicaset: ReplicasetState, snapshot_vclock: Vclock
) -> tuple[GapRows, GapRows]:
    """Return the open divergences of a replicaset: those up to a snapshot, which heals them, and the others."""
    healed: GapRows = []
    still_open: GapRows = []
    for row in newest_of_each(tables.open("_gaps"), KEY):
        if (
            row["kind"] == GapKind.DIVERGENCE
            and row["state"] == GapState.OPEN
            and row["replicaset_id"] == replicaset.id
        ):
            is_covered = row["last_lsn"] <= snapshot_vclock.get(_translated_replica_id(replicaset, row), 0)
            (healed if is_covered else still_open).append(row)
    return healed, still_open


def _translated_replica_id(replicaset: ReplicasetState, row: Mapping[str, Any]) -> int:
    replica_id = int(row["local_id"])
    return replicaset.id_translations.get(row["source"] or "", {}).get(replica_id, replica_id)
