"""Finds the range of keys that each row is in, by a binary search among the bounds of its group."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import entry, inner
from udfs.kernels.memory import address, load8
from udfs.kernels.values import Int

NOWHERE = -1


@inner
def _is_less(one: Int, one_size: Int, other: Int, other_size: Int) -> Any:
    for at in range(min(one_size, other_size)):
        left, right = load8(one + at), load8(other + at)
        if left != right:
            return left < right
    return one_size < other_size


@entry
def range_rows(
    groups: Any,
    data: Any,
    offsets: Any,
    nulls: Any,
    firsts: Any,
    starts: Any,
    bound_data: Any,
    bound_offsets: Any,
    numbers: Any,
) -> None:
    """Write the number of each row's range to `numbers`.

    Parameters
    ----------
    groups : int32[n]
        Group of each row; -1 for a row in no range.
    data, offsets, nulls
        The keys, as in `udfs.buffers.BinaryBuffers`. A row without a key is in no range.
    firsts : int32[groups]
        Number of the first range of each group.
    starts : int32[groups + 1]
        First bound of each group.
    bound_data, bound_offsets
        The least key of each range of a group but its first, ascending within the group.
    numbers : int32[n]
        Receives the range of each row; -1 if it is in no range.

    """
    base, bounds = address(data), address(bound_data)
    for row in range(groups.size):
        group = groups[row]
        if group < 0 or nulls[row] != 0:
            numbers[row] = NOWHERE
            continue
        begin, size = base + offsets[row], np.int64(offsets[row + 1] - offsets[row])
        low, high = np.int64(starts[group]), np.int64(starts[group + 1])
        first = low
        while low < high:
            middle = (low + high) >> 1
            bound = bounds + bound_offsets[middle]
            if _is_less(begin, size, bound, np.int64(bound_offsets[middle + 1] - bound_offsets[middle])):
                high = middle
            else:
                low = middle + 1
        numbers[row] = np.int32(firsts[group] + low - first)
