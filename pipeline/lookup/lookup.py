"""Finds the versions of keys before a batch, and the files and indices of their rows.

If the table's row of a key came from a replicaset, this row is the replicaset's version, and its rows in `_versions`
are outdated. Otherwise its version is the newest row of (space, key, replicaset) in `_versions`. Only row groups that
may contain one of the keys are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.lookup.files import BaseFiles, FileRef
from pipeline.lookup.key_search import KeySearch, LookupKeys
from pipeline.lookup.requests import BaseRequest
from pipeline.lookup.versions import BASE_VERSIONS, MERGED
from pipeline.lookup.versions_table import keys_in_versions, with_stored_versions
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import PRESENT
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile, read_file

_TABLE_COLUMNS = ("_key", "_replicaset_id", "_timestamp", "_created")

_TUPLE_COLUMNS = ("_tuple", "_global_id", "_lsn")


def versions_in_table(
    request: BaseRequest,
    wanted: LookupKeys,
    location: WarehouseLocation,
    table: str,
    files: Iterable[TableFile],
    first_number: int,
    search: KeySearch,
) -> tuple[pa.Table, list[TableFile]]:
    """Return the rows that have keys of the lookup, as `BASE_VERSIONS`, and the files of a table that have such rows.

    Each row is the version of the replicaset that it came from, or was made by a policy of several (`MERGED`).
    """
    columns = [*_TABLE_COLUMNS, *(_TUPLE_COLUMNS if request.needs_tuples else ())]
    parts: list[pa.Table] = []
    rows: list[NDArray[np.int64]] = []
    numbers: list[NDArray[np.int32]] = []
    with_rows: list[TableFile] = []
    for file in files:
        found = list(search.find(location, table, file, wanted, columns))
        for part in found:
            parts.append(part.rows)
            rows.append(part.numbers)
            numbers.append(np.full(len(part.numbers), first_number + len(with_rows), np.int32))
        if found:
            with_rows.append(file)
    if not parts:
        return BASE_VERSIONS.empty_table(), []
    # Files that somebody else wrote may have other types for the same values.
    are_alike = all(part.schema == parts[0].schema for part in parts)
    whole = pa.concat_tables(parts, promote_options="none" if are_alike else "permissive").combine_chunks()
    found_rows = _base_versions_of_rows(whole, request.table, np.concatenate(numbers), np.concatenate(rows))
    return found_rows, with_rows


def _base_versions_of_rows(
    rows: pa.Table, table: int, file_numbers: NDArray[np.int32], row_numbers: NDArray[np.int64]
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
        "file": pa.array(file_numbers),
        "row": pa.array(row_numbers),
    }
    arrays = [
        whole[one.name].cast(one.type) if one.name in whole else pa.nulls(count, one.type)
        for one in BASE_VERSIONS
    ]
    return pa.Table.from_arrays(arrays, schema=BASE_VERSIONS)


@dataclass(frozen=True)
class FoundVersions:
    """The versions that a lookup found."""

    base_versions: pa.Table
    """`pipeline.lookup.versions.BASE_VERSIONS`."""
    files: list[FileRef]
    """The files of the found rows; the column `file` of `base_versions` is an index in it."""


class TaskKeys(Protocol):
    """The keys that belong to a task (`pipeline.lookup.partitions.PartitionKeys`)."""

    def owns(self, table: int, keys: pa.Array) -> NDArray[np.bool_]:
        """Return for each key of a table whether it belongs to the task."""


def find_versions(
    requests: Sequence[BaseRequest], files: BaseFiles, search: KeySearch, task_keys: TaskKeys | None = None
) -> FoundVersions:
    """Find the requested versions, in the tables of spaces and in `_versions`."""
    requests = [
        _with_keys_of_replicasets(one, files, task_keys) if one.key_filters else one for one in requests
    ]
    refs: list[FileRef] = []
    parts: list[pa.Table] = []
    for request in requests:
        name, own = files.exact_tables.get(request.table, ("", ()))
        wanted = LookupKeys.of(request.keys)
        found, with_rows = versions_in_table(request, wanted, files.location, name, own, len(refs), search)
        refs += [FileRef(name, file) for file in with_rows]
        parts.append(found)
    rows = pa.concat_tables(parts) if parts else BASE_VERSIONS.empty_table()
    asked = [request for request in requests if request.reads_versions_table]
    return FoundVersions(with_stored_versions(rows, asked, files, search) if asked else rows, refs)


def _with_keys_of_replicasets(
    request: BaseRequest, files: BaseFiles, task_keys: TaskKeys | None
) -> BaseRequest:
    """Return a request for its own keys, and for all keys in files of the request's replicasets."""

    def requested(rows: pa.Table, key: str, replicaset: str) -> Iterator[pa.Array]:
        for number, key_filter in request.key_filters.items():
            for one in rows[key].filter(pc.equal(rows[replicaset], number)).chunks:
                found = one if task_keys is None else one.filter(pa.array(task_keys.owns(request.table, one)))
                yield found if key_filter is None else found.filter(pa.array(key_filter(found)))

    name, own = files.exact_tables.get(request.table, ("", ()))
    keys = [request.keys]
    for file in own:
        rows = read_file(files.location, name, file, ["_key", "_replicaset_id"])
        keys += requested(rows, "_key", "_replicaset_id")
    own_versions = keys_in_versions(files, files.table_names[request.table], request.key_filters)
    keys += requested(own_versions, "key", "replicaset_id")
    whole = pa.concat_arrays(keys)
    distinct = whole.take(pa.array(group(np.zeros(len(whole), np.int32), whole).first_rows))
    return BaseRequest(request.table, distinct, {}, request.needs_tuples, request.reads_versions_table)


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
