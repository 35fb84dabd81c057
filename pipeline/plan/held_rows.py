"""Finds rows that cannot be applied to tables: changes of an unknown type, or with content that cannot be decoded.

Such a row stops its space: the table does not change any more, and the row and the space's later rows are written to
`_changelog` only. Other spaces continue. Pure. `pipeline.plan.history_builder` then refuses the space.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.iproto import DML_MAX, GROUP_LOCAL, SYSTEM_ID_MAX, RequestType, type_name
from schemas.space import PARTS_MAX, KeyPart, Space
from schemas.states import HELD_PREFIX
from sources.xlog.format.rows import Headers
from udfs.keys.keys import canonical_prefixes, key_plan
from udfs.tuples.row_body import ranges_of

APPLIED_TYPES = (
    *(RequestType.INSERT, RequestType.REPLACE, RequestType.UPDATE, RequestType.UPSERT, RequestType.DELETE),
    *(RequestType.NOP, RequestType.DELETE_RANGE),
)
"""Types of rows of user spaces that are applied to tables, or have no effect (NOP)."""

_ANY_KEY = key_plan([Space(0, 0, "", "memtx", (), tuple(KeyPart(i, "scalar") for i in range(PARTS_MAX)))])
"""A key whose parts may have any type: while rows are read, the definitions of their spaces are not known yet."""


def held_reasons(
    rows: pa.RecordBatch, headers: Headers, controls: NDArray[np.intp], watched: Iterable[int] = ()
) -> dict[int, str]:
    """Return why rows cannot be applied, for the first such row of each space between two control rows.

    The first such row stops its space, and a control row may start the space again.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        Consecutive rows of a log: `schemas.xrow.XROW_FIELDS`.
    headers : Headers
        The headers of the same rows.
    controls : intp[k]
        Indices of the control rows, ascending.
    watched : iterable of int
        Ids of spaces of which all such rows are returned.

    Returns
    -------
    dict of int to str
        By the row's index.

    """
    codes = headers.type
    of_user = (headers.space_id > SYSTEM_ID_MAX) & (headers.group_id != GROUP_LOCAL)
    all_of = np.isin(headers.space_id, list(watched))
    changes = of_user & (codes > RequestType.SELECT) & (codes <= DML_MAX)
    found = {
        int(i): unsupported_reason(type_name(int(codes[i])))
        for i in _first_of_each_space(changes & ~_is_applied_type(codes), headers, controls, all_of)
    }
    ranges = np.flatnonzero(changes & (codes == RequestType.DELETE_RANGE))
    if len(ranges):
        errors = _range_errors(rows.column("body").take(pa.array(ranges)))
        bad = np.zeros(len(codes), np.bool_)
        bad[ranges] = pc.is_valid(errors).to_numpy(zero_copy_only=False)
        texts = dict(zip(ranges.tolist(), errors.to_pylist(), strict=True))
        found |= {
            int(i): f"{HELD_PREFIX}: DELETE_RANGE: {texts[int(i)]}"
            for i in _first_of_each_space(bad, headers, controls, all_of)
        }
    return found


def has_held_rows(rows: pa.Table) -> bool:
    """Return whether any of the rows cannot be applied to a table.

    Parameters
    ----------
    rows : pyarrow.Table
        With the columns `type`, `space_id` and `body`.

    """
    of_user = rows.filter(pc.greater(rows["space_id"], SYSTEM_ID_MAX)).combine_chunks()
    followed = pa.array([one.name for one in APPLIED_TYPES])
    if not pc.all(pc.is_in(of_user["type"], followed), min_count=0).as_py():
        return True
    ranges = of_user.filter(pc.equal(of_user["type"], RequestType.DELETE_RANGE.name))
    bodies = ranges["body"].combine_chunks()
    return ranges.num_rows > 0 and bool(pc.any(pc.is_valid(_range_errors(bodies))).as_py())


def _is_applied_type(codes: NDArray[np.int32]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.isin(codes, [int(one) for one in APPLIED_TYPES])
    return found


def unsupported_reason(name: str) -> str:
    """Return why rows of a type, named `name`, cannot be applied to a table."""
    if name == RequestType.INSERT_ARROW.name:
        return f"{HELD_PREFIX}: {name}: rows in Arrow batches, as engine memcs writes them, are not decoded"
    return f"{HELD_PREFIX}: {name}: a type of row that this version does not know"


def _first_of_each_space(
    mask: NDArray[np.bool_], headers: Headers, controls: NDArray[np.intp], all_of: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Return the indices of each space's first row in a mask, between every two control rows; all rows in `all_of`."""
    rows = np.flatnonzero(mask)
    pairs = np.searchsorted(controls, rows).astype(np.int64) << 32 | headers.space_id[rows].astype(np.int64)
    _, first = np.unique(pairs, return_index=True)
    found: NDArray[np.intp] = np.union1d(rows[first], rows[all_of[rows]])
    return found


def _range_errors(bodies: pa.Array) -> pa.Array:
    """Return the error of each DELETE_RANGE body, null for a valid one."""
    ranges = ranges_of(bodies)
    error = ranges.field("error")
    for name in ("begin", "end"):
        keys = canonical_prefixes(ranges.field(name), _ANY_KEY)
        error = pc.if_else(pc.is_null(error), keys.field("error"), error)
    return error
