"""Finds the versions of keys before a batch, and the files and indices of their rows.

If the table's row of a key came from a replicaset, this row is the replicaset's version, and its rows in `_versions`
are outdated. Otherwise its version is the newest row of (space, key, replicaset) in `_versions`. Only row groups that
may contain one of the keys are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.reduce.base import BaseRequest, KeyFilter
from pipeline.reduce.versions import BASE_VERSIONS, MERGED, STATE_NAMES, STATES
from udfs.buffers import as_array
from udfs.keys.grouping import Groups, group
from udfs.versions.kernels.lives import DELETED, NONE, PRESENT, UNFIT
from warehouse.commits import TableFile
from warehouse.data_files import FileKeys, keys_of, opened, read_groups
from warehouse.location import WarehouseLocation

VERSIONS = "_versions"
MAX_SORTED_KEYS = 200_000
"""Up to this many keys are sorted to find the row groups that may contain one. Of more keys, only the range is used."""

_TABLE_COLUMNS = ("_key", "_replicaset_id", "_timestamp", "_created")
_TUPLE_COLUMNS = ("_tuple", "_global_id", "_lsn")
_VERSION_COLUMNS = (
    *("space", "key", "replicaset_id", "tuple", "global_id", "lsn", "timestamp", "created"),
    *("state", "epoch"),
)


@dataclass(frozen=True)
class FileRef:
    """A file of a space's table, with the table's name: of a masked space, its exact or its masked table."""

    table: str
    file: TableFile


@dataclass
class KeyRangeCache:
    """Caches the key ranges of files' row groups in a process, by table and path. Data files never change."""

    ranges_by_file: dict[tuple[str, str], FileKeys] = field(default_factory=dict)

    def key_ranges(self, file: pq.ParquetFile, table: str, path: str, column: str) -> FileKeys:
        """Return the key ranges of an open file's row groups."""
        name = (table, path)
        if name not in self.ranges_by_file:
            self.ranges_by_file[name] = keys_of(file, column)
        return self.ranges_by_file[name]


@dataclass(frozen=True)
class BaseFiles:
    """The files in which the base versions are found: the versions before a batch."""

    location: WarehouseLocation
    exact_tables: Mapping[int, tuple[str, Sequence[TableFile]]]
    """The name and the files of each exact table, by table number."""
    versions_files: Sequence[TableFile]
    """The files of `_versions`."""
    table_names: Sequence[str]
    """By table number, the name of the table, as in `_versions.space`."""
    tables_without_misfits: frozenset[int] = frozenset()
    """Numbers of tables that do not store tuples with a misfit."""


@dataclass(frozen=True)
class FoundVersions:
    """The versions that a lookup found."""

    base_versions: pa.Table
    """`pipeline.reduce.versions.BASE_VERSIONS`."""
    files: list[FileRef]
    """The files of the found rows; the column `file` of `base_versions` is an index in it."""


class TaskKeys(Protocol):
    """The keys that belong to a task (`pipeline.key_ranges.PartitionKeys`)."""

    def owns(self, table: int, keys: pa.Array) -> NDArray[np.bool_]:
        """Return for each key of a table whether it belongs to the task."""


def find_versions(
    requests: Sequence[BaseRequest], files: BaseFiles, cache: KeyRangeCache, task_keys: TaskKeys | None = None
) -> FoundVersions:
    """Find the requested versions, in the tables of spaces and in `_versions`.

    Args:
        requests: At most one per table.
        task_keys: If given, a request for all keys of a replicaset finds only those of the task.
    """
    requests = [
        _with_keys_of_replicasets(one, files, task_keys) if one.key_filters else one for one in requests
    ]
    refs: list[FileRef] = []
    parts: list[pa.Table] = []
    for request in requests:
        name, own = files.exact_tables.get(request.table, ("", ()))
        wanted = LookupKeys.of(request.keys)
        for file in own:
            found = _versions_in_table_file(request, wanted, files.location, name, file, len(refs), cache)
            if found is not None:
                refs.append(FileRef(name, file))
                parts.append(found)
    rows = pa.concat_tables(parts) if parts else BASE_VERSIONS.empty_table()
    asked = [request for request in requests if request.reads_versions_table]
    return FoundVersions(_with_stored_versions(rows, asked, files, cache) if asked else rows, refs)


def _with_keys_of_replicasets(
    request: BaseRequest, files: BaseFiles, task_keys: TaskKeys | None
) -> BaseRequest:
    """Return a request for its own keys, and for all keys in files of the request's replicasets.

    With `task_keys`, only those of the task are added.
    """

    def requested(rows: pa.Table, key: str, replicaset: str) -> Iterator[pa.Array]:
        for number, key_filter in request.key_filters.items():
            for one in rows[key].filter(pc.equal(rows[replicaset], number)).chunks:
                found = one if task_keys is None else one.filter(pa.array(task_keys.owns(request.table, one)))
                yield found if key_filter is None else found.filter(pa.array(key_filter(found)))

    name, own = files.exact_tables.get(request.table, ("", ()))
    keys = [request.keys]
    for file in own:
        with opened(files.location, name, file.path) as parquet:
            keys += requested(parquet.read(columns=["_key", "_replicaset_id"]), "_key", "_replicaset_id")
    own_versions = _keys_in_versions(files, files.table_names[request.table], request.key_filters)
    keys += requested(own_versions, "key", "replicaset_id")
    whole = pa.concat_arrays(keys)
    distinct = whole.take(pa.array(group(np.zeros(len(whole), np.int32), whole).first_rows))
    return BaseRequest(request.table, distinct, {}, request.needs_tuples, request.reads_versions_table)


def _keys_in_versions(files: BaseFiles, space: str, replicasets: Mapping[int, KeyFilter | None]) -> pa.Table:
    """Return `key` and `replicaset_id` of the newest versions of some replicasets in `_versions`.

    Deleted versions of a replicaset with a filter are left out: their keys may be of an earlier primary key, which the
    filter cannot compare.
    """
    columns = ["space", "key", "replicaset_id", "state", "epoch"]
    parts = []
    for file in files.versions_files:
        with opened(files.location, VERSIONS, file.path) as parquet:
            rows = parquet.read(columns=columns)
        own = pc.is_in(rows["replicaset_id"], pa.array([*replicasets], pa.int32()))
        parts.append(rows.filter(pc.and_(pc.equal(rows["space"], space), own)))
    if not parts:
        return pa.table({"key": pa.array([], pa.binary()), "replicaset_id": pa.array([], pa.int32())})
    whole = pa.concat_tables(parts).combine_chunks()
    ids = group(whole["replicaset_id"].to_numpy(), as_array(whole["key"])).group_numbers
    order = np.lexsort((whole["epoch"].to_numpy(), ids))
    newest = whole.take(pa.array(order[np.append(ids[order][1:] != ids[order][:-1], True)[: len(order)]]))
    filtered = pa.array([i for i, key_filter in replicasets.items() if key_filter is not None], pa.int32())
    is_deletion = pc.and_(
        pc.equal(newest["state"], STATE_NAMES[DELETED]), pc.is_in(newest["replicaset_id"], filtered)
    )
    is_gone = pc.or_(pc.equal(newest["state"], STATE_NAMES[NONE]), is_deletion)
    return newest.filter(pc.invert(is_gone)).select(["key", "replicaset_id"])


@dataclass(frozen=True)
class LookupKeys:
    """The keys of a lookup. `bounds` has all keys in order if `is_sorted`, else only the least and the greatest key."""

    groups: Groups
    bounds: Sequence[bytes]
    is_sorted: bool

    @classmethod
    def of(cls, keys: pa.Array) -> LookupKeys:
        """Prepare keys for a lookup."""
        groups = group(np.zeros(len(keys), np.int32), keys)
        distinct = keys.take(pa.array(groups.first_rows))
        if len(distinct) <= MAX_SORTED_KEYS:
            return cls(groups, sorted(distinct.to_pylist()), True)
        ends = pc.min_max(distinct)
        return cls(groups, [ends["min"].as_py(), ends["max"].as_py()], False)

    def may_be_between(self, least: bytes | None, greatest: bytes | None) -> bool:
        """Return whether any of the keys may be from `least` to `greatest`; None is an unknown bound."""
        if least is None or greatest is None:
            return True
        if not self.bounds:
            return False
        if not self.is_sorted:
            return self.bounds[0] <= greatest and least <= self.bounds[-1]
        index = bisect_left(self.bounds, least)
        return index < len(self.bounds) and self.bounds[index] <= greatest

    def find_numbers(self, keys: pa.Array) -> NDArray[np.int32]:
        """Return for each key its number among the keys of the lookup, -1 if it is not one of them."""
        return self.groups.find(np.zeros(len(keys), np.int32), keys)


def _row_groups_with_keys(
    wanted: LookupKeys, file: pq.ParquetFile, keys: FileKeys, column: str
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Yield (number, index of its first row in the file, indices in it of the rows with the keys) of each row group."""
    start = 0
    for number, rows in enumerate(keys.rows):
        if wanted.may_be_between(keys.least[number], keys.greatest[number]):
            found = wanted.find_numbers(as_array(read_groups(file, [number], [column])[column]))
            matches = np.flatnonzero(found >= 0)
            if len(matches):
                yield number, start, matches
        start += rows


def _versions_in_table_file(
    request: BaseRequest,
    wanted: LookupKeys,
    location: WarehouseLocation,
    table: str,
    file: TableFile,
    file_number: int,
    cache: KeyRangeCache,
) -> pa.Table | None:
    """Return the rows of a file that have keys of the lookup, as `BASE_VERSIONS`; None if it has none."""
    columns = [*_TABLE_COLUMNS, *(_TUPLE_COLUMNS if request.needs_tuples else ())]
    parts = []
    with opened(location, table, file.path) as parquet:
        keys = cache.key_ranges(parquet, table, file.path, "_key")
        for group_number, start, matches in _row_groups_with_keys(wanted, parquet, keys, "_key"):
            rows = read_groups(parquet, [group_number], columns).take(pa.array(matches))
            parts.append(_base_versions_of_rows(rows, request.table, file_number, start + matches))
    return pa.concat_tables(parts) if parts else None


def _base_versions_of_rows(
    rows: pa.Table, table: int, file_number: int, indices: NDArray[np.intp]
) -> pa.Table:
    count = rows.num_rows
    replicasets = rows["_replicaset_id"].to_numpy()
    states = np.where(replicasets < 0, MERGED, PRESENT).astype(np.int8)
    names = {"tuple": "_tuple", "global_id": "_global_id", "lsn": "_lsn"}
    names |= {"key": "_key", "replicaset_id": "_replicaset_id"}
    names |= {"timestamp": "_timestamp", "created": "_created"}
    whole = {
        **{name: rows[source] for name, source in names.items() if source in rows.column_names},
        "table": pa.array(np.full(count, table, np.int32)),
        "state": pa.array(states),
        "is_row": pa.repeat(pa.scalar(True), count),
        "in_versions": pa.repeat(pa.scalar(False), count),
        "file": pa.array(np.full(count, file_number, np.int32)),
        "row": pa.array(indices.astype(np.int64)),
    }
    arrays = [
        whole[one.name].cast(one.type) if one.name in whole else pa.nulls(count, one.type)
        for one in BASE_VERSIONS
    ]
    return pa.Table.from_arrays(arrays, schema=BASE_VERSIONS)


def _with_stored_versions(
    rows: pa.Table, requests: Sequence[BaseRequest], files: BaseFiles, cache: KeyRangeCache
) -> pa.Table:
    """Return the current version of each (table, key, replicaset), from rows of tables and from `_versions`."""
    listed = _versions_in_versions_table(requests, files, cache)
    if not listed.num_rows:
        return rows
    epochs = np.concatenate([np.zeros(rows.num_rows, np.int64), listed["epoch"].to_numpy()])
    both = pa.concat_tables([rows, listed.drop_columns(["epoch"])]).combine_chunks()
    tables = both["table"].to_numpy().astype(np.int64)
    pairs = (tables << 32) | (both["replicaset_id"].to_numpy().astype(np.int64) & 0xFFFFFFFF)
    _, partitions = np.unique(pairs, return_inverse=True)
    groups = group(partitions.astype(np.int32), as_array(both["key"]))
    is_row = as_array(both["is_row"]).to_numpy(zero_copy_only=False)
    order = np.lexsort((epochs, is_row, groups.group_numbers))
    last = np.append(groups.group_numbers[order][1:] != groups.group_numbers[order][:-1], True)
    chosen = order[last]
    in_versions = np.zeros(len(groups), np.bool_)
    in_versions[groups.group_numbers[~is_row]] = True
    chosen = chosen[both["state"].to_numpy()[chosen] != NONE]
    index = BASE_VERSIONS.get_field_index("in_versions")
    marks = pa.array(in_versions[groups.group_numbers[chosen]])
    return both.take(pa.array(chosen)).set_column(index, "in_versions", marks)


def _versions_in_versions_table(
    requests: Sequence[BaseRequest], files: BaseFiles, cache: KeyRangeCache
) -> pa.Table:
    """Return all rows of `_versions` with requested keys, as `BASE_VERSIONS` with the column `epoch`."""
    numbers = {files.table_names[request.table]: request.table for request in requests}
    keys = pa.concat_arrays([request.keys for request in requests])
    tables = np.concatenate([np.full(len(r.keys), r.table, np.int32) for r in requests])
    groups, wanted = group(tables, keys), LookupKeys.of(keys)
    schema = BASE_VERSIONS.append(pa.field("epoch", pa.int64()))
    parts = []
    for file in files.versions_files:
        with opened(files.location, VERSIONS, file.path) as parquet:
            known = cache.key_ranges(parquet, VERSIONS, file.path, "key")
            for number, _, matches in _row_groups_with_keys(wanted, parquet, known, "key"):
                rows = read_groups(parquet, [number], _VERSION_COLUMNS).take(pa.array(matches))
                own = _table_numbers(rows["space"], numbers)
                asked = np.flatnonzero((own >= 0) & (groups.find(own, as_array(rows["key"])) >= 0))
                if len(asked):
                    versions = _base_versions_of_version_rows(rows.take(pa.array(asked)), own[asked], schema)
                    parts.append(_with_restored_misfits(versions, files.tables_without_misfits))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _table_numbers(spaces: pa.ChunkedArray, numbers: Mapping[str, int]) -> NDArray[np.int32]:
    encoded = as_array(spaces).dictionary_encode()
    known = [numbers.get(name, -1) for name in encoded.dictionary.to_pylist()]
    found: NDArray[np.int32] = np.array([*known, -1], np.int32)[
        encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    ]
    return found


def _base_versions_of_version_rows(rows: pa.Table, tables: NDArray[np.int32], schema: pa.Schema) -> pa.Table:
    count = rows.num_rows
    states = as_array(rows["state"]).dictionary_encode()
    codes = np.array([STATES[name] for name in states.dictionary.to_pylist()], np.int8)
    whole = {
        **{name: rows[name] for name in _VERSION_COLUMNS if name not in ("space", "state")},
        "table": pa.array(tables),
        "state": pa.array(codes[states.indices.to_numpy(zero_copy_only=False)]),
        "is_row": pa.repeat(pa.scalar(False), count),
        "in_versions": pa.repeat(pa.scalar(True), count),
        "file": pa.array(np.full(count, -1, np.int32)),
        "row": pa.array(np.full(count, -1, np.int64)),
    }
    return pa.Table.from_arrays([whole[one.name].cast(one.type) for one in schema], schema=schema)


def _with_restored_misfits(versions: pa.Table, tables_without_misfits: frozenset[int]) -> pa.Table:
    """Return versions in which an unfit version with a known tuple has the state present.

    This is not done for tables that do not store tuples with misfits. If a table stores them again, a tuple returns to
    it when its key is next looked up.
    """
    states, tables = versions["state"].to_numpy(), versions["table"].to_numpy()
    known = as_array(versions["tuple"]).is_valid().to_numpy(zero_copy_only=False)
    returns = (states == UNFIT) & known & ~np.isin(tables, list(tables_without_misfits))
    index = BASE_VERSIONS.get_field_index("state")
    states = np.where(returns, PRESENT, states).astype(np.int8)
    return versions.set_column(index, versions.schema.field(index), pa.array(states))


def join_found_versions(parts: Iterable[FoundVersions]) -> FoundVersions:
    """Join the results of several lookups, which had different keys."""
    tables: list[pa.Table] = []
    files: list[FileRef] = []
    for part in parts:
        index = BASE_VERSIONS.get_field_index("file")
        numbers = part.base_versions["file"].to_numpy()
        moved = np.where(numbers >= 0, numbers + len(files), numbers).astype(np.int32)
        tables.append(part.base_versions.set_column(index, "file", pa.array(moved)))
        files += part.files
    return FoundVersions(pa.concat_tables(tables), files)
