"""DELETE_RANGE: the rows of keyed rows that delete ranges of keys, and which versions each of them ends.

Pure. What a range does to a key that it holds is what a DELETE does. Of the ranges that hold a key only the first one
behind each of the key's rows, or behind the version before the batch, can find a tuple; so each key is visited once a
row at most, however many ranges there are.
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

from pipeline.changelog.rows import DELETED_RANGE
from pipeline.reduce.reduce_plan import ReducePlan
from udfs.buffers import as_array, flatten
from udfs.kernels.values import OVERREAD
from udfs.keys.kernels.key_ranges import range_rows
from udfs.keys.kernels.ranges import build, find_hits
from udfs.keys.key_order import Directions, KeyOrder, directions_of, key_order, ordered_keys

Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]

NOWHERE = -1


@dataclass(frozen=True)
class RangeSet:
    """Ranges whose keys order alike in each slot: a part of a batch's ranges, nearly always all of them.

    Parameters
    ----------
    order : KeyOrder
        A definition a slot that has ranges.
    definitions : int32[slots]
        Number of each slot's definition, -1 for a slot without ranges.
    firsts : int32[definitions]
        The first place of each definition's keys.
    starts : int32[definitions + 1]
        First bound of each definition in `bounds`.
    bounds : pyarrow.BinaryArray
        Where ranges begin and end, as bytes that order, ascending within a definition.
    size : int
    nodes, items : int64 arrays
        The segment tree (`udfs.keys.kernels.ranges`).

    """

    order: KeyOrder
    definitions: Int32s
    firsts: Int32s
    starts: Int32s
    bounds: pa.Array
    size: int
    nodes: Int64s
    items: Int64s

    def places_of(self, slots: Int32s, keys: pa.Array) -> Int64s:
        """Return the place of each key among the bounds, -1 for a key without a slot, or whose slot has no ranges."""
        which = np.where(slots >= 0, self.definitions[slots], np.int32(NOWHERE))
        return self._places(which, ordered_keys(keys, self.order, which))

    def _places(self, which: Int32s, keys: pa.Array) -> Int64s:
        flat, bounds = flatten(keys, OVERREAD), flatten(self.bounds, OVERREAD)
        found = np.empty(len(keys), np.int32)
        range_rows(
            *(which, flat.data, flat.offsets, flat.nulls),
            *(self.firsts, self.starts, bounds.data, bounds.offsets, found),
        )
        return found.astype(np.int64)

    def hits(self, rows: Int32s, places: Int64s, lives: Flags) -> tuple[Int64s, Int32s]:
        """Return the rows of ranges that may end a version, and the numbers of the keys that they visit.

        Parameters
        ----------
        rows : int32[rows]
            Number of each row's key, -1 for a row that counts for none.
        places : int64[keys]
            As of `places_of`.
        lives : bool[keys]
            Whether a key has a version before the first row.

        """
        most = len(rows) + len(places)
        hit_rows, hit_keys = np.empty(most, np.int64), np.empty(most, np.int32)
        memory = np.empty(len(places), np.int64)
        count = find_hits(
            *(rows, places, lives.astype(np.uint8), self.size, self.nodes, self.items),
            *(memory, hit_rows, hit_keys),
        )
        return hit_rows[:count], hit_keys[:count]


@dataclass(frozen=True)
class Ranges:
    """The ranges of a batch.

    Parameters
    ----------
    slots : int32[ranges]
        Slot of each.
    sets : sequence of RangeSet
        Together they have all ranges.

    """

    slots: Int32s
    sets: Sequence[RangeSet]

    @cached_property
    def all_slots(self) -> frozenset[int]:
        """The slots that have ranges."""
        return frozenset(np.unique(self.slots).tolist())

    def hold(self, slot: int, keys: pa.Array) -> Flags:
        """Return which keys of a slot any range holds."""
        found = np.zeros(len(keys), np.bool_)
        slots = np.full(len(keys), slot, np.int32)
        nothing = np.zeros(0, np.int32)
        for one in self.sets:
            _, hit = one.hits(nothing, one.places_of(slots, keys), np.ones(len(keys), np.bool_))
            found[hit] = True
        return found

    def hits(self, slots: Int32s, keys: pa.Array, rows: Int32s, lives: Flags) -> tuple[Int64s, Int32s]:
        """Return the rows of ranges that may end a version, and the numbers of the keys that they visit.

        Parameters
        ----------
        slots : int32[keys]
            Slot of each key; -1 for a key that is not meant.
        keys : pyarrow.BinaryArray
        rows : int32[rows]
            Number of each row's key, -1 for a row that counts for none.
        lives : bool[keys]
            Whether a key has a version before the first row.

        """
        found = [one.hits(rows, one.places_of(slots, keys), lives) for one in self.sets]
        return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


@dataclass(frozen=True)
class Visits:
    """Which rows concern which keys, in the order of the log: a row of a key that key, a range each that it may end.

    Parameters
    ----------
    rows : int64[n] or None
        Number of the row of each visit; None where each row is one visit.
    keys : int32[n]
        Number of the key, -1 for a visit that counts for none.

    """

    rows: Int64s | None
    keys: Int32s

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each visit's row."""
        return column if self.rows is None else column[self.rows]

    def rows_at(self, visits: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of some visits."""
        return visits if self.rows is None else self.rows[visits]

    def without(self, keys: Int32s, count: int) -> Visits:
        """Return the visits in which some of the `count` keys count for none."""
        is_left_out = np.zeros(count + 1, np.bool_)
        is_left_out[keys] = True
        return Visits(self.rows, np.where(is_left_out[self.keys], np.int32(NOWHERE), self.keys))


def ranges_in(rows: pa.Table, slots: Int32s, plan: ReducePlan) -> Ranges | None:
    """Return the ranges among keyed rows, None where there are none.

    Parameters
    ----------
    rows : pyarrow.Table
        `pipeline.changelog.rows.KEYED`, in the order of the log.
    slots : int32[rows]
    plan : ReducePlan

    """
    places = np.flatnonzero(rows["type"].to_numpy() == DELETED_RANGE)
    if not len(places):
        return None
    own = rows.take(pa.array(places)).combine_chunks()
    versions = plan.meanings.versions[own["meaning"].to_numpy()]
    directions = {int(one): directions_of(plan.versions[one].space) for one in np.unique(versions)}
    known: dict[int, list[Directions]] = {}
    turns = np.zeros(len(places), np.int32)
    for i, (slot, version) in enumerate(zip(slots[places].tolist(), versions.tolist(), strict=True)):
        orders = known.setdefault(slot, [])
        if directions[version] not in orders:
            orders.append(directions[version])
        turns[i] = orders.index(directions[version])
    sets = []
    for turn in range(int(turns.max()) + 1):
        chosen = np.flatnonzero(turns == turn)
        of_turn = {slot: one[turn] for slot, one in known.items() if len(one) > turn}
        part = own.take(pa.array(chosen))
        sets.append(_range_set(part, slots[places[chosen]], places[chosen], of_turn, plan))
    return Ranges(slots[places], sets)


def _range_set(
    rows: pa.Table, slots: Int32s, places: NDArray[np.intp], orders: dict[int, Directions], plan: ReducePlan
) -> RangeSet:
    order, numbers = key_order(list(orders.values())), np.full(len(plan.slot_lineages), NOWHERE, np.int32)
    numbers[list(orders)] = np.arange(len(orders), dtype=np.int32)
    which = numbers[slots]
    begins, ends = (ordered_keys(as_array(rows[name]), order, which) for name in ("tuple", "operations"))
    sorted_bounds = [
        sorted(
            set(pa.concat_arrays([one.filter(pa.array(which == i)) for one in (begins, ends)]).to_pylist())
        )
        for i in range(len(orders))
    ]
    starts = np.cumsum([0, *map(len, sorted_bounds)]).astype(np.int32)
    firsts = (starts[:-1] + np.arange(len(orders))).astype(np.int32)
    bounds = pa.array([one for own in sorted_bounds for one in own], pa.binary())
    count = int(starts[-1]) + len(orders)
    size = 1 << max(0, (count - 1).bit_length())
    found = RangeSet(order, numbers, firsts, starts, bounds, size, _NONE, _NONE)
    lows, highs = (found._places(which, one) for one in (begins, ends))
    # A range holds the places from its beginning to the one before its end; an end without parts is open.
    last = firsts + np.diff(starts)
    highs = np.where(_is_open(ends), last[which], highs - 1).astype(np.int64)
    nodes, rows_ = np.zeros(2 * size + 1, np.int64), places.astype(np.int64)
    items = np.empty(build(lows, highs, rows_, size, nodes, _NONE), np.int64)
    if len(items):
        build(lows, highs, rows_, size, nodes, items)
    return RangeSet(order, numbers, firsts, starts, bounds, size, nodes, items)


_NONE = np.zeros(0, np.int64)


def _is_open(bounds: pa.Array) -> Flags:
    found: Flags = pc.equal(pc.binary_length(bounds), 0).to_numpy(zero_copy_only=False)
    return found
