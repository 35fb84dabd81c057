"""What a batch says of itself: `_schema`, `_gaps`, `_vclock`. Small appends from what the driver knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from jobs.batch.control import SpaceChange
from jobs.batch.load import REFUSED
from jobs.batch.plan import Plan
from jobs.batch.spaces import Written
from jobs.batch.state import Replicaset, State
from jobs.batch.summary import LOCAL_ID
from tables.gaps import FILLED, KEY, MISSING, OPEN
from tables import schema, vclock
from tables.read import newest_of_each
from tables.warehouse import Warehouse
from udfs.cluster_replace import OWN_REPLICASET


def with_written(plan: Plan, written: Written) -> Plan:
    """Return the plan with what writing the tables of spaces found out."""
    replicasets = dict(plan.state.replicasets)
    for number in plan.routes.current.values():
        layout = plan.routes.layouts[number]
        if layout.table in written.refused:
            for uuid, one in replicasets.items():
                if one.id == layout.replicaset_id:
                    reason = written.refused[layout.table]
                    replicasets[uuid] = replace(one, refused={**one.refused, layout.space.id: reason})
    state = replace(plan.state, replicasets=replicasets, writers=written.writers or plan.state.writers)
    return replace(plan, state=state)


def record(
    warehouse: Warehouse, before: State, plan: Plan, epoch: int, reached: Callable[[str], None]
) -> list[str]:
    """Append what changed; return the tables that got a commit."""
    told = []
    versions = _schema_versions(before, plan)
    if versions:
        schema.append(warehouse, versions, epoch)
        told.append("_schema")
        reached("_schema")
    gaps = [*_gaps(plan, epoch), *_filled(warehouse, before, plan, epoch)]
    if gaps:
        warehouse.append_rows("_gaps", gaps)
        told.append("_gaps")
        reached("_gaps")
    moved = _components(before, plan, epoch)
    if moved:
        vclock.append(warehouse, moved)
        told.append("_vclock")
        reached("_vclock")
    return told


def _schema_versions(before: State, plan: Plan) -> list[schema.Version]:
    found = []
    for uuid, control in plan.controls.items():
        now = plan.state.replicasets[uuid]
        old = before.replicasets.get(uuid)
        changes = {change.space_id: change for change in control.changes}
        refused = {i for i in now.refused if old is None or old.refused.get(i) != now.refused[i]}
        for space_id in sorted(set(changes) | refused):
            found.append(_version(plan, now, space_id, changes.get(space_id)))
    return found


def _version(plan: Plan, now: Replicaset, space_id: int, change: SpaceChange | None) -> schema.Version:
    rows = now.spaces.get(space_id) or (change.rows if change is not None else None)
    if rows is None:
        raise KeyError(space_id)
    state = "present" if space_id in now.spaces else "dropped"
    if space_id in now.refused and state == "present":
        state = REFUSED + now.refused[space_id]
    number = plan.routes.current.get((now.id, space_id))
    table = plan.routes.layouts[number].table if number is not None and state == "present" else None
    return schema.Version(
        now.id,
        rows.decoded(),
        table,
        state,
        change.replica_id if change is not None else None,
        change.lsn if change is not None else None,
        rows.space,
        rows.indexes,
    )


def _gaps(plan: Plan, epoch: int) -> list[dict[str, Any]]:
    places = {s.segment: s for s in plan.stretches}
    found = []
    for uuid, settlement in plan.settlements.items():
        for gap in (*settlement.gaps, *settlement.bridged):
            state = "open" if settlement.hold is not None else "skipped"
            stretch = places[gap.order.segment]
            found.append(
                {
                    "epoch": epoch,
                    "found_at": datetime.now(UTC),
                    "replicaset_id": plan.state.replicasets[uuid].id,
                    "source": stretch.source,
                    "local_id": gap.replica_id,
                    "first_lsn": gap.first,
                    "last_lsn": gap.last,
                    "kind": "missing",
                    "file": stretch.file,
                    "state": "bridged" if gap in settlement.bridged else state,
                }
            )
    return found


def _filled(warehouse: Warehouse, before: State, plan: Plan, epoch: int) -> list[dict[str, Any]]:
    """Return the open gaps of replicasets that waited, and of which all rows are settled now."""
    ids = [
        before.replicasets[uuid].id
        for uuid in plan.settlements
        if uuid in before.replicasets
        and before.replicasets[uuid].waits
        and not plan.state.replicasets[uuid].waits
    ]
    if not ids:
        return []
    gaps = newest_of_each(warehouse.opened("_gaps", before.versions.get("_gaps")), KEY)
    now = {"epoch": epoch, "found_at": datetime.now(UTC), "state": FILLED}
    waited = [row for row in gaps if row["kind"] == MISSING and row["replicaset_id"] in ids]
    return [{**row, **now} for row in waited if row["state"] == OPEN]


def _components(before: State, plan: Plan, epoch: int) -> list[vclock.Component]:
    found = []
    for uuid in plan.settlements:
        now = plan.state.replicasets[uuid]
        old = before.replicasets.get(uuid)
        for local_id, lsn in now.settled.items():
            if old is None or _known(old, now, local_id) != lsn:
                found.append(
                    vclock.Component(now.id, _global_id(plan, now, local_id, lsn), local_id, lsn, epoch)
                )
    own = plan.state.own_lsn
    if own != before.own_lsn:
        found.append(vclock.Component(OWN_REPLICASET, plan.state.own_id, None, own, epoch))
    return found


def _known(old: Replicaset, now: Replicaset, local_id: int) -> int | None:
    if local_id == LOCAL_ID:
        return old.local_lsns.get(now.leader or "")
    return old.settled.get(local_id)


def _global_id(plan: Plan, now: Replicaset, local_id: int, lsn: int) -> int | None:
    if local_id == LOCAL_ID:
        return plan.state.global_ids.get(now.leader) if now.leader is not None else None
    ids = [e for e in now.maps if e.local_id == local_id]
    # What was settled before anybody else got the id is still the one's who had it first.
    held = [e.global_id for e in ids if e.since_lsn <= lsn] or [e.global_id for e in ids[:1]]
    return held[-1] if held else None
