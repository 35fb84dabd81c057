"""Hashes a row of the log to one number, equal for the same row in every member's log.

The number equals Spark's `xxhash64(type, space_id, index_base, key, tuple, operations, body)`, so values that Spark
once wrote to `_changelog.hash` stay comparable. Timestamps are left out, because each member writes its own. So is the
body of a row with operations: it exists only if the member logs old and new tuples too (`wal_ext`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.buffers import flatten, null_mask
from udfs.kernels.values import OVERREAD
from udfs.keys.kernels.row_hash import SEED, hash_bytes_column, hash_int_column

COLUMNS = ("type", "space_id", "index_base", "key", "tuple", "operations", "body")


def row_hashes(rows: pa.RecordBatch) -> pa.Array:
    """Return the hash of each row.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        With `COLUMNS`, as in `schemas.xrow`.

    Returns
    -------
    pyarrow.Int64Array

    """
    hashes: NDArray[np.int64] = np.full(rows.num_rows, SEED, np.int64)
    for name in COLUMNS:
        column = rows.column(name) if name != "body" else _bodies(rows)
        if column.null_count == len(column):
            continue
        if pa.types.is_integer(column.type):
            values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
            hash_int_column(values, null_mask(column), hashes)
        else:
            flat = flatten(column, OVERREAD)
            hash_bytes_column(flat.data, flat.offsets, flat.nulls, hashes)
    return pa.array(hashes)


def _bodies(rows: pa.RecordBatch) -> pa.Array:
    bodies, operations = rows.column("body"), rows.column("operations")
    if len(bodies) in (bodies.null_count, operations.null_count):
        return bodies
    return pc.if_else(pc.is_null(operations), bodies, pa.scalar(None, bodies.type))
