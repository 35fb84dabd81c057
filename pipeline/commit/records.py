"""Makes a batch's rows of `_schema`, `_gaps` and `_vclock`, and those of `_quarantine` for system spaces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pipeline.plan.control import SpaceChange
from pipeline.plan.plan import BatchPlan
from pipeline.plan.summary import LOCAL_ID, ControlRow
from pipeline.state import ReplicasetState, State
from schemas.iproto import SystemSpace
from schemas.states import GapKind, GapState, SpaceState, refused_state
from udfs.remap.cluster_replace import OWN_REPLICASET
from warehouse import schema, vclock


def schema_versions(plan: BatchPlan, after: State) -> list[schema.SpaceVersion]:
    """Return the rows of `_schema` for spaces that a batch changed, moved to another table, or refused."""
    found = []
    for uuid, control in plan.controls.items():
        now, old = after.replicasets[uuid], plan.before.replicasets.get(uuid)
        changes = {change.space_id: change for change in control.changes}
        known = ReplicasetState(0, uuid) if old is None else old
        other = {i for i, reason in now.refused.items() if known.refused.get(i) != reason}
        other |= {i for i, table in now.tables.items() if known.tables.get(i, table) != table}
        for space_id in sorted(set(changes) | other):
            found.append(_version(now, space_id, changes.get(space_id)))
    return found


def _version(now: ReplicasetState, space_id: int, change: SpaceChange | None) -> schema.SpaceVersion:
    rows = now.spaces.get(space_id) or (change.rows if change is not None else None)
    if rows is None:
        raise KeyError(space_id)
    state: str = SpaceState.PRESENT if space_id in now.spaces else SpaceState.DROPPED
    if space_id in now.refused and state == SpaceState.PRESENT:
        state = refused_state(now.refused[space_id])
    return schema.SpaceVersion(
        now.id,
        rows.decoded(),
        now.tables.get(space_id),
        state,
        change.replica_id if change is not None else None,
        change.lsn if change is not None else None,
        rows.space,
        rows.indexes,
        now.primary_keys.get(space_id, frozenset()),
        now.followed.get(space_id),
    )


def malformed_rows(plan: BatchPlan) -> list[dict[str, Any]]:
    """Return rows of `_quarantine` for malformed rows of system spaces."""
    segments = {segment.segment: segment for segment in plan.segments}
    return [
        {
            "epoch": plan.epoch,
            "replicaset_id": plan.after.replicasets[uuid].id,
            "space": f"_{SystemSpace(fault.row.space_id or 0).name.lower()}",
            "key": fault.row.key,
            "tuple": fault.row.tuple,
            "operations": fault.row.operations,
            "global_id": _origin(plan, uuid, fault.row),
            "lsn": fault.row.lsn,
            "file": segments[fault.row.position.segment].file,
            "position": fault.row.position.position,
            "reason": fault.reason,
        }
        for uuid, control in plan.controls.items()
        for fault in control.faults
    ]


def _origin(plan: BatchPlan, uuid: str, row: ControlRow) -> int | None:
    if row.replica_id is None or row.lsn is None:
        return None
    return _global_id(plan.after.replicasets[uuid], row.replica_id, row.lsn)


def gap_rows(plan: BatchPlan) -> list[dict[str, Any]]:
    """Return rows of `_gaps` for missing lsns in the batch."""
    segments = {segment.segment: segment for segment in plan.segments}
    found = []
    for uuid, settlement in plan.settlements.items():
        for gap in (*settlement.gaps, *settlement.bridged):
            state = GapState.SKIPPED if gap in settlement.skipped else GapState.OPEN
            segment = segments[gap.position.segment]
            found.append(
                {
                    "epoch": plan.epoch,
                    "found_at": datetime.now(UTC),
                    "replicaset_id": plan.after.replicasets[uuid].id,
                    "source": segment.source,
                    "local_id": gap.replica_id,
                    "first_lsn": gap.first,
                    "last_lsn": gap.last,
                    "kind": GapKind.MISSING,
                    "file": segment.file,
                    "state": GapState.BRIDGED if gap in settlement.bridged else state,
                }
            )
    return found


def released_replicasets(plan: BatchPlan, after: State) -> frozenset[int]:
    """Return the ids of replicasets with waiting rows before the batch, and without any after it."""
    before = plan.before.replicasets
    return frozenset(
        before[uuid].id
        for uuid in plan.settlements
        if uuid in before and before[uuid].has_waiting_rows and not after.replicasets[uuid].has_waiting_rows
    )


def filled_rows(gaps: Iterable[Mapping[str, Any]], ids: frozenset[int], epoch: int) -> list[dict[str, Any]]:
    """Return rows of `_gaps` with the state `filled` for open gaps of replicasets.

    Parameters
    ----------
    gaps : iterable of mapping
        The newest row of each gap.
    ids : frozenset of int
        The replicasets, whose rows do not wait any more.
    epoch : int

    """
    now = {"epoch": epoch, "found_at": datetime.now(UTC), "state": GapState.FILLED}
    own = [row for row in gaps if row["kind"] == GapKind.MISSING and row["replicaset_id"] in ids]
    return [{**row, **now} for row in own if row["state"] == GapState.OPEN]


def vclock_components(plan: BatchPlan, after: State) -> list[vclock.Component]:
    """Return the components of vclocks that have changed."""
    before, found = plan.before, []
    for uuid in plan.settlements:
        now, old = after.replicasets[uuid], before.replicasets.get(uuid)
        known = ReplicasetState(0, uuid) if old is None else old
        for local_id, lsn in now.settled.items():
            counts_apart = local_id == LOCAL_ID and now.leader is not None
            if not counts_apart and known.settled.get(local_id) != lsn:
                global_id = _global_id(now, local_id, lsn)
                found.append(vclock.Component(now.id, global_id, local_id, lsn, plan.epoch))
        for instance, lsn in now.local_lsns.items():
            if known.local_lsns.get(instance) != lsn:
                global_id = after.global_ids.get(instance)
                found.append(vclock.Component(now.id, global_id, LOCAL_ID, lsn, plan.epoch))
    if after.own_lsn != before.own_lsn:
        found.append(vclock.Component(OWN_REPLICASET, after.own_id, None, after.own_lsn, plan.epoch))
    return found


def _global_id(now: ReplicasetState, local_id: int, lsn: int) -> int | None:
    ids = [e for e in now.applier_map if e.local_id == local_id]
    # Lsns before the first entry of the applier map belong to its instance, too.
    found = [e.global_id for e in ids if e.since_lsn <= lsn] or [e.global_id for e in ids[:1]]
    return found[-1] if found else None
