"""Finds the values of some keys in the body maps of many rows.

Frequent keys have columns of their own; this finds those that only few rows have. The walk checks everything, because
bodies of unknown row types come here, too.
"""

from __future__ import annotations

from typing import Any

from schemas.compiled import entry
from udfs.kernels.memory import address
from udfs.kernels.values import BAD, MAP, UNSIGNED, head, skip

FOUND, DAMAGED = 0, 1


@entry
def find(data: Any, offsets: Any, nulls: Any, keys: Any, begins: Any, ends: Any, codes: Any) -> None:
    """Find the values of some keys in each body.

    Parameters
    ----------
    data, offsets, nulls : arrays
        The bodies (`udfs.buffers.Flat`).
    keys : int64 array, (k,)
    begins, ends : int64 array, (k, rows)
        Receive the position of each value in `data`; -1 if a body lacks the key.
    codes : int8 array, (rows,)
        Receive `FOUND`, or `DAMAGED` for a body that is not a map with numbers as keys.

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
            for place in range(len(keys)):
                if keys[place] == key:
                    begins[place, row], ends[place, row] = pos - base, after - base
            pos = after
