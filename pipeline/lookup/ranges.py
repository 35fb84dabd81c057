"""Finds the versions that DELETE_RANGE rows may end.

Pure. A range acts as a DELETE on each key that it contains. If several ranges contain a key, only the first one after
each row of the key, or after its base version, can find a tuple; the others find none. So a key has at most one such
hit per row, and one for the base version, however many ranges there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.keyed_rows import DELETED_RANGE
from pipeline.lookup.reduce_plan import ReducePlan
from udfs.buffers import as_array, flatten
from udfs.kernels.values import OVERREAD_BYTES
from udfs.keys.kernels.range_search import build_range_tree, find_hits, find_ranges
from udfs.keys.key_order import KeyOrder, PartDirections, directions_of, key_order, ordered_keys

Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]

NO_NUMBER = -1
"""In place of a number: a row without a key, or a slot without ranges."""


@dataclass(frozen=True)
class RangeSet:
    """A segment tree of the batch's ranges; within a slot, all ranges of the set compare keys in the same order.

    Usually one set has all ranges; more are needed only if parts of a primary key changed between ascending and
    descending within an era. The begins and ends of a slot's ranges divide its keys into intervals: each range covers
    whole intervals.
    """

    order: KeyOrder
    """One definition per slot with ranges."""
    slot_definitions: Int32s
    """Number of each slot's key definition in `order`, -1 for a slot without ranges (int32[slots])."""
    first_intervals: Int32s
    """Number of each definition's first interval (int32[definitions])."""
    first_bounds: Int32s
    """Index in `bounds` of each definition's first bound (int32[definitions + 1])."""
    bounds: pa.Array
    """The begins and ends of ranges, as bytes that compare as the keys do, ascending within a definition."""
    leaf_count: int
    """Number of leaves of the tree, at least that of the intervals."""
    tree_nodes: Int64s
    tree_items: Int64s
    """The tree (`udfs.keys.kernels.range_search`)."""

    def interval_numbers(self, slots: Int32s, keys: pa.Array) -> Int64s:
        """Return the number of the interval between two bounds with each key; -1: its table has no DELETE_RANGE."""
        which = np.where(slots >= 0, self.slot_definitions[slots], np.int32(NO_NUMBER))
        return self._interval_numbers_of_ordered(which, ordered_keys(keys, self.order, which))

    def _interval_numbers_of_ordered(self, definitions: Int32s, keys: pa.Array) -> Int64s:
        flat, bounds = flatten(keys, OVERREAD_BYTES), flatten(self.bounds, OVERREAD_BYTES)
        found = np.empty(len(keys), np.int32)
        find_ranges(
            *(definitions, flat.data, flat.offsets, flat.nulls),
            *(self.first_intervals, self.first_bounds, bounds.data, bounds.offsets, found),
        )
        return found.astype(np.int64)

    def hit_pairs(
        self, row_keys: Int32s, intervals: Int64s, has_live_version: Flags
    ) -> tuple[Int64s, Int32s]:
        """Return pairs of a DELETE_RANGE row and a key whose version it may end, as two arrays.

        The first array has the numbers of the rows, the second one the index of the key of each pair.

        Args:
            has_live_version: Whether a key has a present or unfit version before the first row (bool[keys]).
        """
        most = len(row_keys) + len(intervals)
        hit_rows, hit_keys = np.empty(most, np.int64), np.empty(most, np.int32)
        memory = np.empty(len(intervals), np.int64)
        count = find_hits(
            *(
                row_keys,
                intervals,
                has_live_version.astype(np.uint8),
                self.leaf_count,
                self.tree_nodes,
                self.tree_items,
            ),
            *(memory, hit_rows, hit_keys),
        )
        return hit_rows[:count], hit_keys[:count]


@dataclass(frozen=True)
class Ranges:
    """The ranges of a batch's DELETE_RANGE rows."""

    slots: Int32s
    """The slot of each range (int32[ranges])."""
    sets: Sequence[RangeSet]
    """Each range is in one of them."""

    @cached_property
    def all_slots(self) -> frozenset[int]:
        """The slots that have ranges."""
        return frozenset(np.unique(self.slots).tolist())

    def contain(self, slot: int, keys: pa.Array) -> Flags:
        """Return for each key of a slot whether any range contains it."""
        found = np.zeros(len(keys), np.bool_)
        slots = np.full(len(keys), slot, np.int32)
        nothing = np.zeros(0, np.int32)
        for one in self.sets:
            _, hit = one.hit_pairs(nothing, one.interval_numbers(slots, keys), np.ones(len(keys), np.bool_))
            found[hit] = True
        return found

    def hit_pairs(
        self, slots: Int32s, keys: pa.Array, row_keys: Int32s, has_live_version: Flags
    ) -> tuple[Int64s, Int32s]:
        """Return pairs of a DELETE_RANGE row and a key whose version it may end, as `RangeSet.hit_pairs`."""
        found = [
            one.hit_pairs(row_keys, one.interval_numbers(slots, keys), has_live_version) for one in self.sets
        ]
        return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


@dataclass(frozen=True)
class RowKeyPairs:
    """The pairs (row, key) to apply, in log order: each row with its own key, a DELETE_RANGE with each key it hits."""

    rows: Int64s | None
    """The row of each pair (int64[n] or None); None if the pairs are all rows in order."""
    keys: Int32s
    """The number of each pair's key, -1 for a pair to skip (int32[n])."""

    def row_values(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a column of the rows, with the value of each pair's row."""
        return values if self.rows is None else values[self.rows]

    def rows_at(self, pairs: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of the pairs with these indices."""
        return pairs if self.rows is None else self.rows[pairs]

    def without_keys(self, keys: Int32s, key_count: int) -> RowKeyPairs:
        """Skip the pairs of these keys; `key_count` is the number of all keys."""
        is_left_out = np.zeros(key_count + 1, np.bool_)
        is_left_out[keys] = True
        return RowKeyPairs(self.rows, np.where(is_left_out[self.keys], np.int32(NO_NUMBER), self.keys))


def ranges_in(rows: pa.Table, slots: Int32s, plan: ReducePlan) -> Ranges | None:
    """Return the ranges of keyed rows, None if there are none."""
    indices = np.flatnonzero(rows["type"].to_numpy() == DELETED_RANGE)
    if not len(indices):
        return None
    own = rows.take(pa.array(indices)).combine_chunks()
    versions = plan.meanings.versions[own["meaning"].to_numpy()]
    directions = {int(one): directions_of(plan.schema_versions[one].space) for one in np.unique(versions)}
    known: dict[int, list[PartDirections]] = {}
    turns = np.zeros(len(indices), np.int32)
    for i, (slot, version) in enumerate(zip(slots[indices].tolist(), versions.tolist(), strict=True)):
        orders = known.setdefault(slot, [])
        if directions[version] not in orders:
            orders.append(directions[version])
        turns[i] = orders.index(directions[version])
    sets = []
    for turn in range(int(turns.max()) + 1):
        chosen = np.flatnonzero(turns == turn)
        of_turn = {slot: one[turn] for slot, one in known.items() if len(one) > turn}
        part = own.take(pa.array(chosen))
        sets.append(_range_set(part, slots[indices[chosen]], indices[chosen], of_turn, plan))
    return Ranges(slots[indices], sets)


def _range_set(
    rows: pa.Table,
    slots: Int32s,
    indices: NDArray[np.intp],
    directions_by_slot: dict[int, PartDirections],
    plan: ReducePlan,
) -> RangeSet:
    order, numbers = (
        key_order(list(directions_by_slot.values())),
        np.full(len(plan.slot_lineages), NO_NUMBER, np.int32),
    )
    numbers[list(directions_by_slot)] = np.arange(len(directions_by_slot), dtype=np.int32)
    which = numbers[slots]
    begins, ends = (ordered_keys(as_array(rows[name]), order, which) for name in ("tuple", "operations"))
    sorted_bounds = [
        sorted(
            set(pa.concat_arrays([one.filter(pa.array(which == i)) for one in (begins, ends)]).to_pylist())
        )
        for i in range(len(directions_by_slot))
    ]
    starts = np.cumsum([0, *map(len, sorted_bounds)]).astype(np.int32)
    firsts = (starts[:-1] + np.arange(len(directions_by_slot))).astype(np.int32)
    bounds = pa.array([one for own in sorted_bounds for one in own], pa.binary())
    count = int(starts[-1]) + len(directions_by_slot)
    size = 1 << max(0, (count - 1).bit_length())
    found = RangeSet(order, numbers, firsts, starts, bounds, size, _NO_ITEMS, _NO_ITEMS)
    lows, highs = (found._interval_numbers_of_ordered(which, one) for one in (begins, ends))
    # A range covers the intervals from its begin to the one before its end; an end without parts is unbounded.
    last = firsts + np.diff(starts)
    highs = np.where(_is_unbounded(ends), last[which], highs - 1).astype(np.int64)
    nodes, rows_ = np.zeros(2 * size + 1, np.int64), indices.astype(np.int64)
    items = np.empty(build_range_tree(lows, highs, rows_, size, nodes, _NO_ITEMS), np.int64)
    if len(items):
        build_range_tree(lows, highs, rows_, size, nodes, items)
    return RangeSet(order, numbers, firsts, starts, bounds, size, nodes, items)


_NO_ITEMS = np.zeros(0, np.int64)


def _is_unbounded(bounds: pa.Array) -> Flags:
    found: Flags = pc.equal(pc.binary_length(bounds), 0).to_numpy(zero_copy_only=False)
    return found
