"""Finds which DELETEs and which conflicts come from moves of vshard's buckets between replicasets. Pure.

In a sharded cluster a client writes a key only in the replicaset that has its bucket of vshard. Two versions are a
conflict only if the bucket is active in two replicasets at once and the tuples differ. `before_replace` reports each
decision as a conflict; `without_move_conflicts` removes the conflicts that only come from a move of a bucket.

vshard's garbage collector deletes the tuples of a bucket that its replicaset has sent away. `find_collected_rows` finds
these DELETEs; `pipeline.changelog.moves` marks the other rows of moves.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.keyed_rows import ACTIONS, DELETED, UPSERT
from pipeline.changelog.moves import COLLECTED, ShardPlan, bucket_keys
from pipeline.lookup.reduce_plan import ReducePlan
from pipeline.lookup.requests import KeyedRows
from schemas.row_types import RowAction
from schemas.vshard import COLLECTED_STATES
from udfs.buffers import as_array
from udfs.versions.kernels.lives import PRESENT

Int64s = NDArray[np.int64]


def find_collected_rows(
    keyed: KeyedRows, base_versions: pa.Table, plan: ReducePlan, shards: ShardPlan
) -> pa.Table:
    """Return the DELETEs that vshard's garbage collector wrote, as `pipeline.changelog.moves.COLLECTED`."""
    events = as_array(keyed.rows["bucket_events"])
    if events.null_count == len(events):
        return COLLECTED.empty_table()
    ids = keyed.groups.group_numbers
    candidates = np.unique(ids[events.is_valid().to_numpy(zero_copy_only=False)])
    rows = np.flatnonzero(np.isin(ids, candidates[candidates >= 0]))
    rows = rows[np.argsort(ids[rows], kind="stable")]
    replicasets = plan.lineage_replicasets[plan.slot_lineages[keyed.slots[rows]]]
    found = []
    for row, replicaset, bucket, count in _deletes_with_buckets(
        keyed, base_versions, rows, replicasets, plan, shards
    ):
        moves = shards.moves_by_replicaset.get(replicaset)
        if moves is not None and moves.state_after(bucket, count) in COLLECTED_STATES:
            found.append((row, replicaset))
    indices = pa.array([row for row, _ in found], pa.int64())
    return pa.Table.from_arrays(
        [
            pa.array([replicaset for _, replicaset in found], pa.int32()),
            as_array(keyed.rows["global_id"]).take(indices),
            as_array(keyed.rows["lsn"]).take(indices),
        ],
        schema=COLLECTED,
    )


def _deletes_with_buckets(
    keyed: KeyedRows,
    base_versions: pa.Table,
    rows: Int64s,
    replicasets: NDArray[np.int32],
    plan: ReducePlan,
    shards: ShardPlan,
) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield (row, replicaset id, bucket id as MessagePack, `bucket_events`) of each DELETE of a tuple with a bucket id.

    `rows` are the indices of rows, sorted by key; the rows of a key are in log order.
    """
    index = pa.array(rows)
    versions = plan.meanings.versions[keyed.rows["meaning"].to_numpy()[rows]]
    tuples = as_array(keyed.rows["tuple"]).take(index)
    own = bucket_keys(tuples, shards.bucket_id_keys, pa.array(versions)).to_pylist()
    events = as_array(keyed.rows["bucket_events"]).take(index).to_pylist()
    keys = as_array(keyed.rows["key"]).take(index).to_pylist()
    types, ids = keyed.rows["type"].to_numpy()[rows], keyed.groups.group_numbers[rows]
    lineages = plan.slot_lineages[keyed.slots[rows]]
    tables = plan.base_tables[lineages].tolist()
    keys_with_versions = zip(zip(tables, keys, strict=True), versions.tolist(), strict=True)
    before = _bucket_ids_before_batch(base_versions, shards, dict(keys_with_versions))
    bucket: bytes | None = None
    for i, row in enumerate(rows.tolist()):
        if i == 0 or ids[i] != ids[i - 1]:
            bucket = before.get((tables[i], int(replicasets[i]), keys[i]))
        if ACTIONS[types[i]] == RowAction.PUT or types[i] == UPSERT:
            bucket = own[i] if own[i] is not None else bucket
        elif types[i] == DELETED:
            if bucket is not None and events[i] is not None:
                yield row, int(replicasets[i]), bucket, events[i]
            bucket = None  # the next DELETE of the key has no tuple to delete


def _bucket_ids_before_batch(
    base_versions: pa.Table, shards: ShardPlan, schema_versions: dict[tuple[int, bytes], int]
) -> dict[tuple[int, int, bytes], bytes]:
    """Return the bucket id (MessagePack) in each replicaset's tuple of a key, as it was before the batch.

    The result is by (table number, replicaset id, key), and has only present tuples with a bucket id.
    """
    whole = base_versions.combine_chunks()
    if not whole.num_rows:
        return {}
    tables, keys = whole["table"].to_pylist(), as_array(whole["key"]).to_pylist()
    states = whole["state"].to_numpy()
    present = [
        i for i, key in enumerate(keys) if (tables[i], key) in schema_versions and states[i] == PRESENT
    ]
    tuples = as_array(whole["tuple"]).take(pa.array(present, pa.int64()))
    indices = pa.array([schema_versions[tables[i], keys[i]] for i in present], pa.int32())
    buckets = bucket_keys(tuples, shards.bucket_id_keys, indices).to_pylist()
    replicasets = whole["replicaset_id"].to_pylist()
    return {
        (tables[i], replicasets[i], keys[i]): bucket
        for i, bucket in zip(present, buckets, strict=True)
        if bucket is not None
    }


def without_move_conflicts(conflicts: pa.Table, shards: ShardPlan) -> pa.Table:
    """Return the conflicts, except those that only come from a move of a bucket between replicasets."""
    if not conflicts.num_rows:
        return conflicts
    whole = conflicts.combine_chunks()
    spaces = whole["space"].to_pylist()
    winners = np.abs(as_array(whole["winner_replicaset_id"]).fill_null(0).to_numpy(zero_copy_only=False))
    losers = as_array(whole["loser_replicaset_id"]).fill_null(0).to_numpy(zero_copy_only=False)
    versions = pa.array([shards.version_by_table.get(space, -1) for space in spaces], pa.int32())
    stays = ~np.isin(spaces, list(shards.bucket_tables))
    equal = pc.equal(as_array(whole["winner_tuple"]), as_array(whole["loser_tuple"]))
    differs = ~equal.fill_null(False).to_numpy(zero_copy_only=False)
    about = np.flatnonzero(stays & (np.asarray(versions) >= 0))
    if len(about):
        index = pa.array(about)
        tuples = pc.coalesce(as_array(whole["loser_tuple"]), as_array(whole["winner_tuple"])).take(index)
        buckets = bucket_keys(tuples, shards.bucket_id_keys, versions.take(index)).to_pylist()
        for i, bucket in zip(about.tolist(), buckets, strict=True):
            pair = (min(int(winners[i]), int(losers[i])), max(int(winners[i]), int(losers[i])))
            is_of_vshard = bool(shards.storage_ids & set(pair))
            is_doubled = pair in shards.doubled_pairs.get(bucket or b"", ())
            stays[i] = not is_of_vshard or (is_doubled and differs[i])
    return whole.filter(pa.array(stays))
