"""Finds the DELETEs of vshard's garbage collector: those whose tuple is in a bucket that the replicaset had sent away.

Pure. Only where buckets are being collected, and only for the keys of these rows. Not here: what is marked, and where
(`pipeline.changelog.moves`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.changelog.moves import COLLECTED, ShardPlan, bucket_keys
from pipeline.changelog.rows import DELETED, INSERT, REPLACE, UPSERT
from pipeline.reduce.base import KeyedRows
from pipeline.reduce.reduce_plan import ReducePlan
from schemas.vshard import COLLECTED_IN
from udfs.buffers import as_array
from udfs.versions.kernels.lives import PRESENT

Int64s = NDArray[np.int64]


def collected_rows(
    keyed: KeyedRows, entries: pa.Table, plan: ReducePlan, shards: ShardPlan | None
) -> pa.Table:
    """Return the rows that the garbage collector made, as `COLLECTED`.

    Parameters
    ----------
    keyed : KeyedRows
    entries : pyarrow.Table
        `pipeline.reduce.versions.ENTRIES`: the versions before the batch.
    plan : ReducePlan
    shards : ShardPlan or None

    """
    events = as_array(keyed.rows["bucket_events"])
    if shards is None or events.null_count == len(events):
        return COLLECTED.empty_table()
    ids = keyed.groups.ids
    asked = np.unique(ids[events.is_valid().to_numpy(zero_copy_only=False)])
    rows = np.flatnonzero(np.isin(ids, asked[asked >= 0]))
    rows = rows[np.argsort(ids[rows], kind="stable")]
    replicasets = plan.replicasets[plan.slot_lineages[keyed.slots[rows]]]
    found = []
    for row, replicaset, bucket, count in _with_buckets(keyed, entries, rows, replicasets, plan, shards):
        moves = shards.moves.get(replicaset)
        if moves is not None and moves.state(bucket, count) in COLLECTED_IN:
            found.append((row, replicaset))
    places = pa.array([row for row, _ in found], pa.int64())
    return pa.Table.from_arrays(
        [
            pa.array([replicaset for _, replicaset in found], pa.int32()),
            as_array(keyed.rows["global_id"]).take(places),
            as_array(keyed.rows["lsn"]).take(places),
        ],
        schema=COLLECTED,
    )


def _with_buckets(
    keyed: KeyedRows,
    entries: pa.Table,
    rows: Int64s,
    replicasets: NDArray[np.int32],
    plan: ReducePlan,
    shards: ShardPlan,
) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield each DELETE with its replicaset, the bucket of the tuple that it finds, and how far `_bucket` was then.

    Parameters
    ----------
    rows : int64[n]
        Of some keys; each key's together, in the order of the log.
    replicasets : int32[n]

    """
    place = pa.array(rows)
    versions = plan.meanings.versions[keyed.rows["meaning"].to_numpy()[rows]]
    tuples = as_array(keyed.rows["tuple"]).take(place)
    own = bucket_keys(tuples, shards.fields, pa.array(versions)).to_pylist()
    events = as_array(keyed.rows["bucket_events"]).take(place).to_pylist()
    keys = as_array(keyed.rows["key"]).take(place).to_pylist()
    types, ids = keyed.rows["type"].to_numpy()[rows], keyed.groups.ids[rows]
    lineages = plan.slot_lineages[keyed.slots[rows]]
    tables = plan.base_tables[lineages].tolist()
    places = zip(zip(tables, keys, strict=True), versions.tolist(), strict=True)
    before = _buckets_before(entries, shards, dict(places))
    bucket: bytes | None = None
    for i, row in enumerate(rows.tolist()):
        if i == 0 or ids[i] != ids[i - 1]:
            bucket = before.get((tables[i], int(replicasets[i]), keys[i]))
        if types[i] in (INSERT, REPLACE, UPSERT):
            bucket = own[i] if own[i] is not None else bucket
        elif types[i] == DELETED:
            if bucket is not None and events[i] is not None:
                yield row, int(replicasets[i]), bucket, events[i]
            bucket = None  # another DELETE finds nothing


def _buckets_before(
    entries: pa.Table, shards: ShardPlan, versions: dict[tuple[int, bytes], int]
) -> dict[tuple[int, int, bytes], bytes]:
    """Return the bucket of the tuple that each replicaset had under each key, by (table, replicaset id, key).

    Parameters
    ----------
    versions : dict of (int, bytes) to int
        Table and key to the schema version that says where the bucket's id is.

    """
    whole = entries.combine_chunks()
    if not whole.num_rows:
        return {}
    tables, keys = whole["table"].to_pylist(), as_array(whole["key"]).to_pylist()
    states = whole["state"].to_numpy()
    wanted = [i for i, key in enumerate(keys) if (tables[i], key) in versions and states[i] == PRESENT]
    tuples = as_array(whole["tuple"]).take(pa.array(wanted, pa.int64()))
    places = pa.array([versions[tables[i], keys[i]] for i in wanted], pa.int32())
    buckets = bucket_keys(tuples, shards.fields, places).to_pylist()
    replicasets = whole["replicaset_id"].to_pylist()
    return {
        (tables[i], replicasets[i], keys[i]): bucket
        for i, bucket in zip(wanted, buckets, strict=True)
        if bucket is not None
    }
