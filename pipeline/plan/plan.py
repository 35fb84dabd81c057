"""What a batch means, decided from its summary before any row moves.

Pure but for the allocation of ids, which is passed in. Per replicaset: which rows count (`settle`), what its
system rows say (`control`); over all: global ids, applier maps, the meaning of space ids (`history`), the tables
(`tables`). The result, a `BatchPlan`, is all that the later stages need, apart from the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from config.deployment import Config
from pipeline.plan.advance import ReplicasetDecision, instances_seen, new_map_rows, state_after_batch
from pipeline.plan.control import ControlChanges, IdRegistration
from pipeline.plan.generation import SnapshotGeneration, find_generation, follow_generation
from pipeline.plan.history import History, Router, SpacesBefore, build_history
from pipeline.plan.members import IdTranslation, follow_source_ids, in_source_ids, translate_summary
from pipeline.plan.position import BEGINNING, LogPosition, LogSegment
from pipeline.plan.settings import settings_json
from pipeline.plan.settle import IsSync, Settlement, settle
from pipeline.plan.summary import LOCAL_ID, ControlRow, LsnRun, Summary
from pipeline.plan.tables import CHANGE_TYPES, TablePlan, plan_tables
from pipeline.plan.unknown import UnknownRanges, unknown_ranges
from pipeline.plan.upgrades import find_upgrades, last_server_version
from pipeline.plan.vshard import (
    MOVE_WAIT,
    BucketProgress,
    Departure,
    ReplicasetBuckets,
    bucket_space_ids,
    first_awaited_departure,
    follow_buckets,
    has_arrived,
    latest_time,
    with_doubled_buckets,
)
from pipeline.state import ReplicasetState, State
from schemas.iproto import SYSTEM_ID_MAX, is_unknown
from schemas.states import SpaceEvent
from sources.xlog.format.vclock import joined
from udfs.operations.update_rules import release_of, release_text, rules_of
from udfs.remap.cluster_replace import Cluster, Incoming, Member
from udfs.versions.fold_state import TUPLE_LIMIT
from warehouse.applier_map import MapRow

log = logging.getLogger(__name__)

Allocator = Callable[[Sequence[Incoming]], Cluster]
"""What the batch says of instances → `_cluster` after it (`warehouse.cluster.allocate`)."""

FIRST_WITH_SYNC_FLAGS = (2, 8, 1)
"""The first release that writes a flag with each row of a synchronous transaction."""


@dataclass(frozen=True)
class BatchPlan:
    """A batch, decided.

    Parameters
    ----------
    epoch : int
        Its number.
    before, after : State
        Around the batch; `after` without what only writing finds out.
    segments : tuple of LogSegment
        In order of their number.
    settlements : mapping of str to Settlement
        By replicaset uuid, in the ids of each segment's source.
    controls : mapping of str to ControlChanges
        By replicaset uuid.
    summaries : mapping of str to Summary
        By replicaset uuid.
    history : History
    tables : mapping of str to TablePlan
        Those that the batch may change.
    refused_tables : mapping of str to str
        Those that cannot be written any more, with the reason.
    new_maps : tuple of MapRow
        The applier map's new entries.
    own_changes : tuple of Member
        The aggregator's own changes of `_cluster` that are not in `_changelog` yet, by their lsn.
    unknown : mapping of str to mapping
        By replicaset uuid: where spaces are unknown.
    vshard_buckets : mapping of str to ReplicasetBuckets
        By replicaset uuid: vshard's buckets.
    tuple_limit : int
        `max_tuple_bytes` of the configuration.

    """

    epoch: int
    before: State
    after: State
    segments: tuple[LogSegment, ...]
    settlements: Mapping[str, Settlement]
    controls: Mapping[str, ControlChanges]
    summaries: Mapping[str, Summary]
    history: History
    tables: Mapping[str, TablePlan]
    refused_tables: Mapping[str, str]
    new_maps: tuple[MapRow, ...]
    own_changes: tuple[Member, ...] = ()
    unknown: Mapping[str, UnknownRanges] = field(default_factory=dict)
    vshard_buckets: Mapping[str, ReplicasetBuckets] = field(default_factory=dict)
    tuple_limit: int = TUPLE_LIMIT

    @property
    def row_count(self) -> int:
        """How many rows the batch reads."""
        return sum(summary.row_count for summary in self.summaries.values())

    @property
    def snapshots(self) -> frozenset[int]:
        """The segments that are snapshots."""
        return frozenset(segment.segment for segment in self.segments if segment.is_snapshot)

    def previously_unknown(self, outcomes: Sequence[str]) -> set[tuple[str, int]]:
        """Return the spaces, with their replicasets' uuids, that were unknown before the batch, with some outcomes."""
        return {
            (uuid, space_id)
            for uuid, spaces in self.unknown.items()
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
) -> BatchPlan:
    """Decide what a batch means.

    Parameters
    ----------
    config : Config
    state : State
        Before the batch.
    segments : sequence of LogSegment
        In order of their number; those of rows that waited come first.
    summaries : mapping of str to Summary
        By replicaset uuid.
    allocate : callable
        Takes what the batch says of instances (`warehouse.cluster.allocate`).
    router : Router

    """
    own: dict[str, list[LogSegment]] = {}
    for segment in segments:
        own.setdefault(segment.replicaset_uuid, []).append(segment)
    decided = _decide_all(state, own, summaries, config.on_gap)
    snapshots = frozenset(segment.segment for segment in segments if segment.is_snapshot)
    cluster = allocate(instances_seen(decided, own))
    after = {
        uuid: state_after_batch(one, own[uuid], cluster, summaries[uuid]) for uuid, one in decided.items()
    }
    new_maps = tuple(
        entry for uuid, one in decided.items() for entry in new_map_rows(one.before, after[uuid])
    )
    unknown = {
        uuid: unknown_ranges(
            one.before.spaces, one.control, _spaces_with_rows(one, summaries[uuid]), snapshots
        )
        for uuid, one in decided.items()
    }
    after = {
        uuid: replace(one, unknown_spaces=one.unknown_spaces & _waiting_spaces(unknown[uuid]))
        for uuid, one in after.items()
    }
    history = _space_history(after, decided, summaries, segments, router, unknown)
    _log_refusals(history, after, decided)
    _log_unknown_types(summaries)
    _log_upgrades(decided, own, summaries)
    after = {uuid: _with_history(one, decided[uuid].before, history) for uuid, one in after.items()}
    own_row = cluster.own
    shards = {uuid: one.vshard_buckets for uuid, one in decided.items()}
    new_state = replace(
        with_doubled_buckets(
            state.with_replicasets(after), {*state.undecided_buckets, *_changed_bucket_ids(shards)}
        ),
        global_ids=cluster.global_ids,
        own_id=None if own_row is None else own_row.global_id,
        own_lsn=cluster.lsn,
        settings=settings_json(config),
    )
    by_number = {after[uuid].id: summaries[uuid] for uuid in own}
    tables, refused = plan_tables(config, state, new_state, history, by_number)
    return BatchPlan(
        epoch=state.epoch + 1,
        before=state,
        after=_with_refused_tables(new_state, history, refused),
        segments=tuple(segments),
        settlements={uuid: in_source_ids(one.settlement, one.translations) for uuid, one in decided.items()},
        controls={uuid: one.control for uuid, one in decided.items()},
        summaries=summaries,
        history=history,
        tables=tables,
        refused_tables=refused,
        new_maps=new_maps,
        own_changes=_new_cluster_changes(cluster, state.own_lsn),
        unknown=unknown,
        vshard_buckets=shards,
        tuple_limit=config.max_tuple_bytes,
    )


def _changed_bucket_ids(shards: Mapping[str, ReplicasetBuckets]) -> set[int]:
    return {event.bucket for one in shards.values() for event in one.events}


def _spaces_with_rows(one: ReplicasetDecision, summary: Summary) -> frozenset[int]:
    """Return the spaces whose tuples a batch changes, or whose rows wait."""
    return one.before.unknown_spaces | {
        space_id for _, space_id, kind in summary.counts if kind in CHANGE_TYPES
    }


def _waiting_spaces(unknown: UnknownRanges) -> frozenset[int]:
    """Return the spaces whose rows waited before the batch and still wait."""
    return frozenset(space_id for space_id, ranges in unknown.items() if ranges[0].outcome == "waiting")


def _new_cluster_changes(cluster: Cluster, after: int) -> tuple[Member, ...]:
    changed = (member for member in cluster.members.values() if member.lsn > after)
    return tuple(sorted(changed, key=lambda member: member.lsn))


def _decide_all(
    state: State, own: Mapping[str, Sequence[LogSegment]], summaries: Mapping[str, Summary], on_gap: str
) -> dict[str, ReplicasetDecision]:
    """Decide each replicaset; one that has sent a bucket away waits for the destination's log, as far as it must."""
    decided = {uuid: _decide(state, uuid, parts, summaries[uuid], on_gap) for uuid, parts in own.items()}
    while senders := [uuid for uuid, one in decided.items() if one.vshard_buckets.departures]:
        read = {uuid: BucketProgress(one.buckets, one.log_time) for uuid, one in state.replicasets.items()}
        for uuid, one in decided.items():
            last = None if one.settlement.waits_from is not None else summaries[uuid].last_time
            read[uuid] = BucketProgress(one.vshard_buckets.after, latest_time(one.before.log_time, last))
        found = {}
        for uuid in senders:
            one, others = decided[uuid], {other: read[other] for other in read if other != uuid}
            end = latest_time(one.before.log_time, summaries[uuid].last_time)
            awaited = first_awaited_departure(one.vshard_buckets.departures, end, others)
            if awaited is not None:
                found[uuid] = _decide(state, uuid, own[uuid], summaries[uuid], on_gap, awaited)
        if not found:
            _log_late_destinations({uuid: decided[uuid].vshard_buckets.departures for uuid in senders}, read)
            break
        # What waits is not read yet for others that wait for it.
        decided |= found
    return decided


def _log_late_destinations(
    senders: Mapping[str, Sequence[Departure]], read: Mapping[str, BucketProgress]
) -> None:
    """Name each bucket whose destination is so late that its source went on."""
    for uuid, departures in senders.items():
        others = {other: read[other] for other in read if other != uuid}
        for departure in departures:
            if not has_arrived(departure, others):
                log.warning(
                    "replicaset %s sent bucket %d of vshard to %s, whose log is read more than %d seconds less far: "
                    "keys of the bucket are missing until it is read",
                    *(uuid, departure.bucket, departure.peer, MOVE_WAIT.total_seconds()),
                )


def _decide(
    state: State,
    uuid: str,
    parts: Sequence[LogSegment],
    summary: Summary,
    on_gap: str,
    awaited: Departure | None = None,
) -> ReplicasetDecision:
    """Decide one replicaset; its rows from `awaited` on wait."""
    first = parts[0]
    known = state.replicasets.get(uuid) or ReplicasetState(
        0, uuid, settled=dict(first.vclock), read=dict(first.vclock)
    )
    instances = {part.segment: part.instance_uuid for part in parts}
    snapshots = frozenset(part.segment for part in parts if part.is_snapshot)
    generation = find_generation(state.replicasets.get(uuid), parts)
    all_control = follow_generation(known, generation, summary.control, snapshots)
    uuids = {global_id: one for one, global_id in state.global_ids.items()}
    views = follow_source_ids(known, parts, all_control.registrations, uuids)
    ids = {part.segment: views.translations.get(part.source, {}) for part in parts}
    summary = translate_summary(summary, ids)
    # Waiting rows are part of this batch again, so it starts from what was settled before them.
    known = replace(known, settled={**views.bases, **known.settled})
    if generation is not None:
        known = replace(known, settled=joined(known.settled, generation.settled))
    is_sync = _sync_test(known, all_control, parts)
    settlement = settle(
        summary, known.settled, instances, known.leader, on_gap, is_sync, snapshots, known.local_lsns
    )
    settlement = replace(settlement, bridged=() if generation is None else generation.bridged)
    if awaited is not None:
        # Where rows wait from an earlier place on already, the departure is not among those that count.
        reason = f"bucket {awaited.bucket} of vshard went to {awaited.peer}, whose log is not read as far"
        settlement = replace(settlement, waits_from=awaited.position, reason=reason)
    while True:
        counting = (row for row in summary.control if settlement.takes_effect(row))
        control = follow_generation(known, generation, counting, snapshots)
        odd = next((one for one in control.faults if one.is_of_unknown_type), None)
        if odd is not None:
            reason = f"a row of type {odd.row.type} in the system space {odd.row.space_id}: {odd.reason}"
            settlement = replace(settlement, waits_from=odd.row.position, reason=reason)
            continue
        registrations = (
            *views.registered,
            *(_translate_registration(one, ids) for one in control.registrations),
        )
        unknown = _first_unmapped_run(known, registrations, summary, settlement)
        if unknown is None:
            break
        reason = f"replica id {unknown.replica_id} is in no map: no row of _cluster has announced it"
        settlement = replace(settlement, waits_from=unknown.start, reason=reason)
    place = None if generation is None else generation.position
    shards = _follow_vshard(
        known, generation, parts, control, [r for r in summary.control if settlement.takes_effect(r)]
    )
    return ReplicasetDecision(known, settlement, control, registrations, views, ids, place, shards)


def _follow_vshard(
    known: ReplicasetState,
    generation: SnapshotGeneration | None,
    parts: Sequence[LogSegment],
    control: ControlChanges,
    rows: Sequence[ControlRow],
) -> ReplicasetBuckets:
    """Return vshard's buckets over a batch; a snapshot that is behind the tables says nothing of them."""
    heals = any(part.heals for part in parts)
    is_new_state = generation is not None and generation.spaces is None and not heals
    if generation is not None and not is_new_state:
        rows = [row for row in rows if row.position.segment != generation.segment]
    return follow_buckets(known.buckets, known.spaces, control, rows, is_new_state=is_new_state)


def _translate_registration(registration: IdRegistration, ids: Mapping[int, IdTranslation]) -> IdRegistration:
    local_id = registration.local_id
    return replace(registration, local_id=ids.get(registration.position.segment, {}).get(local_id, local_id))


def _sync_test(known: ReplicasetState, control: ControlChanges, parts: Sequence[LogSegment]) -> IsSync:
    """Return whether rows without a flag wait at a place: by the last definition of their space before it.

    Rows of a server that writes flags do not wait without one.
    """
    history = {space_id: [(BEGINNING, rows.decoded().is_sync)] for space_id, rows in known.spaces.items()}
    for change in control.changes:
        waits = change.kind is not SpaceEvent.DROPPED and change.rows.decoded().is_sync
        history.setdefault(change.space_id, []).append((change.position, waits))
    # Rows that waited before their versions were stored do not say which server wrote them.
    last = last_server_version(parts) or known.server_version
    servers = {part.segment: part.server_version or last for part in parts}
    flagged = {
        segment
        for segment, one in servers.items()
        if one is not None and release_of(one) >= FIRST_WITH_SYNC_FLAGS
    }

    def is_sync(space_id: int, place: LogPosition) -> bool:
        if place.segment in flagged:
            return False
        return [False, *(sync for since, sync in history.get(space_id, ()) if since <= place)][-1]

    return is_sync


def sync_spaces(
    state: State, controls: Mapping[str, ControlChanges] | None = None
) -> dict[str, frozenset[int]]:
    """Return the spaces of each replicaset that are synchronous, or that a batch makes so."""
    found: dict[str, set[int]] = {}
    for uuid, one in state.replicasets.items():
        found[uuid] = {i for i, rows in one.spaces.items() if rows.decoded().is_sync}
    for uuid, control in (controls or {}).items():
        changed = {c.space_id for c in control.changes if c.rows.decoded().is_sync}
        found[uuid] = found.get(uuid, set()) | changed
    return {uuid: frozenset(ids) for uuid, ids in found.items()}


def watched_spaces(
    state: State, controls: Mapping[str, ControlChanges] | None = None
) -> dict[str, frozenset[int]]:
    """Return the ids of vshard's `_bucket` in each replicaset, also those that a batch defines."""
    found = {uuid: bucket_space_ids(one.spaces) for uuid, one in state.replicasets.items()}
    for uuid, control in (controls or {}).items():
        own = bucket_space_ids({}, (change.rows for change in control.changes))
        found[uuid] = found.get(uuid, frozenset()) | own
    return found


def _first_unmapped_run(
    known: ReplicasetState, registrations: Sequence[IdRegistration], summary: Summary, settlement: Settlement
) -> LsnRun | None:
    mapped = (
        {LOCAL_ID} | {entry.local_id for entry in known.applier_map} | {r.local_id for r in registrations}
    )
    for run in summary.runs:
        if settlement.waits_from is not None and run.start >= settlement.waits_from:
            return None
        low = settlement.low_watermarks.get((run.start.segment, run.replica_id), -1)
        if run.replica_id not in mapped and run.last > low:
            return run
    return None


def _space_history(
    after: Mapping[str, ReplicasetState],
    decided: Mapping[str, ReplicasetDecision],
    summaries: Mapping[str, Summary],
    segments: Sequence[LogSegment],
    router: Router,
    unknown: Mapping[str, UnknownRanges],
) -> History:
    # A server's own snapshots lack what its vinyl spaces hold.
    snapshots = frozenset(s.segment for s in segments if s.is_snapshot and not s.is_spool)
    vinyl = {segment.segment: segment.vinyl_spaces for segment in segments}
    before: dict[int, SpacesBefore] = {}
    changes = {}
    for uuid, one in decided.items():
        known, number = one.before, after[uuid].id
        changes[number] = one.control.changes
        wanted = {change.space_id for change in one.control.changes}
        wanted |= {space_id for _, space_id, kind in summaries[uuid].counts if kind in CHANGE_TYPES}
        spaces = {i: known.spaces[i] for i in sorted(wanted) if i in known.spaces}
        before[number] = SpacesBefore(spaces, known.refused, known.tables, known.primary_keys)
    by_number = {after[uuid].id: ranges for uuid, ranges in unknown.items()}
    return build_history(before, changes, router, snapshots, vinyl, by_number)


def _log_refusals(
    history: History, after: Mapping[str, ReplicasetState], decided: Mapping[str, ReplicasetDecision]
) -> None:
    """Name each space that is followed no longer, once."""
    known = {after[uuid].id: one.before.refused for uuid, one in decided.items()}
    for one in history.refusals:
        if known[one.replicaset_id].get(one.space_id) != one.reason:
            log.error("replicaset %d: space %s is refused: %s", one.replicaset_id, one.name, one.reason)


def _log_unknown_types(summaries: Mapping[str, Summary]) -> None:
    """Name types of rows that this version does not know and that belong to no space of a user."""
    for uuid, summary in summaries.items():
        kinds = {
            kind for _, space_id, kind in summary.counts if space_id <= SYSTEM_ID_MAX and is_unknown(kind)
        }
        if kinds:
            names = ", ".join(sorted(kinds))
            log.warning("replicaset %s: rows of types that are not known are only logged: %s", uuid, names)


def _log_upgrades(
    decided: Mapping[str, ReplicasetDecision],
    segments: Mapping[str, Sequence[LogSegment]],
    summaries: Mapping[str, Summary],
) -> None:
    """Say where the rules of operations change within a replicaset's log, and what its server makes of that."""
    for uuid, one in decided.items():
        known = [] if one.before.server_version is None else [one.before.server_version]
        for part in segments[uuid]:
            if part.server_version is not None and not part.has_waited:
                upgrades = find_upgrades(part, summaries[uuid].control)
                known += [part.server_version, *(version for _, version in upgrades[-1:])]
        for old, new in pairwise(known):
            if rules_of(old) != rules_of(new):
                log.warning(
                    "replicaset %s: its logs are of Tarantool %s from here on, of %s before, whose UPSERTs do other "
                    "things. Each row is applied by the rules of its own server; but rows since its last snapshot are "
                    "applied by the new server once more when it starts. If there was no snapshot just before: "
                    "aggregator snapshot SPACE",
                    *(uuid, release_text(new), release_text(old)),
                )


def _with_history(one: ReplicasetState, before: ReplicasetState, history: History) -> ReplicasetState:
    """Return a replicaset with the tables and the refusals of its spaces after the batch."""
    seen = {space_id for replicaset_id, space_id in history.tracked if replicaset_id == one.id}
    tables = {i: table for i, table in before.tables.items() if i not in seen and i in one.spaces}
    refused = {i: reason for i, reason in before.refused.items() if i not in seen and i in one.spaces}
    tables |= {i: table for (r, i), table in history.tables.items() if r == one.id}
    refused |= {r.space_id: r.reason for r in history.refusals if r.replicaset_id == one.id}
    keys = {
        i: parts
        for i, parts in before.primary_keys.items()
        if i in one.spaces and (one.id, i) not in history.primary_keys
    }
    keys |= {i: parts for (r, i), parts in history.primary_keys.items() if r == one.id and parts}
    return replace(one, tables=tables, refused=refused, primary_keys=keys)


def _with_refused_tables(state: State, history: History, refused: Mapping[str, str]) -> State:
    """Return the state in which the spaces of tables that cannot be written are refused.

    So are those that leave such a table: their versions stay there.
    """
    changed: dict[int, dict[int, str]] = {}
    for (replicaset_id, space_id), number in history.current.items():
        lineage = history.lineages[history.meanings[replicaset_id, space_id][-1].lineage]
        for table in (lineage.base_table, history.versions[number].table):
            if table is not None and table in refused:
                changed.setdefault(replicaset_id, {})[space_id] = refused[table]
    return state.with_replicasets(
        {
            uuid: replace(one, refused={**one.refused, **changed[one.id]})
            for uuid, one in state.replicasets.items()
            if one.id in changed
        }
    )
