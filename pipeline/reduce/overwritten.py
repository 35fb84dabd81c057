"""Keyed rows without the tuples that later rows of the same batch overwrite.

Of a key that is replaced thousands of times in one batch only the last tuple counts, but all rows go to one bucket. A
task that reads rows takes the others away before it hands them on, so that such a bucket stays small. Times and lsns of
the rows stay: a version's time, and when it was created, depend on them. Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.rows import ACTIONS
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import OPERATION, PUT

OVERWRITTEN = b"\x90"
"""Stands for a tuple that counts for nothing: an empty one, since a row that gives a tuple must have one."""


def without_overwritten(rows: pa.Table) -> pa.Table:
    """Return keyed rows with `OVERWRITTEN` for each tuple whose key's next row gives another one, or deletes it.

    A row that is followed by an operation on its tuple keeps it, and so do rows of a snapshot, which are compared.

    Parameters
    ----------
    rows : pyarrow.Table
        `pipeline.changelog.rows.KEYED`, each replicaset's rows in the order of its log; one chunk a column.

    """
    groups = group(rows["meaning"].to_numpy(), as_array(rows["key"]))
    if len(groups) + int(np.count_nonzero(groups.ids < 0)) == rows.num_rows:
        return rows  # each key is there once
    actions = ACTIONS[rows["type"].to_numpy()]
    is_snapshot = as_array(rows["is_snapshot"]).to_numpy(zero_copy_only=False)
    # The tuple that vshard's garbage collector deletes says the bucket.
    may_be_collected = as_array(rows["bucket_events"]).is_valid().to_numpy(zero_copy_only=False)
    order = np.argsort(groups.ids, kind="stable")
    one, following = order[:-1], order[1:]
    same_key = (groups.ids[one] == groups.ids[following]) & (groups.ids[one] >= 0)
    overwritten = np.zeros(rows.num_rows, np.bool_)
    overwritten[one] = (
        same_key
        & (actions[one] == PUT)
        & (actions[following] != OPERATION)
        & ~(is_snapshot[one] | is_snapshot[following])
        & ~may_be_collected[following]
    )
    if not overwritten.any():
        return rows
    tuples = as_array(rows["tuple"])
    gone = pc.and_(pa.array(overwritten), pc.is_valid(tuples))
    tuples = pc.if_else(gone, pa.scalar(OVERWRITTEN, pa.binary()), tuples)
    return rows.set_column(rows.schema.get_field_index("tuple"), rows.schema.field("tuple"), tuples)
