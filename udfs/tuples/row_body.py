"""Reads the parts of a row's body that have no column: the range of a DELETE_RANGE and the new tuple of `wal_ext`.

Tarantool 3.9 logs `index:delete_range(begin, end)` as one row. It deletes the keys from `begin` (included) to `end`
(excluded) in the order of the index. A bound may be only the first parts of a key; an empty one leaves its side open.

A kernel finds the values of given keys of the body map (`schemas.iproto.BodyKey`) in many rows. It checks everything,
because it also reads bodies of unknown row types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.compiled import entry
from schemas.iproto import BodyKey
from udfs.buffers import binary_array, flatten
from udfs.kernels.memory import address
from udfs.kernels.values import BAD, MAP, OVERREAD_BYTES, UNSIGNED, head, skip

FOUND, DAMAGED = 0, 1
"""Codes of bodies."""


@entry
def find_body_values(
    data: Any, offsets: Any, nulls: Any, keys: Any, begins: Any, ends: Any, codes: Any
) -> None:
    """Find the values of some keys in each body.

    Args:
        data, offsets, nulls: The bodies (`udfs.buffers.BinaryBuffers`).
        keys: Keys of the body map (`schemas.iproto.BodyKey`; int64[k]).
        begins, ends: Receive where each value begins and ends in `data` (int64[k, rows]); -1 if a body lacks the key.
        codes: Receive `FOUND`, or `DAMAGED` for a body that is not a map with numbers as keys (int8[rows]).
    """
    base = address(data)
    begins[:] = -1
    ends[:] = -1
    for row in range(len(nulls)):
        codes[row] = FOUND
        if nulls[row]:
            continue
        pos, end = base + offsets[row], base + offsets[row + 1]
        kind, pairs, pos = head(pos, end) if pos < end else (BAD, 0, pos)
        if kind != MAP:
            codes[row] = DAMAGED
            continue
        for _ in range(pairs):
            kind, key, pos = head(pos, end) if pos < end else (BAD, 0, pos)
            after = skip(pos, end) if kind == UNSIGNED and pos < end else -1
            if after < 0:
                codes[row] = DAMAGED
                break
            for index in range(len(keys)):
                if keys[index] == key:
                    begins[index, row], ends[index, row] = pos - base, after - base
            pos = after


RANGE_ARROW = pa.struct([("begin", pa.binary()), ("end", pa.binary()), ("error", pa.string())])
"""The result of `delete_ranges`."""

_PRIMARY_INDEX_ID = b"\x00"
"""The id of the primary index, in MessagePack."""


def body_values(bodies: pa.Array, keys: Sequence[int]) -> tuple[list[pa.Array], pa.Array]:
    """Return an array of values for each key, and for each body whether it is damaged.

    The values are MessagePack, null where a body lacks the key.

    Args:
        bodies: Body maps of rows; a null has no keys.
        keys: Keys of the body map (`schemas.iproto.BodyKey`).
    """
    flat, rows = flatten(bodies, OVERREAD_BYTES), len(bodies)
    begins, ends = np.empty((len(keys), rows), np.int64), np.empty((len(keys), rows), np.int64)
    codes = np.empty(rows, np.int8)
    find_body_values(flat.data, flat.offsets, flat.nulls, np.array(keys, np.int64), begins, ends, codes)
    found = []
    for own_begins, own_ends in zip(begins, ends, strict=True):
        sizes = np.where(own_begins >= 0, own_ends - own_begins, 0)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        positions = np.repeat(own_begins - offsets[:-1], sizes) + np.arange(offsets[-1])
        found.append(binary_array(pa.binary(), offsets, flat.data[positions], own_begins >= 0))
    return found, pa.array(codes == DAMAGED)


def new_tuples(bodies: pa.Array) -> pa.Array:
    """Return the new tuple that the server logged with each row (`wal_ext`); null if it did not."""
    (found,), _ = body_values(bodies, [BodyKey.NEW_TUPLE])
    return found


def delete_ranges(bodies: pa.Array) -> pa.StructArray:
    """Return the range of each DELETE_RANGE row, read from the row's body.

    Returns:
        `RANGE_ARROW`: `begin` and `end` as arrays of the first parts of a key, and why a range cannot be read, or null.
    """
    (begin, end, index), damaged = body_values(bodies, [BodyKey.BEGIN_KEY, BodyKey.END_KEY, BodyKey.INDEX_ID])
    lacks = pc.or_(pc.is_null(begin), pc.is_null(end))
    secondary = pc.fill_null(pc.not_equal(index, pa.scalar(_PRIMARY_INDEX_ID, pa.binary())), False)
    error = pc.if_else(damaged, pa.scalar("its body is not a map"), pa.scalar(None, pa.string()))
    error = pc.if_else(pc.and_(pc.is_null(error), lacks), "it has no begin key or no end key", error)
    error = pc.if_else(pc.and_(pc.is_null(error), secondary), "it is of a secondary index", error)
    return pa.StructArray.from_arrays([begin, end, error], fields=list(RANGE_ARROW))
