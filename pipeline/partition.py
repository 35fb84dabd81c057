"""Turns keyed rows into rows of tables, for all keys of a batch or for those of one partition.

    keyed rows → lookup of base versions → reduce → resolve → encode

The local executor calls `process_partition` once, the distributed one in a task for each partition
(`pipeline.lookup.partitions`). The base version of a key is the version that a replicaset had before the batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.bucket_moves import find_collected_rows, without_move_conflicts
from pipeline.changelog.moves import COLLECTED, ShardPlan, shard_plan
from pipeline.encode.columns import TableEncoding, encode, encoding_of
from pipeline.lookup.files import BaseFiles, FileRef
from pipeline.lookup.key_search import KeySearch
from pipeline.lookup.lookup import FoundVersions, find_versions, join_found_versions
from pipeline.lookup.partitions import PartitionKeys
from pipeline.lookup.reduce_plan import ReducePlan, reduce_plan
from pipeline.lookup.requests import base_requests, further_base_requests, group_keyed_rows
from pipeline.lookup.versions import BASE_VERSIONS
from pipeline.plan.batch_plan import BatchPlan
from pipeline.reduce.reduce import reduce
from pipeline.resolve.records import quarantine_rows, version_rows
from pipeline.resolve.resolve import PUTS, Resolved, resolve
from pipeline.resolve.resolve_plan import ResolvePlan, resolve_plan
from schemas.errors import UnsupportedError
from udfs.buffers import as_array
from udfs.versions.kernels.lives import UNFIT

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
    versions: pa.Table
    conflicts: pa.Table
    quarantine: pa.Table
    """New rows of the system tables."""
    key_errors: pa.Table
    """Versions without a valid value of the changed primary key, as `pipeline.changelog.keyed_rows.KEY_ERRORS`."""
    writers: frozenset[tuple[int, int]]
    """(table number, replicaset id) of each changed version: which replicasets wrote to which tables."""
    unfit_tables: frozenset[int]
    """Numbers of the tables with a new unfit version (`pipeline.lookup.versions`): its tuple is not known, or was left
    out of the table because a value does not fit its column."""
    collected_rows: pa.Table = field(default_factory=COLLECTED.empty_table)
    """The DELETEs that vshard's garbage collector wrote: `pipeline.changelog.moves.COLLECTED`."""


def process_partition(
    keyed: pa.Table,
    plan: PartitionPlan,
    files: BaseFiles,
    search: KeySearch,
    partition_keys: PartitionKeys | None = None,
) -> PartitionResult:
    """Compute the changes of all tables from the keyed rows of a partition."""
    _check_column_sizes(keyed)
    rows = group_keyed_rows(keyed, plan.reduce)
    requests = base_requests(rows, plan.reduce, partition_keys)
    found = (
        find_versions(requests, files, search, partition_keys)
        if requests
        else FoundVersions(BASE_VERSIONS.empty_table(), [])
    )
    reduced = reduce(rows, found.base_versions, plan.reduce)
    more = further_base_requests(reduced.changes, requests, found.base_versions, plan.reduce)
    if more:
        found = join_found_versions([found, find_versions(more, files, search, partition_keys)])
    resolved = resolve(reduced.changes, found.base_versions, plan.resolve)
    if plan.shards is None:
        return encode_result(resolved, reduced.key_errors, found.files, plan.encodings, plan.resolve)
    resolved = replace(resolved, conflicts=without_move_conflicts(resolved.conflicts, plan.shards))
    result = encode_result(resolved, reduced.key_errors, found.files, plan.encodings, plan.resolve)
    collected = find_collected_rows(rows, found.base_versions, plan.reduce, plan.shards)
    return replace(result, collected_rows=collected)


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
    """Return a version with the state unfit for each tuple that `encode` left out of its table because of a misfit."""
    own = misfits.filter(pc.greater(misfits["replicaset_id"], 0)).combine_chunks()
    columns = {one: as_array(own[one]) for one in PUTS.names if one != "table"}
    columns["space"] = pa.repeat(pa.scalar(table), own.num_rows)
    return version_rows(columns, np.full(own.num_rows, UNFIT, np.int8), plan)


def _removed_rows(
    removed: pa.Table, files: Sequence[FileRef]
) -> tuple[dict[FileRef, NDArray[np.int64]], dict[int, pa.Array]]:
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
