"""The driver's part of micro-batches, in the order in which `jobs.batch.run` takes it, with all rows in memory.

Everything that decides is the project's own; only where rows lie between two batches is plain Python here, as
`jobs.batch.changelog` and `jobs.batch.pending` say it in columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from jobs.batch.layouts import Move, Router, Wipe
from jobs.batch.members import entries_of
from jobs.batch.plan import Plan, plan_batch, sync_spaces
from jobs.batch.route import router_of
from jobs.batch.state import Replicaset, State
from jobs.batch.stretch import Stretch
from jobs.batch.summary import LIMBO_TYPES, LOCAL_ID, Order, Summary, join_summaries, summarize
from config.spaces import Spaces
from schemas.space import Space
from tests.jobs.batch.logs import A1, A, Row, batch_of
from udfs.cluster_replace import AGGREGATOR, Cluster, Incoming, Member, replace_all

Name = tuple[str, int, int]

OWN = "00000000-0000-4000-8000-0000000000ff"
EMPTY = Cluster("counter", {OWN: Member(0, OWN, None, 0, AGGREGATOR)})
"""The aggregator has global id 0, so that ids of the logs begin with 1."""


def everything(_: Space) -> None:
    """Refuse nothing."""


ROUTER = router_of(Spaces(), everything)


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file."""

    rows: pa.RecordBatch
    replicaset: str = A
    instance: str | None = A1
    file: str = "00000000000000000000.xlog"
    is_snapshot: bool = False
    vclock: Mapping[int, int] | None = None
    announced: Mapping[int, str] | None = None

    def stretch(self, segment: int) -> Stretch:
        source = (self.instance or "unknown")[-2:]
        place = (segment, self.replicaset, source, self.file, self.instance, self.is_snapshot)
        return Stretch(*place, self.vclock or {}, announced=self.announced)

    def part(self, begin: int, end: int) -> Piece:
        return replace(self, rows=self.rows.slice(begin, end - begin))


@dataclass(frozen=True)
class Fate:
    """What became of one row."""

    state: str
    global_id: int | None
    table: str | None
    space: Space | None


class Driver:
    """Does one batch after another; `fates` says what became of each row.

    A row's name is (replicaset, replica id, lsn), of a local space's row (instance, 0, lsn).
    """

    def __init__(self, on_gap: str = "hold", router: Router = ROUTER, cluster: Cluster = EMPTY) -> None:
        self.state = State()
        self.on_gap = on_gap
        self.router = router
        self.cluster = cluster
        self.changes: list[list[Member]] = []
        self.waiting: list[Piece] = []
        self.fates: dict[Name, Fate] = {}
        self.snapshot: list[Fate] = []
        self.wipes: list[Wipe] = []
        self.moves: list[Move] = []

    def batch(self, *pieces: Piece) -> Plan:
        """Do a batch, and what waits for one of its own behind a space that moves; return the first one's plan."""
        plan = self._batch({piece.replicaset for piece in pieces}, pieces)
        while moving := {uuid for uuid, one in self.state.replicasets.items() if one.moves}:
            self._batch(moving, ())
        return plan

    def _batch(self, uuids: set[str], pieces: Sequence[Piece]) -> Plan:
        mine = [piece for piece in self.waiting if piece.replicaset in uuids]
        numbered = {i - len(mine): piece for i, piece in enumerate([*mine, *pieces])}
        stretches = [piece.stretch(segment) for segment, piece in numbered.items()]
        known = sync_spaces(self.state)
        while True:
            summaries = _summaries(numbered, known)
            plan = plan_batch(self.state, stretches, summaries, self._allocate, self.router, self.on_gap)
            found = sync_spaces(self.state, plan.controls)
            if all(found[uuid] <= known.get(uuid, frozenset()) for uuid in found):
                break
            known = found
        self.waiting = [piece for piece in self.waiting if piece.replicaset not in uuids]
        settled: dict[str, dict[int, int]] = {uuid: {} for uuid in uuids}
        for segment, piece in numbered.items():
            self._deal(plan, segment, piece, settled[piece.replicaset])
        self.wipes += plan.routes.wipes
        self.moves += plan.routes.moves
        after = {
            uuid: _held(plan.state.replicasets[uuid], settled[uuid])
            for uuid in uuids
            if plan.settlements[uuid].hold is not None
        }
        self.state = plan.state.with_replicasets(after)
        return plan

    def _allocate(self, told: Sequence[Incoming]) -> Cluster:
        self.cluster, changes = replace_all(self.cluster, told, OWN)
        if changes:
            self.changes.append([change.row for change in changes])
        return self.cluster

    def _deal(self, plan: Plan, segment: int, piece: Piece, settled: dict[int, int]) -> None:
        settlement = plan.settlements[piece.replicaset]
        held: list[Row] = []
        for row in piece.rows.to_pylist():
            order = Order(segment, row["position"], row["row"])
            origin = row["replica_id"] or LOCAL_ID
            if row["lsn"] is not None and row["lsn"] <= settlement.floors.get((segment, origin), -1):
                continue
            if settlement.hold is not None and order >= settlement.hold:
                held.append(row)
                continue
            source = piece.stretch(segment).source
            fate = fate_of(plan, piece.replicaset, source, order, row)
            if piece.is_snapshot:
                self.snapshot.append(fate)
                continue
            log = piece.replicaset if origin else str(piece.instance)
            origin = plan.state.replicasets[piece.replicaset].ids.get(source, {}).get(origin, origin)
            name = (log, origin, row["lsn"])
            assert name not in self.fates, f"{name} is settled twice"
            self.fates[name] = fate
            settled[origin] = max(settled.get(origin, 0), row["lsn"])
        if held:
            self.waiting.append(replace(piece, rows=batch_of(held)))

    def states(self) -> dict[tuple[int, int], str]:
        """Return the rows that are settled, by (replica id, lsn), with their state."""
        return {name[1:]: fate.state for name, fate in self.fates.items()}

    def names_waiting(self) -> list[tuple[int, int]]:
        return [(row["replica_id"], row["lsn"]) for piece in self.waiting for row in piece.rows.to_pylist()]


def _held(one: Replicaset, dealt: Mapping[int, int]) -> Replicaset:
    """Return a replicaset of which rows wait, with what was settled of the others."""
    settled = {**one.settled}
    for origin, lsn in dealt.items():
        settled[origin] = max(settled.get(origin, 0), lsn)
    local = {one.leader: settled[LOCAL_ID]} if one.leader is not None and LOCAL_ID in settled else {}
    return replace(one, settled=settled, local_lsns={**one.local_lsns, **local})


def fate_of(plan: Plan, uuid: str, source: str, order: Order, row: Mapping[str, Any]) -> Fate:
    ids = plan.state.replicasets[uuid].ids.get(source, {})
    origin = ids.get(row["replica_id"] or LOCAL_ID, row["replica_id"])
    gone = row["type"] not in LIMBO_TYPES and any(
        r.replica_id == origin and row["tsn"] >= r.tsn and r.since <= order < r.until
        for r in plan.settlements[uuid].rolled_back
    )
    one = plan.state.replicasets[uuid]
    maps = entries_of(one, source)
    since = [e for e in maps if e.local_id == row["replica_id"] and e.since_lsn <= row["lsn"]]
    layouts = [
        plan.routes.layouts[route.layout]
        for route in plan.routes.routes
        if (route.replicaset_id, route.space_id) == (one.id, row["space_id"])
        and route.since <= order
        and (route.until is None or order < route.until)
    ]
    assert len(layouts) <= 1, "routes of a space overlap"
    layout = layouts[0] if layouts and not gone else None
    return Fate(
        "rolled back" if gone else "committed",
        since[-1].global_id if since else None,
        None if layout is None else layout.table,
        None if layout is None else layout.space,
    )


def _summaries(numbered: Mapping[int, Piece], sync: Mapping[str, frozenset[int]]) -> dict[str, Summary]:
    found: dict[str, list[Summary]] = {}
    for segment, piece in numbered.items():
        ids = sync.get(piece.replicaset, frozenset())
        found.setdefault(piece.replicaset, []).append(summarize(piece.rows, segment, ids))
    return {uuid: join_summaries(parts) for uuid, parts in found.items()}
