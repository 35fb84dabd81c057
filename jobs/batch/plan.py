"""What a batch means, decided in the driver from its summary before any row moves.

Pure but for the allocation of ids, which is passed in. Per replicaset: which rows count (`settle`), what its
system rows say (`control`); over all: global ids, applier maps, where spaces go (`layouts`). The result, a
`Plan`, is all that the frames of the later steps are built from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.batch.advance import Step, advanced, announcements, new_entries
from jobs.batch.control import Control, Registration, SpaceChange, SpaceRows
from jobs.batch.generation import followed, generation_of
from jobs.batch.layouts import Refusal, Router, Routes, route_spaces
from jobs.batch.members import Ids, in_own_ids, translated, views_of
from jobs.batch.moves import MOVES, begins_transaction, first_place, moves_of
from jobs.batch.settle import IsSync, Settlement, settle
from jobs.batch.state import Replicaset, State
from jobs.batch.stretch import Stretch
from jobs.batch.summary import FIRST, LOCAL_ID, Order, Run, Summary
from sources.xlog.vclock import joined
from tables.applier_map import Entry
from udfs.cluster_replace import Cluster, Incoming, Member

Allocator = Callable[[Sequence[Incoming]], Cluster]
"""What the batch says of instances → `_cluster` after it (`tables.cluster.allocate`)."""


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
    new_maps : tuple of Entry
        The applier map's new entries.
    own_changes : tuple of Member
        The aggregator's own changes of `_cluster` that are not in `_changelog` yet, by their lsn.

    """

    state: State
    stretches: tuple[Stretch, ...]
    settlements: Mapping[str, Settlement]
    controls: Mapping[str, Control]
    routes: Routes
    summaries: Mapping[str, Summary]
    new_maps: tuple[Entry, ...]
    own_changes: tuple[Member, ...] = ()

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
        Takes what the batch says of instances (`tables.cluster.allocate`).
    router : Router
    on_gap : {'hold', 'skip'}

    """
    own: dict[str, list[Stretch]] = {}
    for stretch in stretches:
        own.setdefault(stretch.replicaset_uuid, []).append(stretch)
    steps = {
        uuid: _decide(state, uuid, parts, summaries[uuid], router, on_gap) for uuid, parts in own.items()
    }
    cluster = allocate(announcements(steps, own))
    after = {uuid: advanced(step, own[uuid], cluster, summaries[uuid]) for uuid, step in steps.items()}
    new_maps = tuple(entry for uuid, step in steps.items() for entry in new_entries(step.before, after[uuid]))
    # A server's own snapshots lack what its vinyl spaces hold.
    snapshots = frozenset(s.segment for s in stretches if s.is_snapshot and not s.is_spool)
    vinyl = {stretch.segment: stretch.vinyl for stretch in stretches}
    routes = _routes(after, steps, router, snapshots, vinyl)
    after = {uuid: _with_refusals(one, routes.refusals) for uuid, one in after.items()}
    own_row = cluster.own
    new_state = replace(
        state.with_replicasets(after),
        global_ids=cluster.global_ids,
        own_id=None if own_row is None else own_row.global_id,
        own_lsn=cluster.lsn,
    )
    return Plan(
        new_state,
        tuple(stretches),
        {uuid: in_own_ids(step.settlement, step.ids) for uuid, step in steps.items()},
        {uuid: step.control for uuid, step in steps.items()},
        routes,
        summaries,
        new_maps,
        tuple(
            sorted(
                (m for m in cluster.members.values() if m.lsn > state.own_lsn), key=lambda member: member.lsn
            )
        ),
    )


def _decide(
    state: State, uuid: str, parts: Sequence[Stretch], summary: Summary, router: Router, on_gap: str
) -> Step:
    first = parts[0]
    known = state.replicasets.get(uuid) or Replicaset(
        0, uuid, settled=dict(first.vclock), read=dict(first.vclock)
    )
    # Waiting rows are part of this batch again, so it starts from what was settled before them.
    instances = {part.segment: part.instance_uuid for part in parts}
    snapshots = frozenset(part.segment for part in parts if part.is_snapshot)
    generation = generation_of(state.replicasets.get(uuid), parts)
    told = followed(known, generation, summary.control, snapshots)
    uuids = {global_id: one for one, global_id in state.global_ids.items()}
    views = views_of(known, parts, told.registrations, uuids)
    ids = {part.segment: views.ids.get(part.source, {}) for part in parts}
    summary = translated(summary, ids)
    known = replace(known, settled={**views.bases, **known.settled})
    if generation is not None:
        known = replace(known, settled=joined(known.settled, generation.settled))
    is_sync = _synchronous(known, told)
    settlement = settle(
        summary, known.settled, instances, known.leader, on_gap, is_sync, snapshots, known.local_lsns
    )
    settlement = replace(settlement, bridged=() if generation is None else generation.bridged)
    while True:
        applying = (row for row in summary.control if settlement.applies(row))
        control = followed(known, generation, applying, snapshots)
        registrations = (*views.announced, *(_meant(one, ids) for one in control.registrations))
        unknown = _unknown_origin(known, registrations, summary, settlement)
        if unknown is not None:
            reason = f"replica id {unknown.replica_id} is in no map: no row of _cluster has announced it"
            settlement = replace(settlement, hold=unknown.start, reason=reason)
            continue
        front = first_place(summary, settlement, snapshots)
        moves = moves_of(
            known.spaces,
            known.refused,
            control,
            lambda space: isinstance(router(known.id, space, False), str),
        )
        later = [order for order in moves if order != front and begins_transaction(summary, order)]
        if not later:
            return Step(known, settlement, control, registrations, views, ids, front)
        settlement = replace(settlement, hold=later[0], reason=MOVES)


def _meant(registration: Registration, ids: Mapping[int, Ids]) -> Registration:
    local_id = registration.local_id
    return replace(registration, local_id=ids.get(registration.order.segment, {}).get(local_id, local_id))


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
    known: Replicaset, registrations: Sequence[Registration], summary: Summary, settlement: Settlement
) -> Run | None:
    mapped = {LOCAL_ID} | {entry.local_id for entry in known.maps} | {r.local_id for r in registrations}
    for run in summary.runs:
        if settlement.hold is not None and run.start >= settlement.hold:
            return None
        floor = settlement.floors.get((run.start.segment, run.replica_id), -1)
        if run.replica_id not in mapped and run.last > floor:
            return run
    return None


def _routes(
    after: Mapping[str, Replicaset],
    steps: Mapping[str, Step],
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
    first = frozenset((after[uuid].id, step.first) for uuid, step in steps.items() if step.first is not None)
    return route_spaces(before, changes, router, refused, snapshots, vinyl, first)


def _with_refusals(replicaset: Replicaset, refusals: Sequence[Refusal]) -> Replicaset:
    own = {r.space_id: r.reason for r in refusals if r.replicaset_id == replicaset.id}
    return replace(replicaset, refused=own)
