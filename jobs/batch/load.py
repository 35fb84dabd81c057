"""The writer's state, from the tables: after a start, on any machine, nothing else is needed."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import functions as F

from jobs.batch.control import SpaceRows
from jobs.batch.state import MapEntry, Replicaset, State, Writers
from tables import applier_map, cluster, epochs, schema
from tables.warehouse import Warehouse

REFUSED = "refused: "


def load_state(warehouse: Warehouse) -> State:
    """Return the state as of the last epoch."""
    epoch = epochs.last(warehouse)
    members = cluster.load(warehouse)
    global_ids = {member.uuid: member.global_id for member in members}
    if epoch is None:
        return State(global_ids=global_ids)
    uuids = {member.global_id: member.uuid for member in members}
    ids = {member.replicaset_uuid: member.replicaset_id for member in members}
    maps = applier_map.load(warehouse)
    spaces = schema.load(warehouse)
    read = _read_lsns(warehouse)
    replicasets = {}
    for uuid, settled in epoch.vclock.items():
        own = ids[uuid]
        entries = tuple(MapEntry(e.local_id, e.global_id, e.since_lsn) for e in maps.get(own, ()))
        replicasets[uuid] = Replicaset(
            id=own,
            uuid=uuid,
            settled=dict(settled),
            read={**settled, **read.get(own, {})},
            cluster={entry.local_id: uuids[entry.global_id] for entry in entries},
            maps=entries,
            spaces=_spaces(own, spaces),
            refused={
                s.space_id: s.state.removeprefix(REFUSED)
                for s in spaces
                if s.replicaset_id == own and s.state.startswith(REFUSED)
            },
        )
    writers = {
        table: Writers(frozenset(told["replicasets"]), bool(told["unfit"]))
        for table, told in epoch.writers.items()
    }
    return State(epoch.epoch, replicasets, global_ids, writers, dict(epoch.versions))


def _spaces(replicaset_id: int, stored: Iterable[schema.Stored]) -> dict[int, SpaceRows]:
    return {
        s.space_id: SpaceRows(s.space_tuple, dict(s.index_tuples))
        for s in stored
        if s.replicaset_id == replicaset_id
    }


def _read_lsns(warehouse: Warehouse) -> dict[int, dict[int, int]]:
    rows = warehouse.read("_pending").where("lsn IS NOT NULL AND (replica_id IS NOT NULL OR group_id = 1)")
    found: dict[int, dict[int, int]] = {}
    for row in rows.groupBy("replicaset_id", "replica_id").agg(F.max("lsn").alias("lsn")).collect():
        found.setdefault(row.replicaset_id, {})[row.replica_id or 0] = row.lsn
    return found
