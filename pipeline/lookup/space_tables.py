"""Finds versions of keys in the files of a space's table.

Each row is the version of the replicaset that it came from, or was made by a policy of several versions (`MERGED`).
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.lookup.key_search import KeySearch, LookupKeys
from pipeline.lookup.requests import BaseRequest
from pipeline.lookup.versions import BASE_VERSIONS, MERGED
from udfs.versions.kernels.lives import PRESENT
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile

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
    """Return the rows that have keys of the lookup, as `BASE_VERSIONS`, and the files that have such rows."""
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
    whole = pa.concat_tables(parts, promote_options="permissive")
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
