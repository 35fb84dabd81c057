"""Maps replica ids to global ids and back, by a source's applier map, in Arrow columns and in vclocks.

A replica id is unique only in its replicaset. A source's applier map says which instance a replica id means from which
lsn on; `_cluster` gives each instance one global id. Rows are remapped without a join and without a Python object per
row. `global_id_udf` does the same in a user's queries over `format("xlog")`. `warehouse.system_tables.applier_map`
stores the maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql.types import LongType

from schemas.iproto import VCLOCK_MAX
from udfs.buffers import arrow_column_function

UNKNOWN_INSTANCE = -1
"""In place of a global id: the applier map has no entry for the row."""


class IdEntry(NamedTuple):
    """One entry of an applier map: the instance `global_id` wrote the rows of `replica_id` with lsn >= `since_lsn`."""

    replica_id: int
    since_lsn: int
    global_id: int


def remap_rows(
    replica_ids: NDArray[np.int32], lsns: NDArray[np.int64], entries: Iterable[IdEntry]
) -> NDArray[np.int64]:
    """Return the global id of the instance that wrote each row.

    Args:
        replica_ids: 0 or less if the row has none (int32[n]).
        lsns: int64[n].
        entries: Entries of one replica id are in the order of `since_lsn`.

    Returns:
        `UNKNOWN_INSTANCE` if the replica id is in no map, or the row is older than its first entry (int64[n]).
    """
    by_id: dict[int, list[IdEntry]] = {}
    for entry in entries:
        by_id.setdefault(entry.replica_id, []).append(entry)
    last = np.full(VCLOCK_MAX + 1, UNKNOWN_INSTANCE, np.int64)
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
        indices = np.searchsorted(since, lsns[own], "right") - 1
        ids = np.array([entry.global_id for entry in found] + [UNKNOWN_INSTANCE], np.int64)
        result[own] = ids[indices]
    return result


def global_id_udf(entries: Sequence[IdEntry]) -> Callable[[Column, Column], Column]:
    """Return an Arrow UDF `(replica_id int, lsn bigint) → bigint`, the global id, for rows of one source.

    A row without a replica id (of a local space, of a snapshot), or whose id is in no map, gets null.
    """

    def global_ids(replica_id: pa.Array, lsn: pa.Array) -> pa.Array:
        ids = replica_id.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        found = remap_rows(ids, lsn.fill_null(0).to_numpy(zero_copy_only=False), entries)
        return pa.array(found, pa.int64(), mask=found == UNKNOWN_INSTANCE)

    return arrow_column_function(global_ids, LongType())


def current_global_ids(ids: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the global id of each replica id that is in use now, by replica id.

    An instance that was registered again has only its newest replica id here, because the vclock component of its old
    id never changes again. Replica id 0 is left out, because it counts one instance's local changes.

    Args:
        ids: Pairs (replica id, global id), oldest first.
    """
    known: dict[int, int] = {}
    for replica_id, global_id in ids:
        if replica_id:
            known = {old: one for old, one in known.items() if one != global_id and old != replica_id}
            known[replica_id] = global_id
    return known


def remap_vclock(vclock: Mapping[int, int], ids: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return a vclock with global ids.

    Args:
        vclock: Replica id to lsn.
        ids: The applier map as pairs (replica id, global id), oldest first.
    """
    known = current_global_ids(ids)
    return {known[replica_id]: lsn for replica_id, lsn in vclock.items() if replica_id in known}


def unmap_vclock(vclock: Mapping[int, int], ids: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return a vclock of global ids with the replica ids of a source: the inverse of `remap_vclock`."""
    known = {global_id: replica_id for replica_id, global_id in current_global_ids(ids).items()}
    return {known[global_id]: lsn for global_id, lsn in vclock.items() if global_id in known}


def replica_id_in_source(ids: Mapping[int, int], replica_id: int) -> int | None:
    """Return the replica id that a source uses for an instance; None if the source has no id for it.

    The `_cluster` of a source normally has the same ids as that of the other sources of its replicaset. Where they
    disagree, the aggregator uses one of the ids for the replicaset, and `ids` maps the source's own id to it.

    Args:
        ids: The source's replica id → the replicaset's, where the two differ.
        replica_id: The instance's id in the replicaset.
    """
    own = next((own_id for own_id, other in ids.items() if other == replica_id), None)
    if own is not None:
        return own
    return None if replica_id in ids or replica_id >= VCLOCK_MAX else replica_id
