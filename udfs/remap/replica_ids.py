"""Maps the replica ids of a log's rows to global ids, by the source's applier map.

A replica id is unique only in its replicaset. A source's applier map says which instance a replica id means from which
lsn on; `_cluster` gives each instance one global id. Rows are mapped without a join and without a Python object per
row. `warehouse.applier_map` stores the maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.iproto import VCLOCK_MAX

UNKNOWN = -1
"""The global id of a row whose replica id is in no map."""


class IdEntry(NamedTuple):
    """One entry of an applier map: rows of `replica_id` with lsn >= `since_lsn` are the instance `global_id`'s."""

    replica_id: int
    since_lsn: int
    global_id: int


def remap_rows(
    replica_ids: NDArray[np.int32], lsns: NDArray[np.int64], entries: Iterable[IdEntry]
) -> NDArray[np.int64]:
    """Return the global id of each row's origin.

    Parameters
    ----------
    replica_ids : int32[n]
        0 or less if the row has none.
    lsns : int64[n]
    entries : iterable of IdEntry
        Entries of one replica id are in the order of `since_lsn`.

    Returns
    -------
    int64[n]
        `UNKNOWN` if the replica id is in no map, or the row is older than its first entry.

    """
    by_id: dict[int, list[IdEntry]] = {}
    for entry in entries:
        by_id.setdefault(entry.replica_id, []).append(entry)
    last = np.full(VCLOCK_MAX + 1, UNKNOWN, np.int64)
    for replica_id, found in by_id.items():
        last[replica_id] = found[-1].global_id
    # An id outside of Tarantool's range is clipped to the last slot, which is unknown.
    slots = np.where((replica_ids > 0) & (replica_ids < VCLOCK_MAX), replica_ids, VCLOCK_MAX)
    result = last[slots]
    for replica_id, found in by_id.items():
        if len(found) == 1 and found[0].since_lsn <= 1:
            continue
        own = np.flatnonzero(replica_ids == replica_id)
        # Among entries with the same since_lsn the last one wins.
        since = np.array([entry.since_lsn for entry in found], np.int64)
        places = np.searchsorted(since, lsns[own], "right") - 1
        ids = np.array([entry.global_id for entry in found] + [UNKNOWN], np.int64)
        result[own] = ids[places]
    return result


def ids_in_source(ids: Mapping[int, int], replica_id: int) -> list[int]:
    """Return the replica id that a source uses for an id of its replicaset: a list of one, or empty if it has none.

    Parameters
    ----------
    ids : mapping of int to int
        The source's replica ids that differ from its replicaset's (document 001).
    replica_id : int
        An id of the replicaset.

    """
    own = [local_id for local_id, other in ids.items() if other == replica_id]
    return own or ([] if replica_id in ids or replica_id >= VCLOCK_MAX else [replica_id])
