"""Finds the rows that vshard wrote to move a bucket: INSERTs at the destination, and DELETEs at the source.

Pure. A tuple that is inserted while its bucket is `receiving` came with the bucket; the row contains the bucket's id.
A DELETE contains only the key. vshard's garbage collector wrote it if the bucket of the deleted tuple was `sent` or
`garbage` at that position of the log. So each keyed DELETE gets the number of rows of `_bucket` before it; its bucket
is found later, when the tuple is known (`pipeline.bucket_moves`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.rows.position import LogPosition, first_row_index
from pipeline.plan.spaces.meanings import NO_TABLE, History
from pipeline.plan.spaces.vshard import ReplicasetBuckets
from schemas.space import KeyPart, Space
from schemas.states import RowMove
from schemas.vshard import COLLECTED_STATES, RECEIVING, is_bucket_space, shard_field
from udfs.keys.keys import KeyPlan, canonical_keys_with_plan, key_plan

COLLECTED = pa.schema([("replicaset_id", pa.int32()), ("global_id", pa.int64()), ("lsn", pa.int64())])
"""Rows of `_changelog` that vshard's garbage collector wrote, each identified by its instance and lsn."""

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BUCKET_ID_KEY = key_plan([Space(0, 0, "bucket", "memtx", primary_key=(KeyPart(0, "unsigned"),))])
_MOVING_STATES = COLLECTED_STATES | {RECEIVING}


@dataclass(frozen=True)
class BucketMoves:
    """The vshard buckets of one replicaset that are being moved during a batch. Picklable."""

    bucket_id_keys: KeyPlan
    """By schema version, how to read a tuple's bucket id: it is read as if it were the primary key. A space that is not
    sharded has no such key."""
    event_positions: tuple[LogPosition, ...]
    """Positions of the rows of `_bucket` in the batch, in log order."""
    states_by_bucket: Mapping[bytes, tuple[tuple[int, str | None], ...]]
    """By the bucket's id as a canonical key: pairs (n, the bucket's state after the first n rows of `_bucket`)."""

    def state_after(self, bucket_key: bytes, event_count: int) -> str | None:
        """Return a bucket's state after the first `event_count` rows of `_bucket`; None if it is not being moved."""
        known = self.states_by_bucket.get(bucket_key, ())
        index = bisect_right([since for since, _ in known], event_count) - 1
        return known[index][1] if index >= 0 else None

    @property
    def may_delete_tuples(self) -> bool:
        """Whether the garbage collector may have deleted tuples."""
        return any(
            state in COLLECTED_STATES for known in self.states_by_bucket.values() for _, state in known
        )

    @property
    def may_receive_tuples(self) -> bool:
        """Whether tuples may have come with a received bucket."""
        return any(state == RECEIVING for known in self.states_by_bucket.values() for _, state in known)


def bucket_keys(tuples: pa.Array, bucket_id_keys: KeyPlan, schema_versions: pa.Array) -> pa.Array:
    """Return the bucket id of each tuple as a canonical key; null for a tuple without one."""
    return canonical_keys_with_plan(tuples, bucket_id_keys, schema_versions, True).field("key")


def bucket_id_key_plan(history: History, field_indices: Mapping[int, Mapping[int, int]]) -> KeyPlan:
    """Return how to read the bucket id of a tuple as if it were the primary key, by schema version."""
    spaces = []
    for version in history.versions:
        index = field_indices.get(version.replicaset_id, {}).get(version.space.id)
        parts = () if index is None else (KeyPart(index, "unsigned"),)
        spaces.append(replace(version.space, primary_key=parts))
    return key_plan(spaces)


def keys_of_bucket_ids(bucket_ids: Sequence[int]) -> list[bytes]:
    """Return bucket ids as canonical keys, equal to those of `bucket_keys`."""
    packed = pa.array([msgpack.packb([bucket]) for bucket in bucket_ids], pa.binary())
    found: list[bytes] = canonical_keys_with_plan(packed, _BUCKET_ID_KEY, 0, False).field("key").to_pylist()
    return found


def bucket_moves(plan: BatchPlan) -> dict[int, BucketMoves]:
    """Return the buckets that are being moved in a batch, by replicaset id; replicasets without any are left out."""
    by_id = {plan.after.replicasets[uuid].id: one for uuid, one in plan.vshard_buckets.items() if one.is_used}
    if not by_id:
        return {}
    fields = bucket_id_key_plan(plan.history, {number: one.bucket_id_fields for number, one in by_id.items()})
    found = {}
    for number, one in by_id.items():
        states = _moving_states(one) if one.bucket_id_fields else {}
        if states:
            found[number] = BucketMoves(fields, tuple(event.position for event in one.events), states)
    return found


def _moving_states(buckets: ReplicasetBuckets) -> dict[bytes, tuple[tuple[int, str | None], ...]]:
    known: dict[int, list[tuple[int, str | None]]] = {}
    for bucket, before in buckets.before.items():
        if before.status in _MOVING_STATES:
            known[bucket] = [(0, before.status)]
    moving = {event.bucket_id for event in buckets.events if event.status in _MOVING_STATES} | known.keys()
    for number, event in enumerate(buckets.events, start=1):
        if event.bucket_id in moving:
            known.setdefault(event.bucket_id, []).append((number, event.status))
    return dict(zip(keys_of_bucket_ids(list(known)), map(tuple, known.values()), strict=True))


def bucket_events_before(moves: BucketMoves | None, segment: int, positions: Int64s, rows: Int64s) -> Int32s:
    """Return, for each of consecutive rows of a segment, the number of rows of `_bucket` before it."""
    found = np.zeros(len(positions), np.int32)
    for position in moves.event_positions if moves is not None else ():
        found[first_row_index(position, segment, positions, rows) :] += 1
    return found


def bucket_events_column(event_counts: Int32s, is_delete: Flags, moves: BucketMoves | None) -> pa.Array:
    """Return the column `bucket_events` of keyed rows: set for DELETEs that the garbage collector may have made."""
    if moves is None or not moves.may_delete_tuples:
        return pa.nulls(len(event_counts), pa.int32())
    return pa.array(event_counts, pa.int32(), mask=~is_delete)


def moved_column(
    tuples: pa.Array,
    schema_versions: Int32s,
    event_counts: Int32s,
    has_tuple: Flags,
    moves: BucketMoves,
) -> pa.Array:
    """Return the column `moved` of `_changelog`: `received` for rows that vshard wrote when it received a bucket.

    Args:
        event_counts: For each row, the number of rows of `_bucket` before it (`bucket_events_before`; int32[n]).
        has_tuple: Whether a row has a complete tuple (bool[n]); others are never `received`.
    """
    nothing = pa.nulls(len(schema_versions), pa.string())
    about = np.flatnonzero(has_tuple & (schema_versions != NO_TABLE))
    if not moves.may_receive_tuples or not len(about):
        return nothing
    result = np.zeros(len(schema_versions), np.bool_)
    index = pa.array(about)
    keys = bucket_keys(tuples.take(index), moves.bucket_id_keys, pa.array(schema_versions[about]))
    coded = keys.dictionary_encode()
    numbers = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for number, name in enumerate(coded.dictionary.to_pylist()):
        own = about[numbers == number]
        states = moves.states_by_bucket.get(name, ())
        for i, (since, state) in enumerate(states):
            if state == RECEIVING:
                until = states[i + 1][0] if i + 1 < len(states) else np.iinfo(np.int32).max
                result[own[(event_counts[own] >= since) & (event_counts[own] < until)]] = True
    return pc.if_else(pa.array(result), pa.scalar(RowMove.RECEIVED), nothing)


@dataclass(frozen=True)
class ShardPlan:
    """vshard's buckets as the tasks of a batch need them. Picklable."""

    moves_by_replicaset: Mapping[int, BucketMoves]
    storage_ids: frozenset[int]
    bucket_id_keys: KeyPlan
    """As `BucketMoves.bucket_id_keys`."""
    doubled_pairs: Mapping[bytes, frozenset[tuple[int, int]]]
    """By the bucket's id as a canonical key: pairs of ids of replicasets in both of which the bucket is active
    (doubled: see `pipeline.plan.spaces.vshard`), the lower id first."""
    version_by_table: Mapping[str, int]
    """For each table of a sharded space, the number of a schema version for which `bucket_id_keys` reads the bucket's
    id."""
    bucket_tables: frozenset[str]


def _doubled_pairs(buckets: Iterable[tuple[int, Sequence[int]]]) -> frozenset[tuple[int, int]]:
    """Return pairs of replicaset ids, the lower one first, from (id, ids with which it has one bucket doubled)."""
    return frozenset((min(one, other), max(one, other)) for one, others in buckets for other in others)


def shard_plan(plan: BatchPlan) -> ShardPlan | None:
    """Return vshard's buckets as the tasks of a batch need them; None if no replicaset is a storage of vshard."""
    storages = {one.id: one for one in plan.after.replicasets.values() if one.buckets}
    moves = bucket_moves(plan)
    if not storages and not moves:
        return None
    fields = {
        one.id: {
            i: index
            for i, rows in one.spaces.items()
            if (index := shard_field(rows.indexes.values())) is not None
        }
        for one in plan.after.replicasets.values()
    }
    doubled: dict[int, list[tuple[int, Sequence[int]]]] = {}
    for number, one in storages.items():
        for bucket, known in one.buckets.items():
            if known.doubled_with:
                doubled.setdefault(bucket, []).append((number, sorted(known.doubled_with)))
    versions, bucket_tables = {}, set()
    for number, version in enumerate(plan.history.versions):
        if version.space.id in fields.get(version.replicaset_id, {}):
            versions[version.table] = number
        elif is_bucket_space(version.space):
            bucket_tables.add(version.table)
    return ShardPlan(
        moves,
        frozenset(storages) | moves.keys(),
        bucket_id_key_plan(plan.history, fields),
        dict(zip(keys_of_bucket_ids(list(doubled)), map(_doubled_pairs, doubled.values()), strict=True)),
        versions,
        frozenset(bucket_tables),
    )
