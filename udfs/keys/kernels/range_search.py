"""Finds the ranges of keys that contain a key, among ranges that do not overlap and among those of DELETE_RANGE rows.

`find_ranges` finds the range that contains a key, by a binary search among the bounds of ranges that do not overlap.
Each group of tables has its own ranges (`pipeline.lookup.partitions`), and the bounds of all groups are in one array.

`find_hits` finds the next DELETE_RANGE that contains a key. This type of row deletes all keys of a range
(`index:delete_range`, Tarantool 3.9). Such ranges may overlap, so they are in a segment tree, which `build_range_tree`
makes. The sorted bounds of all ranges divide the keys into intervals, numbered from 0. A range covers consecutive
intervals and has a position (row) in the log. The children of the tree's node n are 2 n and 2 n + 1; the leaves start
at `size`. A range is stored at the few nodes that together cover it, in the order of the log. So the search for the
next range after a row takes log² steps, however many ranges there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import entry, inner
from udfs.kernels.memory import address, load8
from udfs.kernels.values import Int

NO_ROW = -1
"""Where no range is found, in place of its row."""


@entry
def build_range_tree(lows: Any, highs: Any, rows: Any, size: Int, starts: Any, items: Any) -> Int:
    """Store ranges at the nodes that cover them; return the number of items.

    Call it twice with the same `starts`: first with an empty `items`, which fills `starts`, then with an `items` of the
    returned length.

    Args:
        lows, highs: First and last interval of each range (int64[ranges]); a range whose last interval is before its
            first covers none.
        rows: The row of each range in the log, ascending (int64[ranges]).
        size: A power of two, at least the number of intervals.
        starts: Start of each node's items (int64[2 size + 1]). Zeros before the first call.
        items: Rows of ranges, node by node.
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
def _next_range_row(interval: Int, size: Int, after: Int, starts: Any, items: Any) -> Int:
    """Return the first row after the row `after` that has a range covering an interval; `NO_ROW` if there is none."""
    found: Int = NO_ROW
    node = interval + size
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
    intervals: Any,
    exists_before: Any,
    size: Int,
    starts: Any,
    items: Any,
    last_hits: Any,
    hit_rows: Any,
    hit_keys: Any,
) -> Int:
    """Find the DELETE_RANGEs that may delete a version, as pairs (row of the range, number of the key).

    After each row of a key this is the first range that contains the key. For a key that has a version before the first
    row, it is also the first range of all that contains the key.

    Args:
        keys: Number of each row's key, -1 for a row to ignore (int32[rows]).
        intervals: The interval of each key, -1 for a key that no range can contain (int64[keys]).
        exists_before: Whether a key has a version before the first row of `keys` (uint8[keys]).
        size, starts, items: The tree, as filled by `build_range_tree`.
        last_hits: Working memory: the last range found for each key (int64[keys]).
        hit_rows, hit_keys: Receive the rows of ranges, and the numbers of the keys that they contain (int64 and
            int32[rows + keys]).

    Returns:
        Number of pairs found.
    """
    count: Int = 0
    for key in range(intervals.size):
        last_hits[key] = NO_ROW
        if intervals[key] >= 0 and exists_before[key] != 0:
            hit = _next_range_row(intervals[key], size, NO_ROW, starts, items)
            if hit >= 0:
                hit_rows[count], hit_keys[count], last_hits[key] = hit, key, hit
                count += 1
    for row in range(keys.size):
        key = keys[row]
        if key < 0 or intervals[key] < 0:
            continue
        hit = _next_range_row(intervals[key], size, row, starts, items)
        if hit >= 0 and hit != last_hits[key]:
            hit_rows[count], hit_keys[count], last_hits[key] = hit, key, hit
            count += 1
    return count


NO_RANGE = -1
"""Where no range is found, in place of its number."""


@inner
def _are_bytes_less(one: Int, one_size: Int, other: Int, other_size: Int) -> Any:
    """Return whether the bytes at the address `one` sort before those at the address `other`."""
    for at in range(min(one_size, other_size)):
        left, right = load8(one + at), load8(other + at)
        if left != right:
            return left < right
    return one_size < other_size


@entry
def find_ranges(
    groups: Any,
    data: Any,
    offsets: Any,
    nulls: Any,
    first_ranges: Any,
    first_bounds: Any,
    bound_data: Any,
    bound_offsets: Any,
    range_numbers: Any,
) -> None:
    """Find the range that contains the key of each row.

    Args:
        groups: Group of each row's table (int32[n]); -1 for a row in no range.
        data, offsets, nulls: The keys, as in `udfs.buffers.BinaryBuffers`. A row without a key is in no range.
        first_ranges: Number of each group's first range (int32[groups]).
        first_bounds: Index of each group's first bound (int32[groups + 1]).
        bound_data, bound_offsets: The bounds of the groups, one group after another, ascending in each group. A bound
            is the least key of a range. The first range of a group has no bound, so a group of n ranges has n - 1
            bounds.
        range_numbers: Receives the range of each row (int32[n]); -1 if it is in no range.
    """
    base, bounds = address(data), address(bound_data)
    for row in range(groups.size):
        group = groups[row]
        if group < 0 or nulls[row] != 0:
            range_numbers[row] = NO_RANGE
            continue
        begin, size = base + offsets[row], np.int64(offsets[row + 1] - offsets[row])
        low, high = np.int64(first_bounds[group]), np.int64(first_bounds[group + 1])
        first = low
        while low < high:
            middle = (low + high) >> 1
            bound = bounds + bound_offsets[middle]
            if _are_bytes_less(
                begin, size, bound, np.int64(bound_offsets[middle + 1] - bound_offsets[middle])
            ):
                high = middle
            else:
                low = middle + 1
        range_numbers[row] = np.int32(first_ranges[group] + low - first)
