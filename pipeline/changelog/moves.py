"""Which rows of the log vshard's rebalancer made: those of a bucket that is received, and those that are collected.

Pure. A tuple that is inserted while its bucket is `receiving` was moved here: its row says the bucket. A DELETE says
only the key; it was made by the garbage collector where the bucket of the tuple that it deletes was `sent` or `garbage`
at that place of the log. So a keyed DELETE is marked with how many rows of `_bucket` came before it, and the bucket is
found where the tuple is known (`pipeline.bucket`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.plan.history import NO_TABLE, History
from pipeline.plan.plan import BatchPlan
from pipeline.plan.position import LogPosition, first_row_index
from pipeline.plan.vshard import ReplicasetBuckets
from schemas.space import KeyPart, Space
from schemas.states import RowMove
from schemas.vshard import COLLECTED_IN, RECEIVING, is_bucket_space, shard_field
from udfs.keys.keys import KeyPlan, canonical_keys_by, key_plan

COLLECTED = pa.schema([("replicaset_id", pa.int32()), ("global_id", pa.int64()), ("lsn", pa.int64())])
"""Rows of `_changelog` that the garbage collector made."""

NO_EVENTS = -1
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]

_ID = key_plan([Space(0, 0, "bucket", "memtx", primary_key=(KeyPart(0, "unsigned"),))])
_MOVING = COLLECTED_IN | {RECEIVING}


@dataclass(frozen=True)
class BucketMoves:
    """The vshard buckets of one replicaset that are being moved during a batch. Picklable.

    Parameters
    ----------
    fields : KeyPlan
        The bucket's id as a key, by schema version; of a space that is not sharded there is none.
    places : tuple of LogPosition
        Positions of the rows of `_bucket`, in the order of the log.
    states : mapping of bytes to tuple of (int, str or None)
        By the bucket's id as a canonical key: pairs of a number of these rows and the bucket's state after them.

    """

    fields: KeyPlan
    places: tuple[LogPosition, ...]
    states: Mapping[bytes, tuple[tuple[int, str | None], ...]]

    def state(self, bucket: bytes, events: int) -> str | None:
        """Return the state of a bucket behind so many rows of `_bucket`; None where it is not on the way."""
        known = self.states.get(bucket, ())
        place = bisect_right([since for since, _ in known], events) - 1
        return known[place][1] if place >= 0 else None

    @property
    def collects(self) -> bool:
        """Whether tuples may be deleted by the garbage collector."""
        return any(state in COLLECTED_IN for known in self.states.values() for _, state in known)

    @property
    def receives(self) -> bool:
        """Whether tuples may be received."""
        return any(state == RECEIVING for known in self.states.values() for _, state in known)


def bucket_keys(data: pa.Array, fields: KeyPlan, versions: pa.Array) -> pa.Array:
    """Return the buckets' ids of tuples as canonical keys; null where a tuple has none."""
    return canonical_keys_by(data, fields, versions, True).field("key")


def bucket_fields(history: History, shards: Mapping[int, Mapping[int, int]]) -> KeyPlan:
    """Return the bucket's id as a key, by schema version.

    Parameters
    ----------
    history : History
    shards : mapping of int to mapping of int to int
        By replicaset id: sharded space's id to its field with the bucket's id.

    """
    spaces = []
    for version in history.versions:
        place = shards.get(version.replicaset_id, {}).get(version.space.id)
        parts = () if place is None else (KeyPart(place, "unsigned"),)
        spaces.append(replace(version.space, primary_key=parts))
    return key_plan(spaces)


def keys_of(buckets: Sequence[int]) -> list[bytes]:
    """Return buckets' ids as canonical keys, as `bucket_keys` gives them."""
    packed = pa.array([msgpack.packb([bucket]) for bucket in buckets], pa.binary())
    found: list[bytes] = canonical_keys_by(packed, _ID, 0, False).field("key").to_pylist()
    return found


def moves_of(plan: BatchPlan) -> dict[int, BucketMoves]:
    """Return the buckets on the way in a batch, by replicaset id; a replicaset without one is left out."""
    by_id = {plan.after.replicasets[uuid].id: one for uuid, one in plan.vshard_buckets.items() if one.is_used}
    if not by_id:
        return {}
    fields = bucket_fields(plan.history, {number: one.fields for number, one in by_id.items()})
    found = {}
    for number, one in by_id.items():
        states = _states(one) if one.fields else {}
        if states:
            found[number] = BucketMoves(fields, tuple(event.position for event in one.events), states)
    return found


def _states(shards: ReplicasetBuckets) -> dict[bytes, tuple[tuple[int, str | None], ...]]:
    known: dict[int, list[tuple[int, str | None]]] = {}
    for bucket, before in shards.before.items():
        if before.status in _MOVING:
            known[bucket] = [(0, before.status)]
    moving = {event.bucket for event in shards.events if event.status in _MOVING} | known.keys()
    for number, event in enumerate(shards.events, start=1):
        if event.bucket in moving:
            known.setdefault(event.bucket, []).append((number, event.status))
    return dict(zip(keys_of(list(known)), map(tuple, known.values()), strict=True))


def events_before(moves: BucketMoves | None, segment: int, positions: Int64s, rows: Int64s) -> Int32s:
    """Return how many rows of `_bucket` come before each of some consecutive rows of a segment."""
    found = np.zeros(len(positions), np.int32)
    for place in moves.places if moves is not None else ():
        found[first_row_index(place, segment, positions, rows) :] += 1
    return found


def collector_events(events: Int32s, is_delete: Flags, moves: BucketMoves | None) -> pa.Array:
    """Return the column `bucket_events` of keyed rows: of DELETEs that the garbage collector may have made."""
    if moves is None or not moves.collects:
        return pa.nulls(len(events), pa.int32())
    return pa.array(events, pa.int32(), mask=~is_delete)


def moved_column(
    tuples: pa.Array, versions: Int32s, events: Int32s, wanted: Flags, moves: BucketMoves | None
) -> pa.Array:
    """Return the column `moved` of `_changelog`: `received` for rows that vshard wrote to move a bucket here.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
    versions : int32[n]
        Schema version of each row, `NO_TABLE` where it has none.
    events : int32[n]
        As `events_before` returns them.
    wanted : bool[n]
        Whether a row can be such a row: it has a complete tuple.
    moves : BucketMoves or None

    """
    nothing = pa.nulls(len(versions), pa.string())
    about = np.flatnonzero(wanted & (versions != NO_TABLE))
    if moves is None or not moves.receives or not len(about):
        return nothing
    result = np.zeros(len(versions), np.bool_)
    place = pa.array(about)
    keys = bucket_keys(tuples.take(place), moves.fields, pa.array(versions[about]))
    names, numbers = _coded(keys)
    for number, name in enumerate(names):
        own = about[numbers == number]
        states = moves.states.get(name, ())
        for i, (since, state) in enumerate(states):
            if state == RECEIVING:
                until = states[i + 1][0] if i + 1 < len(states) else np.iinfo(np.int32).max
                result[own[(events[own] >= since) & (events[own] < until)]] = True
    return pc.if_else(pa.array(result), pa.scalar(RowMove.RECEIVED), nothing)


def _coded(keys: pa.Array) -> tuple[list[bytes], Int64s]:
    coded = keys.dictionary_encode()
    numbers: Int64s = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return coded.dictionary.to_pylist(), numbers


@dataclass(frozen=True)
class ShardPlan:
    """vshard's buckets as the tasks of a batch need them. Picklable.

    Parameters
    ----------
    moves : mapping of int to BucketMoves
        By replicaset id.
    storages : frozenset of int
        Replicasets that are storages of vshard.
    fields : KeyPlan
        As `BucketMoves.fields`.
    doubled : mapping of bytes to frozenset of (int, int)
        By the bucket's id as a canonical key: pairs of replicasets that hold it at once, the lower id first.
    versions : mapping of str to int
        Table of a sharded space to a schema version that says where the bucket's id is.
    bucket_tables : frozenset of str
        Tables of vshard's `_bucket`.

    """

    moves: Mapping[int, BucketMoves]
    storages: frozenset[int]
    fields: KeyPlan
    doubled: Mapping[bytes, frozenset[tuple[int, int]]]
    versions: Mapping[str, int]
    bucket_tables: frozenset[str]


def pairs_of(buckets: Iterable[tuple[int, Sequence[int]]]) -> frozenset[tuple[int, int]]:
    """Return pairs of replicasets, the lower id first, of each one with those that hold a bucket at the same time."""
    return frozenset((min(one, other), max(one, other)) for one, others in buckets for other in others)


def shard_plan(plan: BatchPlan) -> ShardPlan | None:
    """Return vshard's buckets as the tasks of a batch need them; None where no replicaset is a storage of vshard."""
    storages = {one.id: one for one in plan.after.replicasets.values() if one.buckets}
    moves = moves_of(plan)
    if not storages and not moves:
        return None
    fields = {
        one.id: {
            i: place
            for i, rows in one.spaces.items()
            if (place := shard_field(rows.indexes.values())) is not None
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
        bucket_fields(plan.history, fields),
        dict(zip(keys_of(list(doubled)), map(pairs_of, doubled.values()), strict=True)),
        versions,
        frozenset(bucket_tables),
    )
