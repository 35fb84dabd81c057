"""Decisions that are no conflicts: a key has versions in two replicasets because vshard moves its bucket. Pure.

In a sharded cluster a client writes a key in the one replicaset that holds its bucket. Two versions of it are a
conflict only where two replicasets hold the bucket as active at once, and the tuples differ.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.moves import ShardPlan, bucket_keys
from udfs.buffers import as_array


def without_moves(conflicts: pa.Table, shards: ShardPlan) -> pa.Table:
    """Return the decisions that are conflicts.

    Parameters
    ----------
    conflicts : pyarrow.Table
        `pipeline.resolve.records.CONFLICTS_ARROW`.
    shards : ShardPlan

    """
    if not conflicts.num_rows:
        return conflicts
    whole = conflicts.combine_chunks()
    spaces = whole["space"].to_pylist()
    winners = np.abs(as_array(whole["winner_replicaset_id"]).fill_null(0).to_numpy(zero_copy_only=False))
    losers = as_array(whole["loser_replicaset_id"]).fill_null(0).to_numpy(zero_copy_only=False)
    versions = pa.array([shards.versions.get(space, -1) for space in spaces], pa.int32())
    stays = ~np.isin(spaces, list(shards.bucket_tables))
    equal = pc.equal(as_array(whole["winner_tuple"]), as_array(whole["loser_tuple"]))
    differs = ~equal.fill_null(False).to_numpy(zero_copy_only=False)
    about = np.flatnonzero(stays & (np.asarray(versions) >= 0))
    if len(about):
        place = pa.array(about)
        tuples = pc.coalesce(as_array(whole["loser_tuple"]), as_array(whole["winner_tuple"])).take(place)
        buckets = bucket_keys(tuples, shards.fields, versions.take(place)).to_pylist()
        for i, bucket in zip(about.tolist(), buckets, strict=True):
            pair = (min(int(winners[i]), int(losers[i])), max(int(winners[i]), int(losers[i])))
            is_of_vshard = bool(shards.storages & set(pair))
            is_doubled = pair in shards.doubled.get(bucket or b"", ())
            stays[i] = not is_of_vshard or (is_doubled and differs[i])
    return whole.filter(pa.array(stays))
