"""Reads what subscribers must have at an epoch of the warehouse: spaces, instances, a vclock, versions of tables.

Reads `_select_epochs`, `_schema`, `_cluster` and `_vclock`, without Spark. `changes` reads the tuples, and `state` what
subscribers have already.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pipeline.replication_out.changes import files_digest
from pipeline.replication_out.definitions import (
    ReplicasetSpace,
    ServedSpace,
    assign_space_ids,
    merge_definitions,
)
from pipeline.replication_out.state import EpochMark, TableVersion
from schemas.errors import TupleError, UnsupportedError, WarehouseError
from schemas.iproto import VCLOCK_MAX
from schemas.names import exact_table, local_instance_of, replicaset_of, unescape
from schemas.states import SpaceState, is_held, refusal_reason
from udfs.remap.cluster_replace import Cluster, Member
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.read import newest_of_each, query_rows
from warehouse.delta.version_files import files_at
from warehouse.system_tables import cluster, schema, vclock
from warehouse.system_tables.schema import StoredSpace
from warehouse.warehouse import Warehouse


@dataclass(frozen=True)
class EpochRow:
    """A row of `_select_epochs`."""

    epoch: int
    committed_at: int
    """The epoch's number, and its time in microseconds since 1970 UTC."""
    versions: Mapping[str, int]


@dataclass(frozen=True)
class Target:
    """What subscribers must have after an epoch of the warehouse."""

    mark: EpochMark
    spaces: Mapping[str, ServedSpace]
    """By table; with the ids that subscribers see."""
    cluster: Mapping[int, str]
    """Instance uuids by global id."""
    aggregator: Member
    vclock: Mapping[int, int]
    """The last settled lsn of each instance, by global id. Of an instance that has had several replica ids it is the
    highest of them, since the vclock of a stream never goes back."""
    left_out: Mapping[str, str]
    """By table or instance uuid: why a space or an instance is not served, or which indexes of a space are not."""


def newest_epoch(warehouse: Warehouse) -> EpochRow | None:
    """Return the newest epoch, None before the first one."""
    found = _select_epochs(warehouse, "ORDER BY epoch DESC LIMIT 1")
    return found[0] if found else None


def epoch_with_mark(warehouse: Warehouse, mark: EpochMark) -> EpochRow | None:
    """Return the row of the epoch that a mark identifies, None if the warehouse no longer has this epoch."""
    found = _select_epochs(warehouse, f"WHERE epoch = {mark.epoch}")
    return next((row for row in found if row.committed_at == mark.committed_at), None)


def read_target(
    warehouse: Warehouse,
    row: EpochRow,
    served: Mapping[str, ServedSpace],
    known_versions: Mapping[str, TableVersion],
) -> Target:
    """Return what subscribers must have at an epoch.

    Args:
        known_versions: By table: a version whose digest need not be computed again.

    Raises:
        UnsupportedError: The aggregator's own global id is too large for a vclock.
        WarehouseError: A table version does not exist any more.
    """
    own, instances, left_out = served_instances(cluster.load(warehouse))
    found, ids, not_served = served_spaces(
        schema.load(warehouse, row.versions.get(schema.TABLE)), row.versions
    )
    given = assign_space_ids(
        found,
        {table: served[space.name].id for table, space in found.items() if space.name in served},
        ids,
    )
    spaces = {table: replace(space, id=given[table]) for table, space in found.items()}
    versions = {}
    for table in spaces:
        version, same = row.versions[table], known_versions.get(table)
        if same is None or same.version != version:
            same = TableVersion(version, files_digest(files_at(warehouse.location, table, version)))
        versions[table] = same
    mark = EpochMark(row.epoch, row.committed_at, versions)
    lsns = _last_lsns(warehouse, row.versions.get(vclock.TABLE), instances, own)
    return Target(mark, spaces, instances, own, lsns, left_out | not_served)


def served_spaces(
    stored: Sequence[StoredSpace], versions: Mapping[str, int]
) -> tuple[dict[str, ServedSpace], dict[str, int], dict[str, str]]:
    """Return the spaces that are served, their ids in the first replicaset, and why others are not, all by table."""
    by_table: dict[str, list[StoredSpace]] = {}
    left_out: dict[str, str] = {}
    older = {one.table_name for one in stored if one.applied_definition is not None}
    for one in sorted(stored, key=lambda one: one.replicaset_id):
        if one.table_name is None or one.table_name not in versions:
            continue
        if one.state == SpaceState.PRESENT or is_held(refusal_reason(one.state) or ""):
            by_table.setdefault(one.table_name, []).append(one)
        else:
            left_out[one.table_name] = one.state
    spaces: dict[str, ServedSpace] = {}
    ids: dict[str, int] = {}
    for table, definitions in by_table.items():
        if exact_table(table) in versions:
            left_out[table] = "it is masked"
            continue
        try:
            whole = merge_definitions(
                space_name(table),
                [ReplicasetSpace(one.space_tuple, one.index_tuples) for one in definitions],
                has_older_tuples=table in older
                or any(one.state != SpaceState.PRESENT for one in definitions),
            )
        except TupleError as error:
            left_out[table] = error.reason
            continue
        left_out.pop(table, None)
        spaces[table], ids[table] = whole.space, definitions[0].space_id
        if whole.left_out:
            left_out[table] = "; ".join(whole.left_out)
    return spaces, ids, left_out


def space_name(table: str) -> str:
    """Return a space's name for subscribers: the name of its table, unescaped.

    A table for one replicaset's rows, or for one instance's local space, keeps its name, which contains the id.
    """
    if local_instance_of(table) is not None or replicaset_of(table) is not None:
        return table
    try:
        return unescape(table)
    except WarehouseError:
        return table


def served_instances(table: Cluster) -> tuple[Member, dict[int, str], dict[str, str]]:
    """Return the aggregator, the instance uuids by global id, and by uuid why other instances are not served.

    Raises:
        UnsupportedError: The aggregator's own global id is too large for a vclock.
        WarehouseError: The aggregator has no global id yet.
    """
    own = table.own_member
    if own is None or own.global_id is None or own.uuid is None:
        raise WarehouseError("the aggregator has no global id yet", table=cluster.TABLE)
    if own.global_id >= VCLOCK_MAX:
        raise UnsupportedError(
            f"the aggregator's global id is {own.global_id}; a vclock has ids up to {VCLOCK_MAX - 1}",
            advice="a warehouse whose allocation is counter gives it 1",
        )
    instances, left_out = {}, {}
    for member in table.members.values():
        if member.uuid is None or member.global_id is None or member.expelled or member.is_daemon:
            continue
        if member.global_id < VCLOCK_MAX:
            instances[member.global_id] = member.uuid
        else:
            left_out[member.uuid] = f"global id {member.global_id}: a vclock has ids up to {VCLOCK_MAX - 1}"
    return own, instances, left_out


def _last_lsns(
    warehouse: Warehouse, vclock_version: int | None, instances: Iterable[int], aggregator: Member
) -> dict[int, int]:
    rows = newest_of_each(
        warehouse.opened(vclock.TABLE, vclock_version), ("replicaset_id", "global_id", "local_id")
    )
    known = {*instances} - {aggregator.global_id}
    found: dict[int, int] = {}
    for row in rows:
        if row["global_id"] in known and row["local_id"]:
            found[row["global_id"]] = max(found.get(row["global_id"], 0), int(row["lsn"]))
    return {number: lsn for number, lsn in sorted(found.items()) if lsn}


def _select_epochs(warehouse: Warehouse, condition: str) -> list[EpochRow]:
    opened = warehouse.opened(EPOCHS)
    rows = query_rows(opened, f"SELECT epoch, committed_at, versions FROM opened {condition}")
    return [_epoch_row(row) for row in rows]


def _epoch_row(row: Mapping[str, Any]) -> EpochRow:
    at: datetime = row["committed_at"]
    micros = int(at.timestamp()) * 1_000_000 + at.microsecond
    return EpochRow(int(row["epoch"]), micros, {str(table): int(n) for table, n in row["versions"]})
