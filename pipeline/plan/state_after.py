"""Computes the state of replicasets after a batch: applier map, vclock, members, and the tables of spaces.

When a replica id passes to another instance, the new instance's rows begin at the lsn after the old instance's last
one: there the new entry of the applier map begins. The rows of a refused space stay in its table as they are. The last
definition by which they were applied is stored with the space, since newer definitions do not describe these rows.

Pure. `pipeline.plan.ids.settle` decides which rows take effect, `udfs.remap.cluster_replace` assigns global ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.plan.ids.members import (
    IdTranslation,
    SourceIds,
    map_entries_of_source,
    settlement_in_source_ids,
    translate_summary,
)
from pipeline.plan.ids.settle import Settlement, Vclock
from pipeline.plan.ids.upgrades import last_server_version
from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.plan.rows.summary import LOCAL_ID, Summary
from pipeline.plan.spaces.meanings import NO_TABLE, History, Lineage
from pipeline.plan.spaces.system_rows import ControlChanges, ReplicaIdChange
from pipeline.plan.spaces.vshard import ReplicasetBuckets, latest_time
from pipeline.state import ApplierMapEntry, ReplicasetState, State
from schemas.iproto import VCLOCK_MAX
from schemas.space import Space
from udfs.remap.cluster_replace import Cluster, IncomingMember
from warehouse.system_tables.applier_map import MapRow


@dataclass(frozen=True)
class ReplicasetDecision:
    """The decisions on one replicaset's part of a batch, made before global ids are allocated."""

    before: ReplicasetState
    settlement: Settlement
    """Which rows take effect, with replica ids of the replicaset (translated by `pipeline.plan.ids.members`)."""
    control: ControlChanges
    """What the rows of system spaces change."""
    registrations: tuple[ReplicaIdChange, ...]
    """The assignments of replica ids that take effect, with replica ids of the replicaset."""
    source_ids: SourceIds
    translations_by_segment: Mapping[int, IdTranslation]
    """For each segment, a map from replica ids of its source to the replicaset's; only ids that differ are in the map.
    """
    generation_position: LogPosition | None = None
    """The position from which a snapshot replaces the replicaset's state."""
    vshard_buckets: ReplicasetBuckets = field(default_factory=ReplicasetBuckets)

    def settlement_in_source_ids(self) -> Settlement:
        """Return the settlement with low watermarks in the replica ids of each segment's source."""
        return settlement_in_source_ids(self.settlement, self.translations_by_segment)


def instances_seen(
    decisions: Mapping[str, ReplicasetDecision], segments: Mapping[str, Sequence[LogSegment]]
) -> list[IncomingMember]:
    """Return the instances and replicasets that the batch names: in rows of `_cluster`, and in headers of files."""
    found: list[IncomingMember] = []
    for uuid in sorted(decisions):
        cluster = dict(decisions[uuid].before.cluster)
        for one in decisions[uuid].registrations:
            if one.uuid is not None:
                if decisions[uuid].generation_position is not None:
                    found += _expel_other_ids(cluster, one.replica_id, one.uuid, uuid)
                found += _expulsion_of_replaced(cluster, one.replica_id, one.uuid, uuid)
                cluster[one.replica_id] = one.uuid
                found.append(
                    IncomingMember(
                        one.uuid, _replica_id_in_source(decisions[uuid].source_ids, one.replica_id), uuid
                    )
                )
            elif one.replica_id in cluster:
                found.append(IncomingMember(cluster.pop(one.replica_id), one.replica_id, uuid, expelled=True))
        headers = {p.instance_uuid: p.is_spool for p in segments[uuid] if p.instance_uuid is not None}
        found += [
            IncomingMember(instance, None, uuid, is_daemon=is_spool) for instance, is_spool in headers.items()
        ]
        found.append(IncomingMember(None, None, uuid))
    return found


def _expel_other_ids(
    cluster: dict[int, str], replica_id: int, instance: str, replicaset: str
) -> list[IncomingMember]:
    """Remove the other ids of an instance that a generation gives `replica_id`; return their expulsions."""
    own = [other for other, uuid in cluster.items() if uuid == instance and other != replica_id]
    for other in own:
        del cluster[other]
    return [IncomingMember(instance, other, replicaset, expelled=True) for other in own]


def _expulsion_of_replaced(
    cluster: Mapping[int, str], replica_id: int, instance: str, replicaset: str
) -> list[IncomingMember]:
    """Return the expulsion of the instance that loses `replica_id` to `instance` without a DELETE, in a list."""
    old = cluster.get(replica_id, instance)
    if old == instance or any(uuid == old for other, uuid in cluster.items() if other != replica_id):
        return []
    return [IncomingMember(old, replica_id, replicaset, expelled=True)]


def _replica_id_in_source(source_ids: SourceIds, replica_id: int) -> int:
    """Return the replica id that a source uses for the replicaset's id `replica_id`."""
    if replica_id < VCLOCK_MAX:
        return replica_id
    return next(
        own for ids in source_ids.translations.values() for own, meant in ids.items() if meant == replica_id
    )


def state_after_batch(
    decision: ReplicasetDecision,
    segments: Sequence[LogSegment],
    aggregator_cluster: Cluster,
    summary: Summary,
) -> ReplicasetState:
    """Return the state of a replicaset after the batch."""
    before, settlement = decision.before, decision.settlement
    cluster, maps = dict(before.cluster), list(before.applier_map)
    summary = translate_summary(summary, decision.translations_by_segment)
    for registration in decision.registrations:
        if registration.uuid is None:
            cluster.pop(registration.replica_id, None)
        elif cluster.get(registration.replica_id) != registration.uuid:
            cluster[registration.replica_id] = registration.uuid
            global_id = aggregator_cluster.global_ids[registration.uuid]
            if [e.global_id for e in maps if e.local_id == registration.replica_id][-1:] != [global_id]:
                since = _last_lsn_of_id(summary, before, maps, registration) + 1
                maps.append(ApplierMapEntry(registration.replica_id, global_id, since))
    leader = [part.instance_uuid for part in segments if not part.has_waited or part is segments[0]][-1]
    holds = settlement.waits_from is not None
    read = _with_local_lsn_of(settlement.read_vclock, settlement.local_lsns, leader)
    # A snapshot that heals may be older than the lost rows; a generation that bridges nothing leaves no row in `_gaps`.
    is_renewed = bool(settlement.bridged_gaps) and not any(part.is_healing for part in segments)
    return replace(
        before,
        id=aggregator_cluster.replicaset_ids[before.uuid],
        settled=_with_local_lsn_of(before.settled, before.local_lsns, leader) if holds else read,
        read=read,
        cluster=cluster,
        applier_map=tuple(maps),
        spaces=decision.control.spaces,
        described_spaces=decision.control.described_spaces,
        leader=leader,
        last_source=next(
            (part.source for part in reversed(segments) if not part.has_waited), before.last_source
        ),
        local_lsns=before.local_lsns if holds else settlement.local_lsns,
        id_translations=decision.source_ids.translations,
        has_loss=bool(settlement.skipped_gaps) or (before.has_loss and not is_renewed),
        server_version=last_server_version(segments, summary.control) or before.server_version,
        last_file=next((part.file for part in reversed(segments) if not part.has_waited), before.last_file),
        cluster_by_source=decision.source_ids.views,
        buckets=decision.vshard_buckets.after,
        last_log_time=before.last_log_time
        if holds
        else latest_time(before.last_log_time, summary.last_time_us),
    )


def _with_local_lsn_of(vclock: Vclock, local_lsns: Mapping[str, int], leader: str | None) -> dict[int, int]:
    """Return a vclock whose component 0 (local changes) is the leader's; without component 0 if it is not known."""
    if leader is None:
        return dict(vclock)
    own = {LOCAL_ID: local_lsns[leader]} if leader in local_lsns else {}
    return {replica_id: lsn for replica_id, lsn in vclock.items() if replica_id != LOCAL_ID} | own


def with_settled_lsns(
    replicaset: ReplicasetState, written_lsns: Mapping[tuple[str | None, int], int]
) -> ReplicasetState:
    """Return the state of a replicaset that has waiting rows, with the settled vclock of its written rows."""
    settled, local_lsns = dict(replicaset.settled), dict(replicaset.local_lsns)
    for (name, replica_id), lsn in written_lsns.items():
        if replica_id == LOCAL_ID and name is not None:
            local_lsns[name] = max(local_lsns.get(name, 0), lsn)
        else:
            origin = replicaset.id_translations.get(name or "", {}).get(replica_id, replica_id)
            settled[origin] = max(settled.get(origin, 0), lsn)
    if replicaset.leader in local_lsns:
        settled[LOCAL_ID] = local_lsns[replicaset.leader]
    return replace(replicaset, settled=settled, local_lsns=local_lsns)


def new_map_rows(
    before: ReplicasetState, after: ReplicasetState, aggregator_cluster: Cluster, epoch: int
) -> list[MapRow]:
    """Return the new rows of `_applier_map`: of the replicaset, and of each source whose replica ids differ.

    An existing entry is written again if the batch expels its instance or registers it again, so that the column
    `expelled` says so. This is needed only for an instance that the aggregator's `_cluster` lists under another
    replicaset: the first one that named it.
    """
    uuids = aggregator_cluster.instance_uuids
    found = []
    for entry in after.applier_map:
        uuid = uuids[entry.global_id]
        is_foreign = aggregator_cluster.members[uuid].replicaset_uuid != after.uuid
        was_expelled, is_expelled = (
            is_foreign and one.cluster.get(entry.local_id) != uuid for one in (before, after)
        )
        if entry not in before.applier_map or is_expelled != was_expelled:
            found += _map_rows(after.id, [entry], epoch, is_expelled=is_expelled)
    for source in after.id_translations:
        known = map_entries_of_source(before, source) if source in before.id_translations else []
        fresh = (entry for entry in map_entries_of_source(after, source) if entry not in known)
        found += _map_rows(after.id, fresh, epoch, source)
    return found


def _map_rows(
    replicaset_id: int,
    entries: Iterable[ApplierMapEntry],
    epoch: int,
    source: str | None = None,
    *,
    is_expelled: bool = False,
) -> list[MapRow]:
    return [
        MapRow(replicaset_id, e.local_id, e.global_id, e.since_lsn, source, is_expelled, epoch)
        for e in entries
    ]


def _last_lsn_of_id(
    summary: Summary,
    before: ReplicasetState,
    applier_map: Sequence[ApplierMapEntry],
    registration: ReplicaIdChange,
) -> int:
    """Return the last lsn of a replica id before a row of `_cluster` assigns the id to an instance."""
    replica_id, position = registration.replica_id, registration.position
    own = [run.last_lsn for run in summary.runs if run.replica_id == replica_id and run.start < position]
    # An instance signs rows before the row that registers it: the first master's own id is 1 from the start.
    if not any(entry.local_id == replica_id for entry in applier_map):
        return before.settled.get(replica_id, 0)
    return max([before.settled.get(replica_id, 0), *own])


def with_history(replicaset: ReplicasetState, before: ReplicasetState, history: History) -> ReplicasetState:
    """Return a replicaset's state with the tables, refusals, keys and definitions of its spaces after the batch."""
    seen = {space_id for _, space_id in history.tracked_spaces}
    tables = {i: table for i, table in before.tables.items() if i not in seen and i in replicaset.spaces}
    refused = {i: reason for i, reason in before.refused.items() if i not in seen and i in replicaset.spaces}
    tables |= {i: table for (_, i), table in history.tables.items()}
    refused |= {one.space_id: one.reason for one in history.refusals}
    new = history.primary_keys
    keys = {
        i: parts
        for i, parts in before.primary_keys.items()
        if i in replicaset.spaces and (replicaset.id, i) not in new
    }
    keys |= {i: parts for (_, i), parts in new.items() if parts}
    known = {**before.applied_definitions, **_last_applied_definitions(history)}
    definitions = {i: space for i, space in known.items() if i in refused and i in tables}
    return replace(
        replicaset, tables=tables, refused=refused, primary_keys=keys, applied_definitions=definitions
    )


def _last_applied_definitions(history: History) -> dict[int, Space]:
    """Return, by space id, the last definition by which a batch applies rows of one replicaset's space."""
    return {
        space_id: history.versions[one.version].space
        for (_, space_id), meanings in history.meanings.items()
        for one in meanings
        if one.lineage != NO_TABLE
    }


def with_refused_spaces(
    before: State, after: State, history: History, refused_tables: Mapping[str, str]
) -> State:
    """Return the state after the batch, in which the spaces of tables that cannot be written are refused.

    A space that the batch moves out of such a table is refused too. The batch does not change the versions of these
    spaces: they stay in their old table with their old definition.
    """
    stopped: dict[int, list[tuple[Lineage, str]]] = {}
    for lineage in history.lineages:
        tables = (lineage.base_table, lineage.table)
        reasons = [refused_tables[table] for table in tables if table is not None and table in refused_tables]
        if reasons and lineage.ended is None:
            stopped.setdefault(lineage.replicaset_id, []).append((lineage, reasons[-1]))
    return after.with_replicasets(
        {
            uuid: _with_stopped_spaces(one, before.replicasets.get(uuid), history, stopped[one.id])
            for uuid, one in after.replicasets.items()
            if one.id in stopped
        }
    )


def _with_stopped_spaces(
    replicaset: ReplicasetState,
    before: ReplicasetState | None,
    history: History,
    stopped_lineages: list[tuple[Lineage, str]],
) -> ReplicasetState:
    """Refuse the spaces of some lineages, given with reasons; they keep their old table and definition."""
    tables, refused, definitions = (
        dict(replicaset.tables),
        dict(replicaset.refused),
        dict(replicaset.applied_definitions),
    )
    for lineage, reason in stopped_lineages:
        space_id, base = lineage.space_id, lineage.base_table
        if (replicaset.id, space_id) in history.current_versions:
            refused[space_id] = reason
        if base is not None and base not in tables.values():
            tables[space_id] = base
        space = None if before is None else before.definition(space_id)
        if space is not None:
            definitions[space_id] = space
        else:
            definitions.pop(space_id, None)
    return replace(replicaset, tables=tables, refused=refused, applied_definitions=definitions)
