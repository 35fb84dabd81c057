"""Makes keyed rows: rows that change tuples, with their canonical key, as the reduction applies them.

Two values have no column, and are decoded from the row's body: the bounds of a DELETE_RANGE, and the result of an
operation, if the server logged it. Pure.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.moves import bucket_events_column
from pipeline.changelog.segment_plan import SegmentPlan
from schemas.row_types import CHANGE_TYPES, CHANGES, KeyPlace, RowAction
from udfs.keys.keys import KeyPlan, canonical_keys_with_plan, canonical_prefixes, has_nan
from udfs.operations.update_rules import release_number
from udfs.tuples import row_body

Flags = NDArray[np.bool_]
Int32s = NDArray[np.int32]

SERVER_VERSION = "server_version"
"""The column with the version of the server that wrote a row, by whose rules operations are applied."""

KEYED = pa.schema(
    [
        ("meaning", pa.int32()),
        ("type", pa.int8()),
        ("is_snapshot", pa.bool_()),
        ("key", pa.binary()),
        ("tuple", pa.binary()),
        ("operations", pa.binary()),
        ("index_base", pa.int32()),
        ("new_tuple", pa.binary()),
        ("release", pa.int32()),
        ("global_id", pa.int64()),
        ("lsn", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("bucket_events", pa.int32()),
    ]
)
"""Rows that change tuples, in log order. `type` is an index in `CHANGE_TYPES`; `meaning` is the index in
`pipeline.changelog.segment_plan.Meanings` of what the row's space id means (definition, table, lineage, era);
`new_tuple` is the result of an UPDATE or UPSERT if its server logged it (`wal_ext`); `release` is the release of the
row's server, by whose rules operations are applied (`udfs.operations.update_rules.release_number`), 0 if it is unknown
or not needed; `timestamp` is null for rows of a
snapshot, which have no usable time. For a DELETE that vshard's garbage collector may have made, `bucket_events` is the
number of rows of `_bucket` before it in the batch (`pipeline.changelog.moves`); it is null for all other rows.

A DELETE_RANGE has no key: its `tuple` and `operations` are the begin and the end of the range, as first parts of keys
in canonical form."""

KEY_ERRORS = pa.schema(
    [
        ("lineage", pa.int32()),
        ("global_id", pa.int64()),
        ("lsn", pa.int64()),
        ("error", pa.string()),
        ("rows", pa.int64()),
    ]
)
"""Errors of rows whose key cannot be computed. An error represents `rows` rows of the log, and has the `global_id` and
`lsn` of one of them."""

ACTIONS = np.array([one.action for one in CHANGES.values()], np.int8)
"""For each type in `CHANGE_TYPES`: what a row of this type does to the version of its key."""

INSERT, REPLACE, UPDATE, UPSERT, DELETED, DELETED_RANGE = (
    CHANGE_TYPES.index(name) for name in ("INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE", "DELETE_RANGE")
)
"""The index of each type in `CHANGE_TYPES`."""

_HAS_KEY = np.array([one.key_place is KeyPlace.KEY for one in CHANGES.values()])
"""For each type in `CHANGE_TYPES`: whether a row of it has the column `key`."""

_NULL_BINARY = pa.scalar(None, pa.binary())


FIRST_RELEASE_WITH_NAN_KEYS = 2011000
"""The first release known to take NaN in a key of type double as equal to NaN alone (2.6.0: to every number)."""

NAN_KEY = "NaN in a key of type double equals every number on its server, so the key is refused"


def keyed_rows_of(
    rows: pa.RecordBatch,
    types: NDArray[np.int8],
    meaning: Int32s,
    schema_versions: Int32s,
    global_ids: pa.Array,
    plan: SegmentPlan,
    bucket_events: Int32s,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the keyed rows of settled rows that change tuples, and the errors of those without a usable key.

    Args:
        types: The index in `CHANGE_TYPES` of each row's type (int8[n]).
        meaning, schema_versions: The number of each row's meaning, and of its schema version (int32[n]).
        bucket_events: The number of rows of vshard's `_bucket` in the batch before each row (int32[n]).
    """
    is_operation, is_range = ACTIONS[types] == RowAction.OPERATION, types == DELETED_RANGE
    tuples, operations, range_error = _with_range_bounds(
        rows, is_range, schema_versions, plan.meanings.key_plan
    )
    from_tuple: pa.Array | bool = True
    has_key = _HAS_KEY[types]
    data = rows.column("tuple")
    if has_key.any():
        from_tuple = pa.array(~has_key)
        data = pc.if_else(from_tuple, rows.column("tuple"), rows.column("key"))
    keys = canonical_keys_with_plan(data, plan.meanings.key_plan, pa.array(schema_versions), from_tuple)
    stamps = rows.column("timestamp")
    if plan.is_snapshot:
        stamps = pa.nulls(rows.num_rows, stamps.type)
    key, error = keys.field("key"), keys.field("error")
    if key.null_count + error.null_count != len(error):
        lacks = pc.and_(pc.is_null(key), pc.is_null(error))
        error = pc.if_else(lacks, pa.scalar("the row has no key"), error)
    if range_error is not None:
        error = pc.if_else(pa.array(is_range), range_error, error)
    is_nan = has_nan(key, plan.meanings.key_plan, schema_versions)
    if is_nan.any():
        releases = _server_releases(rows, is_nan)
        is_nan &= (releases > 0) & (releases < FIRST_RELEASE_WITH_NAN_KEYS)
        error = pc.if_else(pa.array(is_nan), pa.scalar(NAN_KEY), error)
    keyed = pa.RecordBatch.from_arrays(
        [
            pa.array(meaning),
            pa.array(types),
            pa.repeat(pa.scalar(plan.is_snapshot), rows.num_rows),
            key,
            tuples,
            operations,
            rows.column("index_base"),
            _new_tuples(rows, is_operation),
            pa.array(_server_releases(rows, is_operation)),
            global_ids,
            rows.column("lsn"),
            stamps,
            bucket_events_column(bucket_events, types == DELETED, plan.bucket_moves),
        ],
        schema=KEYED,
    )
    if error.null_count == len(error):
        return keyed, pa.RecordBatch.from_pylist([], schema=KEY_ERRORS)
    bad = pc.is_valid(error)
    lineages = pa.array(plan.meanings.lineages[meaning])
    columns = [lineages, global_ids, rows.column("lsn"), error, pa.array(np.ones(rows.num_rows, np.int64))]
    errors = pa.RecordBatch.from_arrays([column.filter(bad) for column in columns], schema=KEY_ERRORS)
    return keyed.filter(pc.invert(bad)), errors


def _with_range_bounds(
    rows: pa.RecordBatch, is_range: Flags, schema_versions: Int32s, keys: KeyPlan
) -> tuple[pa.Array, pa.Array, pa.Array | None]:
    """Return the columns `tuple` and `operations` with the begin and end of each DELETE_RANGE, and their errors."""
    tuples, operations = rows.column("tuple"), rows.column("operations")
    if not is_range.any():
        return tuples, operations, None
    mask = pa.array(is_range)
    ranges = row_body.delete_ranges(pc.if_else(mask, rows.column("body"), _NULL_BINARY))
    begin, end = (
        canonical_prefixes(ranges.field(name), keys, pa.array(schema_versions)) for name in ("begin", "end")
    )
    error = pc.coalesce(ranges.field("error"), begin.field("error"), end.field("error"))
    tuples = pc.if_else(mask, begin.field("key"), tuples)
    return tuples, pc.if_else(mask, end.field("key"), operations), error


def _new_tuples(rows: pa.RecordBatch, is_operation: Flags) -> pa.Array:
    """Return the tuples that servers logged as the results of UPDATEs and UPSERTs; most servers log none."""
    bodies = rows.column("body")
    if bodies.null_count == len(bodies) or not is_operation.any():
        return pa.nulls(len(bodies), pa.binary())
    return row_body.new_tuples(pc.if_else(pa.array(is_operation), bodies, _NULL_BINARY))


def _server_releases(rows: pa.RecordBatch, is_operation: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the release of each row's server (`udfs.operations.update_rules.release_number`)."""
    if not is_operation.any():
        return np.zeros(rows.num_rows, np.int32)
    found = rows.column(SERVER_VERSION).dictionary_encode()
    numbers = [release_number(one) for one in found.dictionary.to_pylist()]
    indices = found.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
    result: NDArray[np.int32] = np.array([*numbers, 0], np.int32)[indices]
    return result
