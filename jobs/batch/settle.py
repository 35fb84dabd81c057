"""Which rows of a replicaset's log count now, which never will, and which wait.

Pure: a summary and the vclock of what was read before, in; a `Settlement` out. Three rules:

- A row whose lsn was read already (another member's copy of it) is dropped.
- A row beyond a missing lsn waits, with everything behind it (`on_gap: hold`); `skip` records the loss.
- Rows of a synchronous transaction wait for the row that settles them, with everything behind them: while
  transactions wait in Tarantool's limbo, it puts every other one behind them too (`src/box/txn_limbo.c`).
  CONFIRM (lsn): the owner's transactions up to lsn are committed. ROLLBACK (lsn): its transactions whose last
  row has this lsn or a later one are not. PROMOTE, DEMOTE: both at once, up to lsn and beyond it.

Not here: how rows are marked or kept (`jobs.batch.changelog`, `tables.pending`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from jobs.batch.summary import LIMBO_TYPES, LOCAL_ID, ControlRow, Order, Run, Summary, SyncRow
from jobs.batch.transactions import Waiting
from schemas.iproto import BodyKey

Vclock = Mapping[int, int]


@dataclass(frozen=True)
class Gap:
    """Missing lsns `first`..`last` of one origin, found where `order` stands."""

    replica_id: int
    first: int
    last: int
    order: Order


@dataclass(frozen=True)
class RolledBack:
    """Rows of `replica_id` with tsn >= `tsn` that stand before `until` were rolled back."""

    replica_id: int
    tsn: int
    since: Order
    until: Order


@dataclass(frozen=True)
class Settlement:
    """What becomes of one replicaset's rows of a batch.

    Parameters
    ----------
    floors : dict of (int, int) to int
        (segment, replica id) to the highest lsn that is to be dropped as read already.
    hold : Order or None
        Rows from here on wait.
    reason : str or None
        Why they wait.
    rolled_back : tuple of RolledBack
    gaps : tuple of Gap
    bridged : tuple of Gap
        What a generation stands for.
    vclock : dict of int to int
        Highest lsn read of each origin, waiting rows included; component 0 is that of the last segment's instance.
    local_lsns : dict of str to int
        Component 0 of each instance whose log was read.

    """

    floors: Mapping[tuple[int, int], int]
    hold: Order | None = None
    reason: str | None = None
    rolled_back: tuple[RolledBack, ...] = ()
    gaps: tuple[Gap, ...] = ()
    bridged: tuple[Gap, ...] = ()
    vclock: Vclock = field(default_factory=dict)
    local_lsns: Mapping[str, int] = field(default_factory=dict)

    def applies(self, row: ControlRow) -> bool:
        """Whether a row counts now: not read before, not waiting, not rolled back."""
        if self.hold is not None and row.order >= self.hold:
            return False
        if row.replica_id is None:  # a snapshot's
            return True
        origin = row.replica_id
        if row.lsn is not None and row.lsn <= self.floors.get((row.order.segment, origin), -1):
            return False
        return not any(
            r.replica_id == origin
            and row.tsn is not None
            and row.tsn >= r.tsn
            and r.since <= row.order < r.until
            for r in self.rolled_back
        )


IsSync = Callable[[int, Order], bool]
"""Whether a space was synchronous at a place in the log."""


def settle(
    summary: Summary,
    read: Vclock,
    segments: Mapping[int, str | None],
    leader: str | None,
    on_gap: str,
    is_sync: IsSync,
    snapshots: frozenset[int] = frozenset(),
    local_lsns: Mapping[str, int] | None = None,
) -> Settlement:
    """Decide about the rows of one replicaset.

    Parameters
    ----------
    summary : Summary
        Of all its rows, waiting ones first.
    read : mapping of int to int
        Highest lsn of each origin that was read before the first of these rows.
    segments : mapping of int to str or None
        The segments of the summary, in order, with the instance whose log each is.
    leader : str or None
        The instance whose log was read last: component 0 of `read` is its own.
    on_gap : {'hold', 'skip'}
        What to do at a missing lsn.
    is_sync : callable
        Asked where rows carry no flag of their own.
    snapshots : frozenset of int
        Segments that are snapshots: their rows are committed, and numbered from 1 on whatever their origins'
        lsns were (`src/box/memtx_engine.cc`, `checkpoint_write_row`), so they are neither followed nor dropped.
    local_lsns : mapping of str to int, optional
        Component 0 of instances whose logs were read before.

    """
    summary = _without(summary, snapshots)
    logs = {segment: instance for segment, instance in segments.items() if segment not in snapshots}
    local = dict(local_lsns or {})
    floors, gaps, vclock = _follow(summary.runs, dict(read), logs, leader, local)
    limbo_hold, rolled_back = _limbo(summary, floors, is_sync)
    holds: list[tuple[Order, str]] = []
    if gaps and on_gap == "hold":
        first = min(gaps, key=lambda gap: gap.order)
        holds.append(
            (first.order, f"lsn {first.first}..{first.last} of replica id {first.replica_id} is missing")
        )
    if limbo_hold is not None:
        holds.append(
            (limbo_hold.order, f"transaction {limbo_hold.replica_id}:{limbo_hold.tsn} is not confirmed")
        )
    hold, reason = min(holds) if holds else (None, None)
    return Settlement(floors, hold, reason, rolled_back, gaps, (), vclock, local)


def _without(summary: Summary, snapshots: frozenset[int]) -> Summary:
    runs = tuple(run for run in summary.runs if run.start.segment not in snapshots)
    sync = tuple(row for row in summary.sync if row.order.segment not in snapshots)
    return replace(summary, runs=runs, waiting=Waiting(sync))


def _follow(
    runs: Sequence[Run],
    vclock: dict[int, int],
    segments: Mapping[int, str | None],
    leader: str | None,
    local: dict[str, int],
) -> tuple[dict[tuple[int, int], int], tuple[Gap, ...], dict[int, int]]:
    floors: dict[tuple[int, int], int] = {}
    gaps: list[Gap] = []
    by_segment: dict[int, list[Run]] = {segment: [] for segment in segments}
    for run in runs:
        by_segment[run.start.segment].append(run)
    for segment, instance in segments.items():
        if instance != leader:
            vclock.pop(LOCAL_ID, None)
            if instance in local:
                vclock[LOCAL_ID] = local[instance]
            leader = instance
        floors.update({(segment, origin): lsn for origin, lsn in vclock.items()})
        for run in by_segment[segment]:
            known = vclock.get(run.replica_id, 0)
            if run.first > known + 1 and run.replica_id != LOCAL_ID:
                gaps.append(Gap(run.replica_id, known + 1, run.first - 1, run.start))
            vclock[run.replica_id] = max(known, run.last)
        if instance is not None and LOCAL_ID in vclock:
            local[instance] = vclock[LOCAL_ID]
    return floors, tuple(gaps), vclock


@dataclass(frozen=True)
class _Limbo:
    waiting: tuple[SyncRow, ...] = ()
    rolled_back: tuple[RolledBack, ...] = ()


def _limbo(
    summary: Summary, floors: Mapping[tuple[int, int], int], is_sync: IsSync
) -> tuple[SyncRow | None, tuple[RolledBack, ...]]:
    limbo = _Limbo()
    # Another member's copy of a ROLLBACK must not reach what its owner wrote after it.
    settling = [
        row
        for row in summary.control
        if row.type in LIMBO_TYPES
        and (row.lsn is None or row.lsn > floors.get((row.order.segment, row.replica_id or LOCAL_ID), -1))
    ]
    fresh = [
        row
        for row in summary.sync
        if row.lsn > floors.get((row.order.segment, row.replica_id), -1)
        and (row.space_id is None or is_sync(row.space_id, row.order))
    ]
    events: list[tuple[Order, SyncRow | ControlRow]] = [(row.order, row) for row in fresh]
    events += [(row.order, row) for row in settling]
    for _, event in sorted(events, key=lambda pair: pair[0]):
        if isinstance(event, SyncRow):
            limbo = replace(limbo, waiting=(*limbo.waiting, event))
        else:
            limbo = _settled(limbo, event)
    return (limbo.waiting[0] if limbo.waiting else None), limbo.rolled_back


def _settled(limbo: _Limbo, event: ControlRow) -> _Limbo:
    body: Mapping[int, Any] = msgpack.unpackb(event.body, strict_map_key=False) if event.body else {}
    owner = int(body.get(BodyKey.REPLICA_ID, event.replica_id or LOCAL_ID))
    lsn = int(body.get(BodyKey.LSN, 0))
    # ROLLBACK names the first that is gone and says nothing of those in front; the others the last that stays.
    below = lsn - 1 if event.type == "RAFT_ROLLBACK" else lsn
    waiting = limbo.waiting
    if event.type != "RAFT_ROLLBACK":
        waiting = tuple(row for row in waiting if row.replica_id != owner or row.lsn > lsn)
    undone = [row for row in waiting if row.replica_id == owner and row.lsn > below]
    if event.type == "RAFT_CONFIRM" or not undone:
        return replace(limbo, waiting=waiting)
    first = min(undone, key=lambda row: row.tsn)
    gone = RolledBack(owner, first.tsn, first.order, event.order)
    rest = tuple(row for row in waiting if row not in undone)
    return _Limbo(rest, (*limbo.rolled_back, gone))
