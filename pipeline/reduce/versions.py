"""Versions of keys as columns: what a replicaset holds under a key, before a batch and after it. Plain data.

A version is present (a tuple), deleted (by a DELETE; it takes part in the choice where `deletes: all`), unfit (the
tuple is not known, or does not fit its format), or there is none: the key was never inserted, or a truncation, a drop
or a rename took the space's versions away. `removed` says the last in `_versions`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.states import VersionState
from udfs.versions.kernels.lives import DELETED, NO_TIME, NONE, PRESENT, UNFIT

MERGED = 4
"""The row of a table that a policy made of several versions: no replicaset's own."""

NAMES = {
    PRESENT: VersionState.PRESENT,
    DELETED: VersionState.DELETED,
    UNFIT: VersionState.UNFIT,
    NONE: VersionState.REMOVED,
}
"""By the number of a state, its name in `_versions.state`."""

STATES: dict[str, int] = {name: state for state, name in NAMES.items()}

TIME = pa.timestamp("us", tz="UTC")
FAULT = pa.struct(
    [("global_id", pa.int64()), ("lsn", pa.int64()), ("code", pa.int32()), ("reason", pa.string())]
)

ENTRIES = pa.schema(
    [
        ("table", pa.int32()),
        ("replicaset_id", pa.int32()),
        ("key", pa.binary()),
        ("state", pa.int8()),
        ("tuple", pa.binary()),
        ("global_id", pa.int64()),
        ("lsn", pa.int64()),
        ("timestamp", TIME),
        ("created", TIME),
        ("is_row", pa.bool_()),
        ("in_versions", pa.bool_()),
        ("file", pa.int32()),
        ("row", pa.int64()),
    ]
)
"""Versions before a batch, one a (table, replicaset, key).

`table`: number of the table in the batch; `is_row`: the version is the table's row, at place `row` of `file` (a
number of the read; -1 where it is no row); `in_versions`: `_versions` has an entry of this key and replicaset,
perhaps an older one. A row that a policy made has minus the id of its last writer as `replicaset_id`."""

CHANGES = pa.schema(
    [
        ("table", pa.int32()),
        ("replicaset_id", pa.int32()),
        ("key", pa.binary()),
        ("state", pa.int8()),
        ("tuple", pa.binary()),
        ("global_id", pa.int64()),
        ("lsn", pa.int64()),
        ("timestamp", TIME),
        ("created", TIME),
        ("faults", pa.list_(FAULT)),
        ("base", pa.int64()),
    ]
)
"""Versions that a batch changed, one a (table, replicaset, key). `faults`: rows of the log that could not be applied;
`base`: the number of the version before among the entries that were read, -1 where there was none."""


def times_of(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of times as microseconds since 1970, `NO_TIME` where it is null."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    numbers = whole.cast(pa.int64())
    if numbers.null_count:
        numbers = numbers.fill_null(NO_TIME)
    found: NDArray[np.int64] = numbers.to_numpy(zero_copy_only=False)
    return found


def time_column(times: NDArray[np.int64]) -> pa.Array:
    """Return microseconds since 1970 as a column of times; `NO_TIME` becomes null."""
    missing = times == NO_TIME
    return pa.array(times, pa.int64(), mask=missing if missing.any() else None).cast(TIME)
