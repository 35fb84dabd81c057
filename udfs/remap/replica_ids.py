"""Maps replica ids to global ids, by a source's applier map, in Arrow columns.

A replica id is unique only in its replicaset. A source's applier map says which instance a replica id means from which
lsn on; `_cluster` gives each instance one global id. Rows are remapped without a join and without a Python object per
row: in a batch by `remap_runs_udf`, one call for a piece of a log; in a user's queries over `format("xlog")` by
`global_id_udf`. `warehouse.system_tables.applier_map` stores the maps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql.types import ArrayType, IntegerType, LongType, StructField, StructType

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

    It is `UNKNOWN_INSTANCE` if the replica id (0 or less: the row has none) is in no map, or the row is older than its
    first entry. Entries of one replica id are in the order of `since_lsn`.
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


class IdRuns(NamedTuple):
    """Runs of rows, in order: each has rows of one replica id with consecutive lsns."""

    replica_ids: NDArray[np.int32]
    """0 or less for rows without one; their lsns may be any."""
    first_lsns: NDArray[np.int64]
    row_counts: NDArray[np.int32]


def id_runs(replica_ids: NDArray[np.int32], lsns: NDArray[np.int64]) -> IdRuns:
    """Divide rows into runs."""
    if not len(replica_ids):
        return IdRuns(replica_ids, lsns, np.zeros(0, np.int32))
    is_next = (np.diff(lsns) == 1) | (replica_ids[1:] <= 0)
    starts = np.flatnonzero(np.concatenate(([True], (np.diff(replica_ids) != 0) | ~is_next)))
    counts = np.diff(np.concatenate((starts, [len(replica_ids)]))).astype(np.int32)
    return IdRuns(replica_ids[starts], lsns[starts], counts)


def remap_runs(runs: IdRuns, entries: Sequence[IdEntry]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return runs of rows of one instance: the global id, and the number of rows, of each."""
    last_lsns = runs.first_lsns + runs.row_counts - 1
    for entry in entries:
        own = runs.replica_ids == entry.replica_id
        if np.any(own & (runs.first_lsns < entry.since_lsn) & (entry.since_lsn <= last_lsns)):
            break
    else:
        return remap_rows(runs.replica_ids, runs.first_lsns, entries), runs.row_counts
    # The id passes to another instance inside a run.
    begins = np.repeat(np.cumsum(runs.row_counts) - runs.row_counts, runs.row_counts)
    lsns = np.repeat(runs.first_lsns, runs.row_counts) + np.arange(len(begins)) - begins
    found = remap_rows(np.repeat(runs.replica_ids, runs.row_counts), lsns, entries)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(found) != 0)))
    return found[starts], np.diff(np.concatenate((starts, [len(found)]))).astype(np.int32)


RUNS = pa.list_(pa.struct([("replica_id", pa.int32()), ("first_lsn", pa.int64()), ("rows", pa.int32())]))
"""The Arrow type of a list of runs (`IdRuns`)."""

RUNS_IN_SPARK = "array<struct<replica_id: int, first_lsn: bigint, rows: int>>"
"""`RUNS` in Spark's notation."""


def remap_runs_udf(entries: Mapping[int, Sequence[IdEntry]]) -> Callable[[Column, Column], Column]:
    """Return an Arrow UDF `(segment int, RUNS_IN_SPARK) → array<struct<global_id bigint, rows int>>`: `remap_runs`."""

    def remapped(segment: pa.Array, runs: pa.Array) -> pa.Array:
        found = [
            remap_runs(_runs_of(one.values), entries[number])
            if one.is_valid
            else (np.zeros(0, np.int64), np.zeros(0, np.int32))
            for number, one in zip(segment.to_pylist(), runs, strict=True)
        ]
        ends = np.cumsum([0, *(len(ids) for ids, _ in found)], dtype=np.int32)
        columns = [pa.array(np.concatenate([one[i] for one in found])) for i in (0, 1)]
        values = pa.StructArray.from_arrays(columns, ["global_id", "rows"])
        return pa.ListArray.from_arrays(pa.array(ends), values, mask=pc.is_null(runs))

    fields = [StructField("global_id", LongType()), StructField("rows", IntegerType())]
    return arrow_column_function(remapped, ArrayType(StructType(fields)))


def _runs_of(values: pa.StructArray) -> IdRuns:
    return IdRuns(*(values.field(name).to_numpy() for name in ("replica_id", "first_lsn", "rows")))


def replica_id_in_source(ids: Mapping[int, int], replica_id: int) -> int | None:
    """Return the replica id that a source uses for an instance; None if the source has no id for it.

    The `_cluster` of a source normally has the same ids as that of the other sources of its replicaset. Where they
    disagree, the aggregator uses one of the ids for the replicaset, and `ids` maps the source's own id to it.
    """
    own = next((own_id for own_id, other in ids.items() if other == replica_id), None)
    if own is not None:
        return own
    return None if replica_id in ids or replica_id >= VCLOCK_MAX else replica_id
