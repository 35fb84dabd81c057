"""Loads the writer's state from the tables, which contain all of it, so a writer can start on any machine."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from deltalake import DeltaTable

from pipeline.commit import doubled_buckets
from pipeline.commit.doubled_buckets import buckets_writable_in_several, stored_buckets
from pipeline.pending.rows import unknown_spaces
from pipeline.plan.rows.summary import LOCAL_ID
from pipeline.plan.settings import TABLES_FORMAT
from pipeline.state import (
    ApplierMapEntry,
    ReplicasetState,
    SpaceDefinition,
    State,
    TableWriters,
    VshardBucket,
)
from schemas.errors import WarehouseError
from schemas.states import GapKind, GapState, SpaceState, refusal_reason
from sources.xlog.directory.offset import from_text
from udfs.remap.cluster_replace import OWN_REPLICASET_ID, Cluster
from warehouse.delta.read import newest_of_each, query_rows
from warehouse.system_tables import applier_map, cluster, epochs, schema, vclock
from warehouse.system_tables.gaps import KEY
from warehouse.warehouse import Warehouse


def check_format(settings: str | None) -> None:
    """Raise WarehouseError for tables that a newer release has written."""
    found = 1 if settings is None else int(json.loads(settings).get("format", 1))
    if found > TABLES_FORMAT:
        raise WarehouseError(
            f"the tables have format {found}, this release writes format {TABLES_FORMAT}",
            advice="install the release that wrote them, or a newer one",
        )


def load_state(warehouse: Warehouse) -> State:
    """Return the state as of the last epoch; raise WarehouseError if a newer release has written the tables."""
    epoch = epochs.last(warehouse)
    table = cluster.load(warehouse)
    own_id = table.own_member.global_id if table.own_member is not None else None
    check_format(None if epoch is None else epoch.settings)
    if epoch is None:
        return State(global_ids=table.global_ids, aggregator_id=own_id)
    maps = applier_map.load(warehouse, table)
    spaces = schema.load(warehouse, epoch.versions.get(schema.TABLE))
    keys = schema.load_keys(warehouse, epoch.versions.get(schema.TABLE))
    components = vclock.load(warehouse)
    read = _waiting_lsns(warehouse.opened("_pending"))
    unknown = unknown_spaces(warehouse.open_tables)
    lossy = _replicasets_with_loss(warehouse.opened("_gaps"))
    buckets = stored_buckets(
        newest_of_each(warehouse.opened(doubled_buckets.TABLE), ("replicaset_id", "bucket_id"))
    )
    leaders = {} if epoch.end_offset is None else _leading_sources(epoch.end_offset)
    replicasets = {}
    for uuid, settled in epoch.vclock.items():
        own = table.replicaset_ids[uuid]
        entries = maps.get(own, ())
        common = tuple(
            ApplierMapEntry(e.local_id, e.global_id, e.since_lsn) for e in entries if e.source is None
        )
        ids = applier_map.id_translations_by_source(entries)
        replicasets[uuid] = ReplicasetState(
            id=own,
            uuid=uuid,
            settled=dict(settled),
            read=_vclock_of_read_rows(settled, read.get(own, {}), ids),
            cluster=applier_map.instance_by_replica_id(entries, table, uuid),
            applier_map=common,
            spaces=_definitions_by_space_id(own, spaces),
            tables={
                s.space_id: s.table_name
                for s in spaces
                if s.replicaset_id == own and s.table_name is not None
            },
            refused={
                s.space_id: reason
                for s in spaces
                if s.replicaset_id == own and (reason := refusal_reason(s.state)) is not None
            },
            applied_definitions={
                s.space_id: s.applied_definition
                for s in spaces
                if s.replicaset_id == own and s.applied_definition is not None
            },
            last_source=leaders.get(uuid),
            leader=_instance_of_local_lsn(table, own, components, settled.get(LOCAL_ID)),
            local_lsns=_local_lsn_by_instance(table, own, components),
            id_translations=ids,
            primary_keys={space_id: parts for (number, space_id), parts in keys.items() if number == own},
            has_loss=own in lossy,
            unknown_spaces=unknown.get(own, frozenset()),
            described_spaces=_described_spaces(own, spaces),
            buckets=buckets.get(own, {}),
            last_log_time=_latest_bucket_time(buckets.get(own, {})),
        )
    writers = {
        name: TableWriters(frozenset(one["replicasets"]), bool(one["unfit"]))
        for name, one in epoch.writers.items()
    }
    own_lsn = max((c.lsn for c in components if c.replicaset_id == OWN_REPLICASET_ID), default=0)
    return State(
        *(epoch.epoch, replicasets, table.global_ids, writers, dict(epoch.versions), own_id, own_lsn),
        undecided_buckets=buckets_writable_in_several(replicasets.values()),
        settings=epoch.settings,
    )


def _latest_bucket_time(buckets: Mapping[int, VshardBucket]) -> datetime | None:
    return max((one.timestamp for one in buckets.values() if one.timestamp is not None), default=None)


def _instance_of_local_lsn(
    table: Cluster, replicaset_id: int, components: Sequence[vclock.VclockComponent], lsn: int | None
) -> str | None:
    """Return the uuid of the instance whose last local change has the lsn `lsn`: component 0 of the settled vclock.

    If several instances have this lsn, returns the one that was recorded in the newest epoch; None if none has.
    """
    uuids = table.instance_uuids
    local = [
        c for c in components if c.replicaset_id == replicaset_id and c.local_id == LOCAL_ID and c.lsn == lsn
    ]
    newest = max(local, key=lambda component: component.epoch, default=None)
    return None if newest is None or newest.global_id is None else uuids.get(newest.global_id)


def _local_lsn_by_instance(
    table: Cluster, replicaset_id: int, components: Sequence[vclock.VclockComponent]
) -> dict[str, int]:
    uuids = table.instance_uuids
    return {
        uuids[c.global_id]: c.lsn
        for c in components
        if c.replicaset_id == replicaset_id and c.local_id == LOCAL_ID
        if c.global_id is not None and c.global_id in uuids
    }


def _leading_sources(offset: str) -> dict[str, str]:
    return {uuid: entry.leader for uuid, entry in from_text(offset).items()}


def _vclock_of_read_rows(
    settled: Mapping[int, int],
    waiting_lsns: Mapping[tuple[str, int], int],
    id_translations: Mapping[str, Mapping[int, int]],
) -> dict[int, int]:
    """Return the vclock of all rows read so far: the settled vclock, advanced by the waiting rows."""
    read = dict(settled)
    for (source, replica_id), lsn in waiting_lsns.items():
        translated = id_translations.get(source, {}).get(replica_id, replica_id)
        read[translated] = max(read.get(translated, 0), lsn)
    return read


def _definitions_by_space_id(
    replicaset_id: int, stored: Iterable[schema.StoredSpace]
) -> dict[int, SpaceDefinition]:
    return {
        s.space_id: SpaceDefinition(s.space_tuple, dict(s.index_tuples))
        for s in stored
        if s.replicaset_id == replicaset_id and s.state != SpaceState.DESCRIBED
    }


def _described_spaces(replicaset_id: int, stored: Iterable[schema.StoredSpace]) -> dict[int, bytes]:
    own = [s for s in stored if s.replicaset_id == replicaset_id and s.state == SpaceState.DESCRIBED]
    return {s.space_id: s.space_tuple for s in own}


def _replicasets_with_loss(gaps: DeltaTable) -> frozenset[int]:
    """Return the ids of replicasets with missing or diverging rows, unless a later generation has replaced their state.

    A loss in a generation's own epoch counts, since the rows of that batch come after its snapshot. A snapshot for
    healing does not end a loss, since it may be older than the lost rows.
    """
    lost: dict[int, int] = {}
    replaced: dict[int, int] = {}
    for row in newest_of_each(gaps, KEY):
        is_loss = row["state"] == GapState.SKIPPED or (
            row["kind"] == GapKind.DIVERGENCE and row["state"] == GapState.OPEN
        )
        found = lost if is_loss else replaced if row["state"] == GapState.BRIDGED else {}
        found[row["replicaset_id"]] = max(found.get(row["replicaset_id"], -1), row["epoch"])
    return frozenset(number for number, epoch in lost.items() if epoch >= replaced.get(number, -1))


def _waiting_lsns(waiting: DeltaTable) -> dict[int, dict[tuple[str, int], int]]:
    """Return the highest waiting lsn by replicaset id and (source, replica id)."""
    query = """
        SELECT replicaset_id, source, replica_id, max(lsn) AS lsn FROM opened
        WHERE lsn IS NOT NULL AND (replica_id IS NOT NULL OR group_id = 1)
        GROUP BY replicaset_id, source, replica_id"""
    found: dict[int, dict[tuple[str, int], int]] = {}
    for row in query_rows(waiting, query):
        own = found.setdefault(row["replicaset_id"], {})
        own[row["source"], row["replica_id"] or LOCAL_ID] = row["lsn"]
    return found
