"""Finds the next DELETE_RANGE that contains a key, with a segment tree over the slots between the ranges' bounds.

The sorted bounds of all ranges divide the keys into places, numbered from 0. A range covers consecutive places and has
a position (row) in the log. The children of the tree's node n are 2 n and 2 n + 1; the leaves start at `size`. A range
is stored at the few nodes that together cover it, in the order of the log. So the next range after a row that contains
a key is found in log² steps, however many ranges there are.
"""

from __future__ import annotations

from typing import Any

from schemas.compiled import entry, inner
from udfs.kernels.values import Int

NOTHING = -1


@entry
def build(lows: Any, highs: Any, rows: Any, size: Int, starts: Any, items: Any) -> Int:
    """Store ranges at the nodes that cover them; return the number of items.

    Call it twice: first without room for `items`, to fill `starts`.

    Parameters
    ----------
    lows, highs : int64 array, (ranges,)
        First and last place of each range; a range whose last place is before its first covers none.
    rows : int64 array, (ranges,)
        The row of each range, ascending.
    size : int
        A power of two, at least the number of places.
    starts : int64 array, (2 size + 1,)
        Start of each node's items. Zeros before the first call.
    items : int64 array
        Rows of ranges, node by node.

    """
    is_first = items.size == 0
    for number in range(rows.size):
        low, high = lows[number] + size, highs[number] + size + 1
        while low < high:
            if low & 1:
                if is_first:
                    starts[low + 1] += 1
                else:
                    items[starts[low]] = rows[number]
                    starts[low] += 1
                low += 1
            if high & 1:
                high -= 1
                if is_first:
                    starts[high + 1] += 1
                else:
                    items[starts[high]] = rows[number]
                    starts[high] += 1
            low >>= 1
            high >>= 1
    if is_first:
        for node in range(2 * size):
            starts[node + 1] += starts[node]
    else:
        # Filling has moved the beginning of each node to its end.
        for node in range(2 * size, 0, -1):
            starts[node] = starts[node - 1]
        starts[0] = 0
    return starts[2 * size]


@inner
def _next(place: Int, size: Int, after: Int, starts: Any, items: Any) -> Int:
    """Return the first row after another one whose range contains a place; `NOTHING` if there is none."""
    found: Int = NOTHING
    node = place + size
    while node > 0:
        low, high = starts[node], starts[node + 1]
        end = high
        while low < high:
            middle = (low + high) >> 1
            if items[middle] > after:
                high = middle
            else:
                low = middle + 1
        if low < end and (found < 0 or items[low] < found):
            found = items[low]
        node >>= 1
    return found


@entry
def find_hits(
    keys: Any,
    places: Any,
    lives: Any,
    size: Int,
    starts: Any,
    items: Any,
    last: Any,
    hit_rows: Any,
    hit_keys: Any,
) -> Int:
    """Find the ranges that may end a version: after each row of a key, the first range that contains the key.

    Parameters
    ----------
    keys : int32 array, (rows,)
        Number of each row's key, -1 for a row to ignore.
    places : int64 array, (keys,)
        The place of each key, -1 for a key that no range can contain.
    lives : uint8 array, (keys,)
        Whether a key has a version before the first row.
    size, starts, items
        As in `build`.
    last : int64 array, (keys,)
        Working memory.
    hit_rows, hit_keys : int64 and int32 array, (rows + keys,)
        Receive the rows of ranges, and the numbers of the keys that they contain.

    Returns
    -------
    int
        Number of pairs found.

    """
    count: Int = 0
    for key in range(places.size):
        last[key] = NOTHING
        if places[key] >= 0 and lives[key] != 0:
            hit = _next(places[key], size, NOTHING, starts, items)
            if hit >= 0:
                hit_rows[count], hit_keys[count], last[key] = hit, key, hit
                count += 1
    for row in range(keys.size):
        key = keys[row]
        if key < 0 or places[key] < 0:
            continue
        hit = _next(places[key], size, row, starts, items)
        if hit >= 0 and hit != last[key]:
            hit_rows[count], hit_keys[count], last[key] = hit, key, hit
            count += 1
    return count
