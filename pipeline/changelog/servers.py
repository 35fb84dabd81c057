"""Sets the column `server_version`: the version of the server that wrote a row, by whose rules operations are applied.

A row of a file has the version of the file's header, or a newer one (`pipeline.plan.upgrades`); a spool of several
peers names the version of each peer. Rows of `_pending` and `_changelog` already have the column. Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.segment_plan import SegmentPlan
from pipeline.plan.position import first_row_index
from udfs.operations.update_rules import release_number

SERVER_VERSION = "server_version"


def with_server_versions(rows: pa.RecordBatch, plan: SegmentPlan) -> pa.RecordBatch:
    """Return rows with the column `server_version`; stored rows have it, and may have nulls in it.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        With a column `replica_id`.
    plan : SegmentPlan
        The plan of their segment.

    """
    server = pa.scalar(plan.server_version, pa.string())
    if SERVER_VERSION not in rows.schema.names:
        return rows.append_column(SERVER_VERSION, _versions_in_file(rows, server, plan))
    stored = rows.column(SERVER_VERSION)
    if plan.server_version is None or not stored.null_count:
        return rows
    place = rows.schema.get_field_index(SERVER_VERSION)
    return rows.set_column(place, SERVER_VERSION, pc.fill_null(stored, server))


def _versions_in_file(rows: pa.RecordBatch, server: pa.Scalar, plan: SegmentPlan) -> pa.Array:
    if plan.upgrades:
        positions, numbers = (
            rows.column(name).to_numpy(zero_copy_only=False).astype(np.int64) for name in ("position", "row")
        )
        places = [first_row_index(place, plan.segment, positions, numbers) for place, _ in plan.upgrades]
        counts = np.diff([0, *places, rows.num_rows])
        versions = pa.array([plan.server_version, *(version for _, version in plan.upgrades)], pa.string())
        return versions.take(pa.array(np.repeat(np.arange(len(versions)), counts)))
    if not plan.peer_versions:
        return pa.repeat(server, rows.num_rows)
    ids = pa.array(list(plan.peer_versions), pa.int32())
    found = pa.array(list(plan.peer_versions.values()), pa.string()).take(
        pc.index_in(rows.column("replica_id"), value_set=ids)
    )
    return found if plan.server_version is None else pc.fill_null(found, server)


def releases_of(rows: pa.RecordBatch, is_operation: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the release of each row's server (`udfs.operations.update_rules.release_number`).

    It is 0 for an unknown version, and for all rows if none of them is an operation.
    """
    if not is_operation.any():
        return np.zeros(rows.num_rows, np.int32)
    found = rows.column(SERVER_VERSION).dictionary_encode()
    numbers = [release_number(one) for one in found.dictionary.to_pylist()]
    indices = found.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
    result: NDArray[np.int32] = np.array([*numbers, 0], np.int32)[indices]
    return result
