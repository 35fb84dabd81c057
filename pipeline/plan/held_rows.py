"""Rows that the tables cannot follow: changes of a space whose type is not known, or whose content cannot be read.

Such a row stops its space, by name: the table stays as it is, and the row and those behind it are held in `_changelog`.
The other spaces continue. Pure. Not here: what then becomes of the space (`pipeline.plan.history`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.iproto import DML_MAX, GROUP_LOCAL, SYSTEM_ID_MAX, RequestType, type_name
from schemas.space import PARTS_MAX, KeyPart, Space
from schemas.states import HELD_PREFIX
from sources.xlog.format.headers import Headers
from udfs.keys.keys import canonical_prefixes, key_plan
from udfs.tuples.row_body import ranges_of

APPLIED_TYPES = (
    *(RequestType.INSERT, RequestType.REPLACE, RequestType.UPDATE, RequestType.UPSERT, RequestType.DELETE),
    *(RequestType.NOP, RequestType.DELETE_RANGE),
)
"""Types of rows that tables follow."""

_ANY_KEY = key_plan([Space(0, 0, "", "memtx", (), tuple(KeyPart(i, "scalar") for i in range(PARTS_MAX)))])
"""A key whose parts may be anything: the definition that is valid at a row is not known where rows are read."""


def held_reasons(rows: pa.RecordBatch, headers: Headers, places: NDArray[np.intp]) -> dict[int, str]:
    """Return the rows that their spaces cannot be followed past, and why; of rows alike the first one.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        Consecutive rows of a log: `schemas.xrow.XROW_FIELDS`.
    headers : Headers
        Of the same rows.
    places : intp[k]
        The control rows among them, ascending: a space may be followed again behind one, so the first held row behind
        each is needed.

    Returns
    -------
    dict of int to str
        Index of the row to the reason.

    """
    codes = headers.type
    of_user = (headers.space_id > SYSTEM_ID_MAX) & (headers.group_id != GROUP_LOCAL)
    changes = of_user & (codes > RequestType.SELECT) & (codes <= DML_MAX)
    found = {
        int(i): unsupported_reason(type_name(int(codes[i])))
        for i in _first_of_each_space(changes & ~_is_applied_type(codes), headers, places)
    }
    ranges = np.flatnonzero(changes & (codes == RequestType.DELETE_RANGE))
    if len(ranges):
        errors = _range_errors(rows.column("body").take(pa.array(ranges)))
        bad = np.zeros(len(codes), np.bool_)
        bad[ranges] = pc.is_valid(errors).to_numpy(zero_copy_only=False)
        texts = dict(zip(ranges.tolist(), errors.to_pylist(), strict=True))
        found |= {
            int(i): f"{HELD_PREFIX}: DELETE_RANGE: {texts[int(i)]}"
            for i in _first_of_each_space(bad, headers, places)
        }
    return found


def has_held_rows(rows: pa.Table) -> bool:
    """Return whether rows of a log have one that its space cannot be followed past.

    Parameters
    ----------
    rows : pyarrow.Table
        With `type`, `space_id` and `body`.

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
    """Return why a space cannot be followed past a row, by the name of the row's type."""
    if name == RequestType.INSERT_ARROW.name:
        return f"{HELD_PREFIX}: {name}: rows in Arrow batches, as engine memcs writes them, are not decoded"
    return f"{HELD_PREFIX}: {name}: a type of row that this version does not know"


def _first_of_each_space(
    wanted: NDArray[np.bool_], headers: Headers, places: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the first of the wanted rows of each space between two control rows."""
    rows = np.flatnonzero(wanted)
    pairs = np.searchsorted(places, rows).astype(np.int64) << 32 | headers.space_id[rows].astype(np.int64)
    _, first = np.unique(pairs, return_index=True)
    found: NDArray[np.intp] = rows[np.sort(first)]
    return found


def _range_errors(bodies: pa.Array) -> pa.Array:
    """Return why each range cannot be read, null where it can."""
    ranges = ranges_of(bodies)
    error = ranges.field("error")
    for name in ("begin", "end"):
        keys = canonical_prefixes(ranges.field(name), _ANY_KEY)
        error = pc.if_else(pc.is_null(error), keys.field("error"), error)
    return error
