"""Writes canonical keys, or their first parts, as bytes that compare as a tree index compares the keys.

`udfs.keys.kernels.sort_key` writes each part; the bytes of a descending part are complemented. No part's bytes are a
prefix of another's; so a key begins with the bytes of its first parts and sorts at or after them, like Tarantool's
lower bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import entry
from udfs.kernels.memory import address, load8, store8
from udfs.kernels.values import ARRAY, BAD, BINARY, STRING, head, skip
from udfs.keys.kernels.sort_key import FIXED_MAX, put_sort_key


@entry
def order(
    data: Any, offsets: Any, nulls: Any, which: Any, starts: Any, descending: Any, out: Any, ends: Any
) -> bool:
    """Write the bytes of each key; a null key has none.

    Returns whether all keys match their definitions and had room.

    Parameters
    ----------
    data, offsets, nulls : arrays
        Canonical keys (`udfs.buffers.Flat`).
    which : int32 array, (rows,)
        Number of each key's definition; a key with a negative one is left out.
    starts : int32 array, (definitions + 1,)
        First part of each definition.
    descending : uint8 array, (parts,)
        Whether a part's order is descending.
    out : uint8 array
        Large enough for all keys.
    ends : int64 array, (rows + 1,), zeroed
        Where each key's bytes start in `out`, and where the last one's end.

    """
    base, begin = address(data), address(out)
    target, limit = begin, begin + len(out)
    for row in range(len(nulls)):
        if not nulls[row] and which[row] >= 0:
            pos, end = base + offsets[row], base + offsets[row + 1]
            kind, count, pos = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
            if kind != ARRAY or which[row] >= len(starts) - 1:
                return False
            if count > starts[which[row] + 1] - starts[which[row]]:
                return False
            for part in range(count):
                kind, argument, content = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
                size = 2 * argument if kind in (STRING, BINARY) else 0
                if kind == BAD or target + FIXED_MAX + size > limit:
                    return False
                after = put_sort_key(target, kind, argument, content)
                if descending[starts[which[row]] + part]:
                    for place in range(target, after):
                        store8(place, ~load8(place))
                target = after
                pos = skip(pos, end)
                if pos < 0:
                    return False
        ends[row + 1] = target - begin
    return True
