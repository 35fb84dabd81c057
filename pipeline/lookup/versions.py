"""Versions of keys as columns: what a replicaset has under a key, before a batch and after it. Plain data.

A version is present (a tuple), deleted (by a DELETE; the policy compares it with other versions only if its option
`deletes` is `all`), or unfit (the tuple is not known, or does not fit its format). A key has no version if it was never
inserted, or if a truncation, a drop or a rename removed the space's versions: then `_versions` may have the state
`removed`.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.states import VersionState
from udfs.versions.kernels.lives import DELETED, NO_TIME, NONE, PRESENT, UNFIT

MERGED = 4
"""The state of a table's row that a policy made of several versions: it is not the version of any replicaset."""

STATE_NAMES = {
    PRESENT: VersionState.PRESENT,
    DELETED: VersionState.DELETED,
    UNFIT: VersionState.UNFIT,
    NONE: VersionState.REMOVED,
}
"""The name in `_versions.state` of each state."""

STATES: dict[str, int] = {name: state for state, name in STATE_NAMES.items()}

TIME = pa.timestamp("us", tz="UTC")
FAULT = pa.struct(
    [("global_id", pa.int64()), ("lsn", pa.int64()), ("code", pa.int32()), ("reason", pa.string())]
)

_VERSION_FIELDS = [
    ("table", pa.int32()),
    ("replicaset_id", pa.int32()),
    ("key", pa.binary()),
    ("state", pa.int8()),
    ("tuple", pa.binary()),
    ("global_id", pa.int64()),
    ("lsn", pa.int64()),
    ("timestamp", TIME),
    ("created", TIME),
]

BASE_VERSIONS = pa.schema(
    [
        *_VERSION_FIELDS,
        ("is_row", pa.bool_()),
        ("in_versions", pa.bool_()),
        ("file", pa.int32()),
        ("row", pa.int64()),
    ]
)
"""Base versions: the versions before a batch, one per (table, replicaset, key).

`table`: the table's number in the batch; `is_row`: the version is the table's row, with index `row` in `file` (a number
given by the lookup; both are -1 if it is not the row); `in_versions`: `_versions` has a row of this key and replicaset,
perhaps with an older version. A row that a policy made has minus the id of its last writer as `replicaset_id`."""

CHANGES = pa.schema(
    [
        *_VERSION_FIELDS,
        ("faults", pa.list_(FAULT)),
        ("base", pa.int64()),
    ]
)
"""Versions that a batch changed, one per (table, replicaset, key). `faults`: rows of the log that could not be applied;
`base`: the index of the base version among the `BASE_VERSIONS` that were read, -1 if there was none."""


def times_of(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of times as microseconds since 1970, `NO_TIME` for null."""
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
