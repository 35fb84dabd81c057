"""The planning of micro-batches, one after another, with all rows in memory: no file, no table, no Spark.

Everything that decides is the project's own; only where rows lie between two batches is plain Python here, as
`pipeline.changelog.rows` says it in columns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from config.deployment import Config
from config.spaces import Spaces
from pipeline.plan.batch_plan import BatchPlan, plan_batch, sync_spaces
from pipeline.plan.ids.members import map_entries_of_source
from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.plan.rows.summary import LIMBO_TYPES, LOCAL_ID, Summary, concat_summaries, summarize_rows
from pipeline.plan.spaces.meanings import NO_TABLE
from pipeline.plan.spaces.router import Router, build_router
from pipeline.plan.state_after import with_settled_lsns
from pipeline.state import State
from schemas.space import Space
from tests.pipeline.logs import A1, A, Row, batch_of
from udfs.remap.cluster_replace import OWN_REPLICASET_UUID, Cluster, IncomingMember, Member, apply_incoming

Name = tuple[str, int, int]

OWN = "00000000-0000-4000-8000-0000000000ff"
EMPTY = Cluster("counter", {OWN: Member(0, OWN, None, 0, OWN_REPLICASET_UUID)})
"""The aggregator has global id 0, so that ids of the logs begin with 1."""


def everything(_: Space) -> None:
    """Refuse nothing."""


ROUTER = build_router(Spaces(), everything)


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file."""

    rows: pa.RecordBatch
    replicaset: str = A
    instance: str | None = A1
    file: str = "00000000000000000000.xlog"
    is_snapshot: bool = False
    vclock: Mapping[int, int] | None = None
    members: Mapping[int, str] | None = None
    server: str | None = None
    is_generation: bool = False

    def segment(self, number: int) -> LogSegment:
        source = (self.instance or "unknown")[-2:]
        origin = (number, self.replicaset, source, self.file, self.instance, self.is_snapshot)
        return LogSegment(
            *origin, self.vclock or {}, self.server, members=self.members, is_generation=self.is_generation
        )

    def part(self, begin: int, end: int) -> Self:
        return replace(self, rows=self.rows.slice(begin, end - begin))


@dataclass(frozen=True)
class Fate:
    state: str
    global_id: int | None
    table: str | None
    space: Space | None


class Planner:
    """Plans one batch after another; `fates` says what became of each row.

    A row's name is (replicaset, replica id, lsn), of a local space's row (instance, 0, lsn).
    """

    def __init__(self, on_gap: str = "hold", router: Router = ROUTER, cluster: Cluster = EMPTY) -> None:
        self.state = State()
        source = {"name": "x", "path": "x"}
        whole = {"warehouse": "w", "checkpoint": "c", "sources": [source], "on_gap": on_gap}
        self.config = Config.model_validate(whole)
        self.router = router
        self.cluster = cluster
        self.changes: list[list[Member]] = []
        self.waiting: list[Piece] = []
        self.fates: dict[Name, Fate] = {}
        self.snapshot: list[Fate] = []
        self.truncations: Counter[str] = Counter()
        """How often all versions of a replicaset ended, by table."""

    def batch(self, *pieces: Piece) -> BatchPlan:
        uuids = {piece.replicaset for piece in pieces}
        mine = [piece for piece in self.waiting if piece.replicaset in uuids]
        numbered = {i - len(mine): piece for i, piece in enumerate([*mine, *pieces])}
        segments = [piece.segment(number) for number, piece in numbered.items()]
        known = sync_spaces(self.state)
        while True:
            summaries = _summaries(numbered, known)
            plan = plan_batch(self.config, self.state, segments, summaries, self._allocate, self.router)
            found = sync_spaces(self.state, plan.controls)
            if all(found[uuid] <= known.get(uuid, frozenset()) for uuid in found):
                break
            known = found
        self.waiting = [piece for piece in self.waiting if piece.replicaset not in uuids]
        settled: dict[str, dict[tuple[str | None, int], int]] = {uuid: {} for uuid in uuids}
        for number, piece in numbered.items():
            self._deal(plan, number, piece, settled[piece.replicaset])
        after = {
            uuid: with_settled_lsns(plan.after.replicasets[uuid], settled[uuid])
            for uuid in uuids
            if plan.settlements[uuid].waits_from is not None
        }
        self.state = plan.after.with_replicasets(after)
        for one in plan.history.lineages:
            self.truncations.update([one.table] * one.truncations)
        return plan

    def _allocate(self, incoming: Sequence[IncomingMember]) -> Cluster:
        self.cluster, changes = apply_incoming(self.cluster, incoming, OWN)
        if changes:
            self.changes.append([change.row for change in changes])
        return self.cluster

    def _deal(
        self, plan: BatchPlan, number: int, piece: Piece, settled: dict[tuple[str | None, int], int]
    ) -> None:
        settlement = plan.settlements[piece.replicaset]
        held: list[Row] = []
        for row in piece.rows.to_pylist():
            position = LogPosition(number, row["position"], row["row"])
            origin = row["replica_id"] or LOCAL_ID
            low = settlement.low_watermarks.get((number, origin), -1)
            if row["lsn"] is not None and row["lsn"] <= low:
                continue
            if settlement.waits_from is not None and position >= settlement.waits_from:
                held.append(row)
                continue
            source = piece.segment(number).source
            fate = fate_of(plan, piece.replicaset, source, position, row)
            if piece.is_snapshot:
                self.snapshot.append(fate)
                continue
            log = piece.replicaset if origin else str(piece.instance)
            counted = (source if origin else piece.instance, origin)
            settled[counted] = max(settled.get(counted, 0), row["lsn"])
            origin = (
                plan.after.replicasets[piece.replicaset].id_translations.get(source, {}).get(origin, origin)
            )
            name = (log, origin, row["lsn"])
            assert name not in self.fates, f"{name} is settled twice"
            self.fates[name] = fate
        if held:
            self.waiting.append(replace(piece, rows=batch_of(held)))

    def states(self) -> dict[tuple[int, int], str]:
        """Return the rows that are settled, by (replica id, lsn), with their state."""
        return {name[1:]: fate.state for name, fate in self.fates.items()}

    def names_waiting(self) -> list[tuple[int, int]]:
        return [(row["replica_id"], row["lsn"]) for piece in self.waiting for row in piece.rows.to_pylist()]


def fate_of(plan: BatchPlan, uuid: str, source: str, position: LogPosition, row: Mapping[str, Any]) -> Fate:
    one = plan.after.replicasets[uuid]
    origin = one.id_translations.get(source, {}).get(row["replica_id"] or LOCAL_ID, row["replica_id"])
    gone = row["type"] not in LIMBO_TYPES and any(
        r.replica_id == origin and row["tsn"] >= r.first_tsn and r.since <= position < r.until
        for r in plan.settlements[uuid].rolled_back
    )
    maps = map_entries_of_source(one, source)
    since = [e for e in maps if e.local_id == row["replica_id"] and e.since_lsn <= row["lsn"]]
    meanings = plan.history.meanings.get((one.id, row["space_id"]), ())
    known = [meaning.version for meaning in meanings if meaning.since <= position][-1:]
    version = plan.history.versions[known[0]] if known and known[0] != NO_TABLE and not gone else None
    return Fate(
        "rolled back" if gone else "committed",
        since[-1].global_id if since else None,
        None if version is None else version.table,
        None if version is None else version.space,
    )


def _summaries(numbered: Mapping[int, Piece], sync: Mapping[str, frozenset[int]]) -> dict[str, Summary]:
    found: dict[str, list[Summary]] = {}
    for number, piece in numbered.items():
        ids = sync.get(piece.replicaset, frozenset())
        found.setdefault(piece.replicaset, []).append(summarize_rows(piece.rows, number, ids))
    return {uuid: concat_summaries(parts) for uuid, parts in found.items()}
