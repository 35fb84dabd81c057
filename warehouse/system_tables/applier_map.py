"""`_applier_map`: which instance a replica id (column `local_id`) of a replicaset means, and from which lsn on.

Rows are appended and never changed: Tarantool's vclock never loses an id, and an instance that gets a used id continues
from the old one's last lsn (`replica_clear_id`), so (replica id, lsn) names one instance for ever.

`_cluster` has one row for each instance, and records an expulsion only by the replicaset that named the instance first.
If another replicaset expels an instance, or registers it again, the instance's row is appended here again with a new
`expelled`; of rows that differ only in that, the one of the highest epoch is valid.

If `_cluster` differs between two members of a replicaset, the replicaset's ids are those of the member that was read
first; rows with a source apply only to the logs of that source. An instance without an id in the
first member's `_cluster` gets a number above Tarantool's (32 and up).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from udfs.remap.cluster_replace import Cluster, Member
from warehouse.delta.read import rows_of
from warehouse.warehouse import Warehouse

TABLE = "_applier_map"


@dataclass(frozen=True)
class MapRow:
    """One row of the table: from `since_lsn` on, replica id `local_id` means the instance `global_id`.

    With a source, the row applies only to the logs of that source; without one, to all logs of the replicaset.
    """

    replicaset_id: int
    local_id: int
    global_id: int
    since_lsn: int
    source: str | None = None
    expelled: bool = False
    epoch: int = field(default=-1, compare=False)


COLUMNS = ("replicaset_id", "local_id", "global_id", "since_lsn", "source", "expelled", "epoch")


def rows_by_replicaset(rows: Iterable[Mapping[str, Any]], cluster: Cluster) -> dict[int, tuple[MapRow, ...]]:
    """Return replicaset id to its rows, in order of (replica id, since_lsn) and without duplicates.

    If an instance wrote no row, the next owner of its replica id has the same `since_lsn`. Of rows with one `since_lsn`
    the last one is the current owner's or, if the id has no owner, that of the instance that lost it last.
    """
    members = {member.global_id: member for member in cluster.members.values()}
    found: dict[int, list[MapRow]] = {}
    for entry in _newest(rows).values():
        found.setdefault(entry.replicaset_id, []).append(entry)
    return {
        key: tuple(
            sorted(
                map_rows,
                key=lambda e: (e.local_id, e.since_lsn, *_owner_sort_key(e, members.get(e.global_id))),
            )
        )
        for key, map_rows in found.items()
    }


def _newest(rows: Iterable[Mapping[str, Any]]) -> dict[MapRow, MapRow]:
    """Return the valid ones of rows that differ only in `expelled`, by the row as if it were not expelled."""
    newest: dict[MapRow, MapRow] = {}
    for row in rows:
        entry = MapRow(**{name: row[name] for name in COLUMNS if row.get(name) is not None})
        key = replace(entry, expelled=False)
        newest[key] = max(newest.get(key, entry), entry, key=lambda one: one.epoch)
    return newest


def missing_rows(rows: Iterable[Mapping[str, Any]], planned: Iterable[MapRow]) -> list[MapRow]:
    """Return those of a batch's new rows that the table does not have yet.

    The rows of a batch that was killed stay in the table, and the batch that is done instead plans them again.
    """
    newest = _newest(rows)
    return [one for one in planned if newest.get(replace(one, expelled=False)) != one]


def _owner_sort_key(entry: MapRow, member: Member | None) -> tuple[bool, bool, int]:
    """Return a key that sorts the current owner of a replica id after the earlier owners."""
    if member is None:
        return False, False, 0
    if member.replicaset_id != entry.replicaset_id:
        return not entry.expelled, False, member.lsn
    names_id = member.local_id == entry.local_id
    return names_id and not member.expelled, names_id, member.lsn


def id_translations_by_source(map_rows: Iterable[MapRow]) -> dict[str, dict[int, int]]:
    """Return name of a source to {its replica id: the replicaset's id of the same instance}; equal ids are left out."""
    found = list(map_rows)
    meant = {(e.global_id, e.since_lsn): e.local_id for e in found if e.source is None}
    ids: dict[str, dict[int, int]] = {}
    for e in found:
        other = meant.get((e.global_id, e.since_lsn), e.local_id)
        if e.source is not None and other != e.local_id:
            ids.setdefault(e.source, {})[e.local_id] = other
    return ids


def instance_by_replica_id(
    map_rows: Iterable[MapRow], cluster: Cluster, replicaset_uuid: str
) -> dict[int, str]:
    """Return replica id to instance uuid, for the ids that a replicaset's `_cluster` has now."""
    members = {m.global_id: m for m in cluster.members.values() if m.uuid is not None}
    last = {e.local_id: e for e in map_rows if e.source is None}
    holders = {replica_id: members[e.global_id] for replica_id, e in last.items()}
    found = {}
    for replica_id, member in holders.items():
        if member.replicaset_uuid == replicaset_uuid:
            elsewhere = member.local_id != replica_id and holders.get(member.local_id or 0) == member
            is_registered = not (member.expelled or elsewhere)
        else:
            is_registered = not last[replica_id].expelled
        if member.uuid is not None and is_registered:
            found[replica_id] = member.uuid
    return found


def load(warehouse: Warehouse, cluster: Cluster) -> Mapping[int, tuple[MapRow, ...]]:
    """Read the table; return replicaset id to its rows, in order of (replica id, since_lsn)."""
    return rows_by_replicaset(rows_of(warehouse.opened(TABLE)), cluster)
