"""Values in the bodies of rows: a walk over many body maps that finds some of their keys.

Rows that have operations or a key of their own have columns for them; here is what only few rows have. The walk is
careful: bodies of types that are not known come here, too.
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
        Become the places of each value in `data`; -1 where a body lacks the key.
    codes : int8 array, (rows,)
        Become `FOUND`, or `DAMAGED` for a body that is no map with keys that are numbers.

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
