"""Finds versions of keys in `_versions`.

The newest row of a (space, key, replicaset) is the version, unless the space's table has a row of it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.lookup.files import BaseFiles
from pipeline.lookup.key_search import VERSIONS_TABLE, KeySearch, LookupKeys
from pipeline.lookup.requests import BaseRequest, KeyFilter
from pipeline.lookup.versions import BASE_VERSIONS, STATE_NAMES, STATES
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import DELETED, NONE, PRESENT, UNFIT
from warehouse.delta.table_files import read_file

VERSIONS = "_versions"

_VERSION_COLUMNS = VERSIONS_TABLE.names


def keys_in_versions(files: BaseFiles, space: str, replicasets: Mapping[int, KeyFilter | None]) -> pa.Table:
    """Return `key` and `replicaset_id` of the newest versions of some replicasets in `_versions`.

    Deleted versions of a replicaset with a filter are left out: their keys may be of an earlier primary key, which the
    filter cannot compare.
    """
    columns = ["space", "key", "replicaset_id", "state", "epoch"]
    parts = []
    for file in files.versions_files:
        rows = read_file(files.location, VERSIONS, file, columns)
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


def with_stored_versions(
    rows: pa.Table, requests: Sequence[BaseRequest], files: BaseFiles, search: KeySearch
) -> pa.Table:
    """Return the current version of each (table, key, replicaset), from rows of tables and from `_versions`."""
    listed = _versions_in_versions_table(requests, files, search)
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
    requests: Sequence[BaseRequest], files: BaseFiles, search: KeySearch
) -> pa.Table:
    """Return all rows of `_versions` with requested keys, as `BASE_VERSIONS` with the column `epoch`."""
    numbers = {files.table_names[request.table]: request.table for request in requests}
    keys = pa.concat_arrays([request.keys for request in requests])
    tables = np.concatenate([np.full(len(r.keys), r.table, np.int32) for r in requests])
    groups, wanted = group(tables, keys), LookupKeys.of(keys)
    schema = BASE_VERSIONS.append(pa.field("epoch", pa.int64()))
    parts = []
    for file in files.versions_files:
        for found in search.find(files.location, VERSIONS, file, wanted, _VERSION_COLUMNS, VERSIONS_TABLE):
            rows = found.rows
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
