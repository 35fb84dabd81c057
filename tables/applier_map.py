"""`_applier_map`: which instance a replica id of a replicaset stands for, from which lsn on.

Appended, never changed: Tarantool's vclock never loses an id, and an instance that gets a used id goes on from
the old one's last lsn (`replica_clear_id`), so (replica id, lsn) names one instance for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tables.warehouse import Warehouse

TABLE = "_applier_map"


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    replicaset_id: int
    local_id: int
    global_id: int
    since_lsn: int


def load(warehouse: Warehouse) -> Mapping[int, tuple[Entry, ...]]:
    """Return each replicaset's entries in order of `since_lsn`."""
    rows = (
        warehouse.read(TABLE)
        .select("replicaset_id", "local_id", "global_id", "since_lsn")
        .distinct()
        .collect()
    )
    found: dict[int, list[Entry]] = {}
    for row in rows:
        found.setdefault(row.replicaset_id, []).append(Entry(*row))
    return {
        key: tuple(sorted(entries, key=lambda e: (e.local_id, e.since_lsn))) for key, entries in found.items()
    }


def append(warehouse: Warehouse, entries: Iterable[Entry]) -> None:
    """Add entries. Adding one twice, after a kill, does no harm."""
    rows = [
        {
            "replicaset_id": e.replicaset_id,
            "local_id": e.local_id,
            "global_id": e.global_id,
            "since_lsn": e.since_lsn,
        }
        for e in entries
    ]
    if rows:
        warehouse.append(TABLE, warehouse.rows(TABLE, rows))
