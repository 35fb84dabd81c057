"""What a batch means, decided in the driver from its summary before any row moves.

Pure but for the allocation of ids, which is passed in. Per replicaset: which rows count (`settle`), what its
system rows say (`control`); over all: global ids, applier maps, where spaces go (`layouts`). The result, a
`Plan`, is all that the frames of the later steps are built from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.batch.control import Control, Registration, SpaceChange, SpaceRows, follow
from jobs.batch.layouts import Refusal, Router, Routes, route_spaces
from jobs.batch.settle import IsSync, Settlement, settle
from jobs.batch.state import MapEntry, Replicaset, State
from jobs.batch.summary import FIRST, LOCAL_ID, Order, Run, Summary


@dataclass(frozen=True)
class Stretch:
    """One segment as the plan needs it: a file's part, or rows that waited.

    Parameters
    ----------
    vclock : mapping of int to int
        The header's VClock of a file; empty for rows that waited.
    server : str or None
        The version of the server that wrote it.
    vinyl : frozenset of int
        Of a snapshot: ids of the vinyl spaces whose rows are read with it.

    """

    segment: int
    replicaset_uuid: str
    source: str
    file: str
    instance_uuid: str | None
    is_snapshot: bool
    vclock: Mapping[int, int]
    server: str | None = None
    vinyl: frozenset[int] = frozenset()


Allocator = Callable[[Sequence[tuple[str, int | None, str]]], Mapping[str, tuple[int, int]]]
"""(uuid, replica id, replicaset uuid) of what is new → uuid to (global id, replicaset id), of all that is known."""


@dataclass(frozen=True)
class Plan:
    """A batch, decided.

    Parameters
    ----------
    state : State
        After the batch.
    stretches : tuple of Stretch
    settlements : mapping of str to Settlement
        By replicaset uuid.
    controls : mapping of str to Control
    routes : Routes
    summary : mapping of str to Summary
    new_maps : mapping of int to MapEntry sequence
        By replicaset id: the applier map's new entries.

    """

    state: State
    stretches: tuple[Stretch, ...]
    settlements: Mapping[str, Settlement]
    controls: Mapping[str, Control]
    routes: Routes
    summaries: Mapping[str, Summary]
    new_maps: Mapping[int, tuple[MapEntry, ...]]

    @property
    def holds(self) -> bool:
        """Whether rows of this batch wait."""
        return any(settlement.hold is not None for settlement in self.settlements.values())


def plan_batch(
    state: State,
    stretches: Sequence[Stretch],
    summaries: Mapping[str, Summary],
    allocate: Allocator,
    router: Router,
    on_gap: str,
) -> Plan:
    """Decide what a batch means.

    Parameters
    ----------
    state : State
        Before the batch.
    stretches : sequence of Stretch
        In order of their segment; those of rows that waited come first.
    summaries : mapping of str to Summary
        By replicaset uuid.
    allocate : callable
        Gives global ids (`tables.cluster.allocate`).
    router : Router
    on_gap : {'hold', 'skip'}

    """
    own: dict[str, list[Stretch]] = {}
    for stretch in stretches:
        own.setdefault(stretch.replicaset_uuid, []).append(stretch)
    steps = {
        uuid: _decide(state.replicasets.get(uuid), uuid, parts, summaries[uuid], on_gap)
        for uuid, parts in own.items()
    }
    given = allocate(_announcements(steps, own, state))
    after: dict[str, Replicaset] = {}
    new_maps: dict[int, tuple[MapEntry, ...]] = {}
    for uuid, step in steps.items():
        after[uuid] = _advanced(step, own[uuid], given, summaries[uuid])
        known = step.before.maps
        new_maps[after[uuid].id] = tuple(entry for entry in after[uuid].maps if entry not in known)
    snapshots = frozenset(stretch.segment for stretch in stretches if stretch.is_snapshot)
    vinyl = {stretch.segment: stretch.vinyl for stretch in stretches}
    routes = _routes(after, steps, router, snapshots, vinyl)
    after = {uuid: _with_refusals(one, routes.refusals) for uuid, one in after.items()}
    new_state = replace(
        state.with_replicasets(after), global_ids={uuid: ids[0] for uuid, ids in given.items()}
    )
    return Plan(
        new_state,
        tuple(stretches),
        {uuid: step.settlement for uuid, step in steps.items()},
        {uuid: step.control for uuid, step in steps.items()},
        routes,
        summaries,
        new_maps,
    )


@dataclass(frozen=True)
class _Step:
    before: Replicaset
    settlement: Settlement
    control: Control
    is_new: bool


def _decide(
    before: Replicaset | None, uuid: str, parts: Sequence[Stretch], summary: Summary, on_gap: str
) -> _Step:
    first = parts[0]
    known = before or Replicaset(0, uuid, settled=dict(first.vclock), read=dict(first.vclock))
    # Waiting rows are part of this batch again, so it starts from what was settled before them.
    instances = {part.segment: part.instance_uuid for part in parts}
    snapshots = frozenset(part.segment for part in parts if part.is_snapshot)
    told = follow(known.spaces, known.cluster, summary.control, snapshots)
    is_sync = _synchronous(known, told)
    settlement = settle(summary, known.settled, instances, known.leader, on_gap, is_sync, snapshots)
    while True:
        applying = (row for row in summary.control if settlement.applies(row))
        control = follow(known.spaces, known.cluster, applying, snapshots)
        unknown = _unknown_origin(known, control, summary, settlement)
        if unknown is None:
            return _Step(known, settlement, control, before is None)
        reason = f"replica id {unknown.replica_id} is in no map: no row of _cluster has announced it"
        settlement = replace(settlement, hold=unknown.start, reason=reason)


def _synchronous(known: Replicaset, told: Control) -> IsSync:
    """Return whether a space is synchronous at a place: as it was defined last before it."""
    history = {space_id: [(FIRST, rows.decoded().is_sync)] for space_id, rows in known.spaces.items()}
    for change in told.changes:
        history.setdefault(change.space_id, []).append((change.order, change.rows.decoded().is_sync))

    def is_sync(space_id: int, order: Order) -> bool:
        return [False, *(sync for since, sync in history.get(space_id, ()) if since <= order)][-1]

    return is_sync


def sync_spaces(state: State, controls: Mapping[str, Control] | None = None) -> dict[str, frozenset[int]]:
    """Return the spaces of each replicaset that are synchronous, or that a batch makes so."""
    found: dict[str, set[int]] = {}
    for uuid, one in state.replicasets.items():
        found[uuid] = {i for i, rows in one.spaces.items() if rows.decoded().is_sync}
    for uuid, control in (controls or {}).items():
        changed = {c.space_id for c in control.changes if c.rows.decoded().is_sync}
        found[uuid] = found.get(uuid, set()) | changed
    return {uuid: frozenset(ids) for uuid, ids in found.items()}


def _unknown_origin(
    known: Replicaset, control: Control, summary: Summary, settlement: Settlement
) -> Run | None:
    mapped = {entry.local_id for entry in known.maps} | {r.local_id for r in control.registrations}
    for run in summary.runs:
        if settlement.hold is not None and run.start >= settlement.hold:
            return None
        if run.replica_id != LOCAL_ID and run.replica_id not in mapped:
            return run
    return None


def _announcements(
    steps: Mapping[str, _Step], own: Mapping[str, Sequence[Stretch]], state: State
) -> list[tuple[str, int | None, str]]:
    seen = set(state.global_ids)
    fresh: list[tuple[str, int | None, str]] = []
    for uuid in sorted(steps):
        told = [(r.uuid, r.local_id) for r in steps[uuid].control.registrations if r.uuid is not None]
        members: list[tuple[str, int | None]] = [*told]
        members += [(part.instance_uuid, None) for part in own[uuid] if part.instance_uuid is not None]
        for member, local_id in members:
            if member not in seen:
                seen.add(member)
                fresh.append((member, local_id, uuid))
    return fresh


def _advanced(
    step: _Step, parts: Sequence[Stretch], given: Mapping[str, tuple[int, int]], summary: Summary
) -> Replicaset:
    before, settlement = step.before, step.settlement
    cluster = dict(before.cluster)
    maps = list(before.maps)
    for registration in step.control.registrations:
        if registration.uuid is None:
            cluster.pop(registration.local_id, None)
        elif cluster.get(registration.local_id) != registration.uuid:
            cluster[registration.local_id] = registration.uuid
            since = _last_lsn(summary, before, maps, registration) + 1
            maps.append(MapEntry(registration.local_id, given[registration.uuid][0], since))
    identity = before.id
    if step.is_new:
        members = [
            *cluster.values(),
            *(part.instance_uuid for part in parts if part.instance_uuid is not None),
        ]
        identity = given[members[0]][1]
    settled = settlement.vclock if settlement.hold is None else before.settled
    return replace(
        before,
        id=identity,
        settled=settled,
        read=settlement.vclock,
        cluster=cluster,
        maps=tuple(maps),
        spaces=step.control.spaces,
        leader=[part.instance_uuid for part in parts if part.server is not None or part is parts[0]][-1],
    )


def _last_lsn(
    summary: Summary, before: Replicaset, maps: Sequence[MapEntry], registration: Registration
) -> int:
    local_id, order = registration.local_id, registration.order
    own = [run.last for run in summary.runs if run.replica_id == local_id and run.start < order]
    # An instance signs rows before the row that registers it: the first master's own id is 1 from the start.
    if not any(entry.local_id == local_id for entry in maps):
        return before.settled.get(local_id, 0)
    return max([before.settled.get(local_id, 0), *own])


def _routes(
    after: Mapping[str, Replicaset],
    steps: Mapping[str, _Step],
    router: Router,
    snapshots: frozenset[int],
    vinyl: Mapping[int, frozenset[int]],
) -> Routes:
    before: dict[int, Mapping[int, SpaceRows]] = {}
    changes: dict[int, Sequence[SpaceChange]] = {}
    refused: dict[tuple[int, int], str] = {}
    for uuid, step in steps.items():
        before[after[uuid].id] = step.before.spaces
        changes[after[uuid].id] = step.control.changes
        refused.update({(after[uuid].id, i): reason for i, reason in step.before.refused.items()})
    return route_spaces(before, changes, router, refused, snapshots, vinyl)


def _with_refusals(replicaset: Replicaset, refusals: Sequence[Refusal]) -> Replicaset:
    own = {r.space_id: r.reason for r in refusals if r.replicaset_id == replicaset.id}
    return replace(replicaset, refused=own)
