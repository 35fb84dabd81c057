"""Turns keyed rows into rows of tables, for all keys of a batch or for those of one partition.

    keyed rows → lookup of base versions → reduce → resolve → encode

The local executor calls `process_partition` once, the distributed one in a task for each partition
(`pipeline.key_ranges`). The base version of a key is the version that a replicaset had before the batch.

In a sharded cluster a client writes a key only in the replicaset that has its bucket of vshard. Two versions are a
conflict only if the bucket is active in two replicasets at once and the tuples differ. `before_replace` reports each
decision as a conflict; `without_move_conflicts` removes the conflicts that only come from a move of a bucket.

vshard's garbage collector deletes the tuples of a bucket that its replicaset has sent away. `find_collected_rows` finds
these DELETEs; `pipeline.changelog.moves` marks the other rows of moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.keyed_rows import DELETED, INSERT, REPLACE, UPSERT
from pipeline.changelog.moves import COLLECTED, ShardPlan, bucket_keys, shard_plan
from pipeline.encode.columns import TableEncoding, encode, encoding_of
from pipeline.key_ranges import PartitionKeys
from pipeline.plan.batch_plan import BatchPlan
from pipeline.reduce.base import KeyedRows, base_requests, further_base_requests, group_keyed_rows
from pipeline.reduce.reduce import reduce
from pipeline.reduce.reduce_plan import ReducePlan, reduce_plan
from pipeline.reduce.versions import BASE_VERSIONS
from pipeline.resolve.records import quarantine_rows, version_rows
from pipeline.resolve.resolve import PUTS, Resolved, resolve
from pipeline.resolve.resolve_plan import ResolvePlan, resolve_plan
from pipeline.write.lookup import (
    BaseFiles,
    FileRef,
    FoundVersions,
    KeyRangeCache,
    find_versions,
    join_found_versions,
)
from schemas.errors import UnsupportedError
from schemas.vshard import COLLECTED_STATES
from udfs.buffers import as_array
from udfs.versions.kernels.lives import PRESENT, UNFIT

Int64s = NDArray[np.int64]


def find_collected_rows(
    keyed: KeyedRows, base_versions: pa.Table, plan: ReducePlan, shards: ShardPlan | None
) -> pa.Table:
    """Return the DELETEs that vshard's garbage collector wrote, as `pipeline.changelog.moves.COLLECTED`.

    Args:
        base_versions: `pipeline.reduce.versions.BASE_VERSIONS`.
        shards: vshard's buckets; None if no replicaset is a storage of vshard.
    """
    events = as_array(keyed.rows["bucket_events"])
    if shards is None or events.null_count == len(events):
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

    Args:
        rows: Indices of rows, sorted by key (int64[n]); the rows of a key are in log order.
        replicasets: The replicaset id of each row (int32[n]).
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
        if types[i] in (INSERT, REPLACE, UPSERT):
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

    Args:
        schema_versions: By (table number, key): the number of a schema version; by it, `ShardPlan.bucket_id_keys` has
            the field with the bucket id.
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
    """Return the conflicts, except those that only come from a move of a bucket between replicasets.

    Args:
        conflicts: `pipeline.resolve.records.CONFLICTS_ARROW`.
    """
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


MAX_COLUMN_BYTES = 2**31 - 1
"""The maximum size of a binary column in the rows that are reduced at once."""


@dataclass(frozen=True)
class PartitionPlan:
    """The parts of a batch's plan that `process_partition` needs. Picklable."""

    reduce: ReducePlan
    resolve: ResolvePlan
    encodings: tuple[TableEncoding, ...]
    """By table number."""
    shards: ShardPlan | None = None
    """vshard's buckets; None if no replicaset is a storage of vshard."""


def partition_plan(plan: BatchPlan) -> PartitionPlan:
    """Return the parts of a batch's plan that `process_partition` needs."""
    encodings = tuple(encoding_of(table) for table in plan.tables.values())
    return PartitionPlan(reduce_plan(plan), resolve_plan(plan), encodings, shard_plan(plan))


@dataclass(frozen=True)
class PartitionResult:
    """The changes of all tables for the keys of one partition."""

    rows_by_table: Mapping[int, pa.Table]
    """New rows of the exact tables, by table number: the table's index in the batch's plan."""
    removed: Mapping[FileRef, NDArray[np.int64]]
    """For each file of a table, the numbers of the rows to remove."""
    removed_keys: Mapping[int, pa.Array]
    """The keys of the removed rows, by table number."""
    versions: pa.Table
    conflicts: pa.Table
    quarantine: pa.Table
    """New rows of the system tables."""
    key_errors: pa.Table
    """Versions without a valid value of the changed primary key, as `pipeline.changelog.keyed_rows.KEY_ERRORS`."""
    writers: frozenset[tuple[int, int]]
    """(table number, replicaset id) of each changed version: which replicasets wrote to which tables."""
    unfit_tables: frozenset[int]
    """Numbers of the tables with a new unfit version (`pipeline.reduce.versions`): its tuple is not known, or was left
    out of the table because a value does not fit its column.
    """
    collected_rows: pa.Table = field(default_factory=COLLECTED.empty_table)
    """The DELETEs that vshard's garbage collector wrote: `pipeline.changelog.moves.COLLECTED`."""


def process_partition(
    keyed: pa.Table,
    plan: PartitionPlan,
    files: BaseFiles,
    cache: KeyRangeCache,
    partition_keys: PartitionKeys | None = None,
) -> PartitionResult:
    """Compute the changes of all tables from the keyed rows of a partition.

    Args:
        keyed: `pipeline.changelog.keyed_rows.KEYED`; each replicaset's rows in log order.
        files: The files with the base versions.
        partition_keys: The keys of the partition; all keys by default.
    """
    _check_column_sizes(keyed)
    rows = group_keyed_rows(keyed, plan.reduce)
    requests = base_requests(rows, plan.reduce, partition_keys)
    found = (
        find_versions(requests, files, cache, partition_keys)
        if requests
        else FoundVersions(BASE_VERSIONS.empty_table(), [])
    )
    reduced = reduce(rows, found.base_versions, plan.reduce)
    more = further_base_requests(reduced.changes, requests, found.base_versions, plan.reduce)
    if more:
        found = join_found_versions([found, find_versions(more, files, cache, partition_keys)])
    resolved = resolve(reduced.changes, found.base_versions, plan.resolve)
    if plan.shards is not None:
        resolved = replace(resolved, conflicts=without_move_conflicts(resolved.conflicts, plan.shards))
    result = encode_result(resolved, reduced.key_errors, found.files, plan.encodings, plan.resolve)
    return replace(
        result, collected_rows=find_collected_rows(rows, found.base_versions, plan.reduce, plan.shards)
    )


def _check_column_sizes(keyed: pa.Table) -> None:
    """Raise UnsupportedError if a column has 2 GiB: it does not fit an Arrow array, whose offsets have 32 bits."""
    for column in keyed.schema:
        size = keyed[column.name].nbytes if pa.types.is_binary(column.type) else 0
        if size >= MAX_COLUMN_BYTES:
            raise UnsupportedError(
                f"rows of one batch that cannot be divided have {size} bytes of {column.name}",
                advice="the limit is 2 GiB: for one key's UPDATEs and UPSERTs in a batch, or local_bytes",
            )


def encode_result(
    resolved: Resolved,
    key_errors: pa.Table,
    files: Sequence[FileRef],
    encodings: Sequence[TableEncoding],
    plan: ResolvePlan,
) -> PartitionResult:
    """Encode the resolved rows in the columns of their tables; values that do not fit become rows of `_quarantine`."""
    tables: dict[int, pa.Table] = {}
    quarantine, versions, unfit = [resolved.quarantine], [resolved.versions], set(resolved.unfit_tables)
    for number, puts in split_by_table(resolved.puts).items():
        typed = encode(puts, encodings[number])
        if typed.rows.num_rows:
            tables[number] = typed.rows
        if typed.misfits.num_rows:
            name, set_aside = encodings[number].name, typed.left_out_rows
            quarantine.append(_misfit_quarantine(typed.misfits, name, plan.epoch))
            if set_aside.num_rows:
                unfit.add(number)
                versions.append(_misfit_versions(set_aside, name, plan))
    removed, keys = _removed_rows(resolved.removed_rows, files)
    return PartitionResult(
        tables,
        removed,
        keys,
        pa.concat_tables(versions),
        resolved.conflicts,
        pa.concat_tables(quarantine),
        key_errors,
        resolved.writers,
        frozenset(unfit),
    )


def split_by_table(rows: pa.Table) -> dict[int, pa.Table]:
    """Split rows by their column `table`, the table number."""
    numbers = rows["table"].to_numpy() if rows.num_rows else np.zeros(0, np.int32)
    distinct = np.unique(numbers)
    if len(distinct) == 1:
        return {int(distinct[0]): rows}
    return {int(number): rows.filter(pa.array(numbers == number)) for number in distinct}


def _misfit_quarantine(misfits: pa.Table, table: str, epoch: int) -> pa.Table:
    names = ("replicaset_id", "key", "tuple", "global_id", "lsn", "reason", "misfits")
    columns = {one: as_array(misfits[one]) for one in names}
    columns["space"] = pa.repeat(pa.scalar(table), misfits.num_rows)
    return quarantine_rows(columns, epoch)


def _misfit_versions(misfits: pa.Table, table: str, plan: ResolvePlan) -> pa.Table:
    """Return a version with the state unfit for each tuple that `encode` left out of its table because of a misfit.

    Tuples that a policy made are excluded: they are no replicaset's version.
    """
    own = misfits.filter(pc.greater(misfits["replicaset_id"], 0)).combine_chunks()
    columns = {one: as_array(own[one]) for one in PUTS.names if one != "table"}
    columns["space"] = pa.repeat(pa.scalar(table), own.num_rows)
    return version_rows(columns, np.full(own.num_rows, UNFIT, np.int8), plan)


def _removed_rows(
    removed: pa.Table, files: Sequence[FileRef]
) -> tuple[dict[FileRef, NDArray[np.int64]], dict[int, pa.Array]]:
    """Return the row numbers to remove by file, and the keys of these rows by table number."""
    if not removed.num_rows:
        return {}, {}
    whole = removed.combine_chunks()
    numbers, rows = whole["file"].to_numpy(), whole["row"].to_numpy()
    indices: dict[FileRef, NDArray[np.int64]] = {}
    for number in np.unique(numbers):
        # Two lookups may have read one file.
        file, own = files[int(number)], rows[numbers == number]
        indices[file] = np.concatenate([indices[file], own]) if file in indices else own
    return indices, {number: as_array(part["key"]) for number, part in split_by_table(whole).items()}
