"""Reads from the bodies of keyed rows the bounds of DELETE_RANGEs and the logged results of operations.

Pure. `udfs.tuples.row_body` finds both in a body.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.keys.keys import KeyPlan, canonical_prefixes
from udfs.tuples import row_body

Flags = NDArray[np.bool_]
Int32s = NDArray[np.int32]
_NOTHING = pa.scalar(None, pa.binary())


def with_range_bounds(
    rows: pa.RecordBatch, is_range: Flags, versions: Int32s, keys: KeyPlan
) -> tuple[pa.Array, pa.Array, pa.Array | None]:
    """Return the columns `tuple` and `operations` with the begin and end of each DELETE_RANGE, and its error.

    The errors are null for readable rows; None if there is no DELETE_RANGE.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        With the columns `tuple`, `operations`, `body`.
    is_range : bool[n]
        Whether a row is a DELETE_RANGE.
    versions : int32[n]
        Number of each row's schema version in `keys`.
    keys : KeyPlan

    """
    tuples, operations = rows.column("tuple"), rows.column("operations")
    if not is_range.any():
        return tuples, operations, None
    mask = pa.array(is_range)
    ranges = row_body.ranges_of(pc.if_else(mask, rows.column("body"), _NOTHING))
    begin, end = (
        canonical_prefixes(ranges.field(name), keys, pa.array(versions)) for name in ("begin", "end")
    )
    error = pc.coalesce(ranges.field("error"), begin.field("error"), end.field("error"))
    tuples = pc.if_else(mask, begin.field("key"), tuples)
    return tuples, pc.if_else(mask, end.field("key"), operations), error


def new_tuples(rows: pa.RecordBatch, is_operation: Flags) -> pa.Array:
    """Return the tuples that servers logged as the results of operations; most servers log none.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        With the column `body`.
    is_operation : bool[n]
        Whether a row is an UPDATE or UPSERT.

    """
    bodies = rows.column("body")
    if bodies.null_count == len(bodies) or not is_operation.any():
        return pa.nulls(len(bodies), pa.binary())
    return row_body.new_tuples(pc.if_else(pa.array(is_operation), bodies, _NOTHING))
