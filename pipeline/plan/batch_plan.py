"""Plans a batch from the summaries of its rows.

Pure, except for the allocation of ids, which is passed in as a function. For each replicaset: which rows take effect
(`ids.settle`), and what its system rows change (`spaces.system_rows`). For all together: global ids, applier maps, the
meaning of space ids (`spaces.meanings`), the tables (`spaces.tables`). The later stages need only the resulting
`BatchPlan` and the rows.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from config.deployment import Config
from pipeline.plan.ids.generation import SnapshotGeneration, apply_generation
from pipeline.plan.ids.members import IdTranslation, translate_vclock
from pipeline.plan.ids.settle import IsSync, Settlement, settle
from pipeline.plan.ids.upgrades import log_upgrade
from pipeline.plan.ids.view import ReplicasetView
from pipeline.plan.rows.position import BEGINNING, LogPosition, LogSegment
from pipeline.plan.rows.summary import LOCAL_ID, ControlRow, LsnRun, Summary
from pipeline.plan.settings import settings_json
from pipeline.plan.spaces.meanings import History
from pipeline.plan.spaces.meanings_builder import SpacesBefore, build_history
from pipeline.plan.spaces.router import Router
from pipeline.plan.spaces.system_rows import ControlChanges, ReplicaIdChange
from pipeline.plan.spaces.tables import TablePlan, plan_tables, table_owners
from pipeline.plan.spaces.undefined import UnknownRanges, unknown_ranges
from pipeline.plan.spaces.vshard import (
    MOVE_WAIT,
    BucketProgress,
    Departure,
    ReplicasetBuckets,
    apply_bucket_rows,
    bucket_space_ids,
    first_awaited_departure,
    has_arrived,
    latest_time,
    with_doubled_buckets,
)
from pipeline.plan.state_after import (
    ReplicasetDecision,
    instances_seen,
    new_map_rows,
    state_after_batch,
    with_history,
    with_refused_spaces,
)
from pipeline.state import ReplicasetState, State
from schemas.iproto import SYSTEM_SPACE_ID_MAX, is_unknown_type
from schemas.names import replicaset_label
from schemas.row_types import CHANGE_TYPES
from schemas.states import SpaceEvent
from udfs.operations.update_rules import release_of
from udfs.remap.cluster_replace import Cluster, IncomingMember, Member
from udfs.versions.key_state import TUPLE_LIMIT_BYTES
from warehouse.system_tables.applier_map import MapRow

log = logging.getLogger(__name__)

Allocator = Callable[[Sequence[IncomingMember]], Cluster]
"""Called with the instances that a batch names; returns `_cluster` after it
(`warehouse.system_tables.cluster.allocate`)."""

FIRST_RELEASE_WITH_SYNC_FLAGS = (2, 8, 1)
"""The first Tarantool release that writes a flag with each row of a synchronous transaction."""


@dataclass(frozen=True)
class BatchPlan:
    """The plan of a batch. Mappings whose keys are not described are by replicaset uuid."""

    epoch: int
    before: State
    after: State
    """The states before and after the batch; `after` lacks what is found only while rows are written."""
    segments: tuple[LogSegment, ...]
    """By ascending number."""
    settlements: Mapping[str, Settlement]
    """Which rows take effect, in the replica ids of each segment's source."""
    controls: Mapping[str, ControlChanges]
    """What the rows of system spaces change."""
    summaries: Mapping[str, Summary]
    history: History
    tables: Mapping[str, TablePlan]
    """By name, the tables that the batch may change."""
    refused_tables: Mapping[str, str]
    """For each table that cannot be written any more, the reason."""
    new_map_rows: tuple[MapRow, ...]
    cluster_changes: tuple[Member, ...] = ()
    """The aggregator's changes of its `_cluster` that are not in `_changelog` yet, by lsn."""
    undefined_ranges: Mapping[str, UnknownRanges] = field(default_factory=dict)
    """For each replicaset, by space id: the ranges of its log in which the space has no definition."""
    vshard_buckets: Mapping[str, ReplicasetBuckets] = field(default_factory=dict)
    tuple_limit_bytes: int = TUPLE_LIMIT_BYTES

    @property
    def row_count(self) -> int:
        """The number of rows that the batch reads."""
        return sum(summary.row_count for summary in self.summaries.values())

    @property
    def snapshots(self) -> frozenset[int]:
        """The numbers of the segments that are snapshots."""
        return frozenset(segment.number for segment in self.segments if segment.is_snapshot)

    def previously_unknown_spaces(self, outcomes: Sequence[str]) -> set[tuple[str, int]]:
        """Return the spaces without a definition before the batch, as (replicaset uuid, space id).

        Only those are returned whose first `UnknownRange.outcome` is one of `outcomes`.
        """
        return {
            (uuid, space_id)
            for uuid, spaces in self.undefined_ranges.items()
            for space_id, ranges in spaces.items()
            if ranges[0].begin == BEGINNING and ranges[0].outcome in outcomes
        }


def plan_batch(
    config: Config,
    state: State,
    segments: Sequence[LogSegment],
    summaries: Mapping[str, Summary],
    allocate: Allocator,
    router: Router,
    read_to_end_at: datetime | None = None,
) -> BatchPlan:
    """Plan a batch.

    Args:
        state: Before the batch.
        segments: By ascending number.
        summaries: By replicaset uuid.
        allocate: Assigns global ids to the instances that the batch names (`warehouse.system_tables.cluster.allocate`).
    """
    parts: dict[str, list[LogSegment]] = {}
    for segment in segments:
        parts.setdefault(segment.replicaset_uuid, []).append(segment)
    decided = _decide_replicasets(state, parts, summaries, config.on_gap, read_to_end_at)
    snapshots = frozenset(segment.number for segment in segments if segment.is_snapshot)
    cluster = allocate(instances_seen(decided, parts))
    after = {u: state_after_batch(one, parts[u], cluster, summaries[u]) for u, one in decided.items()}
    new_maps = tuple(
        row
        for uuid, one in decided.items()
        for row in new_map_rows(one.before, after[uuid], cluster, state.epoch + 1)
    )
    unknown = {
        uuid: unknown_ranges(one.before.spaces, one.control, _used_spaces(one, summaries[uuid]), snapshots)
        for uuid, one in decided.items()
    }
    after = {
        uuid: replace(one, unknown_spaces=one.unknown_spaces & _still_undefined_spaces(unknown[uuid]))
        for uuid, one in after.items()
    }
    history = _space_history(config, state, after, decided, summaries, segments, router, unknown)
    _log_refusals(history, after, decided)
    _log_unknown_types(summaries, after)
    for uuid, one in decided.items():
        log_upgrade(_label(after[uuid]), one.before.server_version, parts[uuid], summaries[uuid].control)
    histories = history.by_replicaset(one.id for one in after.values())
    after = {u: with_history(one, decided[u].before, histories[one.id]) for u, one in after.items()}
    aggregator = cluster.own_member
    buckets = {uuid: one.vshard_buckets for uuid, one in decided.items()}
    to_judge = state.undecided_buckets.union(e.bucket_id for one in buckets.values() for e in one.events)
    new_state = replace(
        with_doubled_buckets(state.with_replicasets(after), to_judge),
        global_ids=cluster.global_ids,
        aggregator_id=None if aggregator is None else aggregator.global_id,
        aggregator_lsn=cluster.lsn,
        settings=settings_json(config),
    )
    by_number = {after[uuid].id: summaries[uuid] for uuid in parts}
    tables, refused = plan_tables(config, state, new_state, history, by_number)
    return BatchPlan(
        epoch=state.epoch + 1,
        before=state,
        after=with_refused_spaces(state, new_state, history, refused),
        segments=tuple(segments),
        settlements={uuid: one.settlement_in_source_ids() for uuid, one in decided.items()},
        controls={uuid: one.control for uuid, one in decided.items()},
        summaries=summaries,
        history=history,
        tables=tables,
        refused_tables=refused,
        new_map_rows=new_maps,
        cluster_changes=_new_cluster_changes(cluster, state.aggregator_lsn),
        undefined_ranges=unknown,
        vshard_buckets=buckets,
        tuple_limit_bytes=config.max_tuple_bytes,
    )


def _used_spaces(decision: ReplicasetDecision, summary: Summary) -> frozenset[int]:
    return decision.before.unknown_spaces | {
        space_id for _, space_id, kind in summary.row_counts if kind in CHANGE_TYPES
    }


def _still_undefined_spaces(undefined_ranges: UnknownRanges) -> frozenset[int]:
    return frozenset(i for i, ranges in undefined_ranges.items() if ranges[0].outcome == "waiting")


def _new_cluster_changes(cluster: Cluster, last_lsn: int) -> tuple[Member, ...]:
    changed = (member for member in cluster.members.values() if member.lsn > last_lsn)
    return tuple(sorted(changed, key=lambda member: member.lsn))


def _decide_replicasets(
    state: State,
    segments: Mapping[str, Sequence[LogSegment]],
    summaries: Mapping[str, Summary],
    on_gap: str,
    read_to_end_at: datetime | None,
) -> dict[str, ReplicasetDecision]:
    decided = {
        uuid: _decide_replicaset(state, uuid, own, summaries[uuid], on_gap) for uuid, own in segments.items()
    }
    while senders := [uuid for uuid, one in decided.items() if one.vshard_buckets.departures]:
        read = {
            u: BucketProgress(one.buckets, _later_of(one.last_log_time, read_to_end_at))
            for u, one in state.replicasets.items()
        }
        for uuid, one in decided.items():
            waits = one.settlement.waits_from is not None
            until = latest_time(one.before.last_log_time, None if waits else summaries[uuid].last_time_us)
            read[uuid] = BucketProgress(
                one.vshard_buckets.after, until if waits else _later_of(until, read_to_end_at)
            )
        delayed = {}
        for uuid in senders:
            one, others = decided[uuid], {other: read[other] for other in read if other != uuid}
            end = latest_time(one.before.last_log_time, summaries[uuid].last_time_us)
            end = _later_of(end, read_to_end_at)
            awaited = first_awaited_departure(one.vshard_buckets.departures, end, others)
            if awaited is not None:
                delayed[uuid] = _decide_replicaset(
                    state, uuid, segments[uuid], summaries[uuid], on_gap, awaited
                )
        if not delayed:
            _log_late_destinations({uuid: decided[uuid] for uuid in senders}, read)
            break
        # Waiting rows do not count as read, so further replicasets may have to wait for these.
        decided |= delayed
    return decided


def _later_of(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((moment for moment in (one, other) if moment is not None), default=None)


def _log_late_destinations(
    senders: Mapping[str, ReplicasetDecision], progress: Mapping[str, BucketProgress]
) -> None:
    """Warn of each bucket that was sent away, if its destination's log is too late for the source to wait."""
    for uuid, one in senders.items():
        others = {other: progress[other] for other in progress if other != uuid}
        for departure in one.vshard_buckets.departures:
            if not has_arrived(departure, others):
                log.warning(
                    "replicaset %s sent bucket %d of vshard to %s, whose log is read more than %d seconds behind: "
                    "keys of the bucket are missing until it catches up",
                    *(_label(one.before), departure.bucket_id, departure.destination),
                    MOVE_WAIT.total_seconds(),
                )


def _decide_replicaset(
    state: State,
    uuid: str,
    segments: Sequence[LogSegment],
    summary: Summary,
    on_gap: str,
    awaited: Departure | None = None,
) -> ReplicasetDecision:
    """Decide which rows of one replicaset take effect; rows from `awaited` on wait."""
    view = ReplicasetView.of(uuid, state.replicasets.get(uuid), segments, summary, state.instance_uuids)
    known, generation, snapshots, ids = view.known, view.generation, view.snapshots, view.ids
    summary = view.summary
    instances = {part.number: part.instance_uuid for part in segments}
    is_sync = _sync_check(known, view.control, segments)
    earlier = {part.number: translate_vclock(part.vclock_before, ids[part.number]) for part in segments}
    settlement = settle(
        *(summary, known.settled, instances, known.leader, on_gap, is_sync),
        *(snapshots, known.local_lsns, earlier),
    )
    settlement = replace(settlement, bridged_gaps=() if generation is None else generation.bridged_gaps)
    if awaited is not None:
        # A departure takes effect only if no earlier row waits, so this position is the first one.
        reason = f"bucket {awaited.bucket_id} of vshard went to {awaited.destination}, whose log is not read as far"
        settlement = replace(settlement, waits_from=awaited.position, wait_reason=reason)
    while True:
        counting = (row for row in summary.control if settlement.takes_effect(row))
        control = apply_generation(known, generation, counting, snapshots)
        fault = next((one for one in control.faults if one.is_of_unknown_type), None)
        if fault is not None:
            row = fault.row
            reason = f"a row of type {row.type} in the system space {row.space_id}: {fault.reason}"
            settlement = replace(settlement, waits_from=row.position, wait_reason=reason)
            continue
        new = (_translate_registration(one, ids) for one in control.registrations)
        registrations = tuple(sorted((*view.source_ids.registrations, *new), key=lambda one: one.position))
        unknown = _first_unmapped_run(known, registrations, summary, settlement)
        if unknown is None:
            break
        reason = f"replica id {unknown.replica_id} is in no map: no row of _cluster has announced it"
        settlement = replace(settlement, waits_from=unknown.start, wait_reason=reason)
    position = None if generation is None else generation.position
    counting = (row for row in summary.control if settlement.takes_effect(row))
    shards = _bucket_changes(known, generation, segments, control, list(counting))
    return ReplicasetDecision(
        known, settlement, control, registrations, view.source_ids, ids, position, shards
    )


def _bucket_changes(
    known: ReplicasetState,
    generation: SnapshotGeneration | None,
    segments: Sequence[LogSegment],
    control: ControlChanges,
    rows: Sequence[ControlRow],
) -> ReplicasetBuckets:
    """Return vshard's buckets before and after a batch; snapshots for healing or of some spaces change none."""
    heals = any(part.is_healing for part in segments)
    is_new_state = generation is not None and generation.replaced_spaces is None and not heals
    if generation is not None and not is_new_state:
        rows = [row for row in rows if row.position.segment != generation.segment]
    return apply_bucket_rows(known.buckets, known.spaces, control, rows, is_new_state=is_new_state)


def _translate_registration(
    registration: ReplicaIdChange, ids: Mapping[int, IdTranslation]
) -> ReplicaIdChange:
    replica_id = registration.replica_id
    return replace(
        registration, replica_id=ids.get(registration.position.segment, {}).get(replica_id, replica_id)
    )


def _sync_check(known: ReplicasetState, control: ControlChanges, segments: Sequence[LogSegment]) -> IsSync:
    """Return a function that decides by a space's definition whether its rows are synchronous at a position."""
    history = {space_id: [(BEGINNING, rows.decoded().is_sync)] for space_id, rows in known.spaces.items()}
    for change in control.changes:
        waits = change.kind is not SpaceEvent.DROPPED and change.definition.decoded().is_sync
        history.setdefault(change.space_id, []).append((change.position, waits))
    flagged = {
        part.number
        for part in segments
        if part.server_version is not None
        and release_of(part.server_version) >= FIRST_RELEASE_WITH_SYNC_FLAGS
    }

    def is_sync(space_id: int, position: LogPosition) -> bool:
        if position.segment in flagged:
            return False
        return [False, *(sync for since, sync in history.get(space_id, ()) if since <= position)][-1]

    return is_sync


def sync_spaces(
    state: State, controls: Mapping[str, ControlChanges] | None = None
) -> dict[str, frozenset[int]]:
    """Return the ids of synchronous spaces, by replicaset uuid; `controls` adds those that a batch makes so."""
    found: dict[str, set[int]] = {}
    for uuid, one in state.replicasets.items():
        found[uuid] = {i for i, rows in one.spaces.items() if rows.decoded().is_sync}
    for uuid, control in (controls or {}).items():
        changed = {c.space_id for c in control.changes if c.definition.decoded().is_sync}
        found[uuid] = found.get(uuid, set()) | changed
    return {uuid: frozenset(ids) for uuid, ids in found.items()}


def bucket_spaces(
    state: State, controls: Mapping[str, ControlChanges] | None = None
) -> dict[str, frozenset[int]]:
    """Return the ids of vshard's `_bucket` spaces, by replicaset uuid; `controls` adds those that a batch defines."""
    found = {uuid: bucket_space_ids(one.spaces) for uuid, one in state.replicasets.items()}
    for uuid, control in (controls or {}).items():
        own = bucket_space_ids({}, (change.definition for change in control.changes))
        found[uuid] = found.get(uuid, frozenset()) | own
    return found


def _first_unmapped_run(
    known: ReplicasetState, registrations: Sequence[ReplicaIdChange], summary: Summary, settlement: Settlement
) -> LsnRun | None:
    """Return the first run of settled rows whose replica id belongs to no known instance; None if there is none."""
    mapped = {LOCAL_ID, *(e.local_id for e in known.applier_map), *(r.replica_id for r in registrations)}
    for run in summary.runs:
        if settlement.waits_from is not None and run.start >= settlement.waits_from:
            return None
        low = settlement.low_watermarks.get((run.start.segment, run.replica_id), -1)
        if run.replica_id not in mapped and run.last_lsn > low:
            return run
    return None


def _space_history(
    config: Config,
    state: State,
    after: Mapping[str, ReplicasetState],
    decisions: Mapping[str, ReplicasetDecision],
    summaries: Mapping[str, Summary],
    segments: Sequence[LogSegment],
    router: Router,
    undefined_ranges: Mapping[str, UnknownRanges],
) -> History:
    # A server's own snapshots do not contain the rows of its vinyl spaces.
    snapshots = frozenset(s.number for s in segments if s.is_snapshot and not s.is_spool)
    vinyl = {segment.number: segment.vinyl_spaces for segment in segments}
    before: dict[int, SpacesBefore] = {}
    changes = {}
    tracked = {}
    for uuid, one in decisions.items():
        known, number = one.before, after[uuid].id
        changes[number] = one.control.changes
        ids = {change.space_id for change in one.control.changes}
        ids |= {space_id for _, space_id, kind in summaries[uuid].row_counts if kind in CHANGE_TYPES}
        spaces = {i: known.spaces[i] for i in sorted(ids) if i in known.spaces}
        tracked[uuid] = spaces.keys()
        before[number] = SpacesBefore(
            *(spaces, known.refused, known.tables, known.primary_keys),
            applied_definitions=known.applied_definitions,
        )
    by_number = {after[uuid].id: ranges for uuid, ranges in undefined_ranges.items()}
    owners = table_owners(config, state, tracked)
    return build_history(before, changes, router, snapshots, vinyl, by_number, owners, config.spaces.on_ddl)


def _log_refusals(
    history: History, after: Mapping[str, ReplicasetState], decisions: Mapping[str, ReplicasetDecision]
) -> None:
    known = {after[uuid].id: one.before.refused for uuid, one in decisions.items()}
    uuids = {after[uuid].id: uuid for uuid in decisions}
    for one in history.refusals:
        if known[one.replicaset_id].get(one.space_id) != one.reason:
            label = _label(after[uuids[one.replicaset_id]])
            log.error("replicaset %s: space %s is refused: %s", label, one.name, one.reason)


def _label(replicaset: ReplicasetState) -> str:
    return replicaset_label(replicaset.uuid, replicaset.last_source)


def _log_unknown_types(summaries: Mapping[str, Summary], after: Mapping[str, ReplicasetState]) -> None:
    for uuid, summary in summaries.items():
        kinds = {kind for _, space_id, kind in summary.row_counts if space_id <= SYSTEM_SPACE_ID_MAX}
        names = ", ".join(sorted(filter(is_unknown_type, kinds)))
        if names:
            log.warning(
                "replicaset %s: rows of unknown types go to _changelog only: %s", _label(after[uuid]), names
            )
