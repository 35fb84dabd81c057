"""Finds elements of a container: the n-th one, or a map's value by its key.

The compiled loops are imported with the first large container: a command such as `cat`, which hardly ever meets one,
prints its first row before they would be loaded. Not here: a path of several steps
(`udfs.operations.update_bar.descend`).
"""

from __future__ import annotations

from udfs.operations.msgpack_walk import KIND, STR, skip, string

MANY_BYTES, MANY_ELEMENTS = 1024, 64
"""From these on the compiled loops are used: to call one takes as long as a loop over some ten elements."""


def skip_many(data: bytes, pos: int, count: int) -> int:
    """Return the position behind `count` values from `pos` on."""
    if count >= MANY_ELEMENTS:
        import numpy as np

        from udfs.operations.kernels.elements import skip_elements

        found = skip_elements(np.frombuffer(data, np.uint8), pos, count)
        if found >= 0:
            return found
    for _ in range(count):
        pos = skip(data, pos)
    return pos


def find_text(data: bytes, pos: int, end: int, count: int, key: bytes) -> tuple[int, int] | None:
    """Return where the key and the value of a pair begin, or None if no pair has a text as key.

    Parameters
    ----------
    data : bytes
    pos, end, count : int
        Where the first pair begins; the search ends at `end` or behind `count` pairs.
    key : bytes

    Raises
    ------
    TupleError
        The bytes are no MessagePack.

    """
    if count >= MANY_ELEMENTS and end - pos >= MANY_BYTES:
        import numpy as np

        from udfs.operations.kernels.elements import find_text_key

        found = find_text_key(np.frombuffer(data, np.uint8), pos, end, count, np.frombuffer(key, np.uint8))
        if found[0] != -1:
            return found if found[0] >= 0 else None
    while count > 0 and pos < end:
        value = skip(data, pos)
        if KIND[data[pos]] == STR:
            begin, stop = string(data, pos)
            if data[begin:stop] == key:
                return pos, value
        pos = skip(data, value)
        count -= 1
    return None
