"""Converts canonical keys, or their first parts, to bytes that compare as the primary index compares the keys.

The bytes serve only for comparing. The declared type of a part does not matter: the values of every part are ordered
like those of a `scalar` part. `udfs.keys.kernels.sort_key` writes each part; the bytes of a descending part are
complemented. The bytes of one part are never a prefix of the bytes of another. So the bytes of a key begin with those
of its first parts and sort at or after them, as in an index.

`ordered_keys` converts Arrow arrays. Two Arrow UDFs do so in queries of Spark: `sort_key_column` for the keys of one
space, `range_bounds_udf` for the bounds of DELETE_RANGE rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql.types import BinaryType, StructField, StructType

from schemas.compiled import entry
from schemas.errors import TupleError
from schemas.space import Space
from udfs.buffers import arrow_column_function, binary_array, flatten, offsets_of
from udfs.kernels.memory import address, load8, store8
from udfs.kernels.values import ARRAY, BAD, BINARY, OVERREAD_BYTES, STRING, head, skip
from udfs.keys.kernels.sort_key import FIXED_MAX_BYTES, put_sort_key
from udfs.keys.keys import canonical_prefixes, key_plan
from udfs.tuples.row_body import delete_ranges


@entry
def write_ordered_keys(
    data: Any,
    offsets: Any,
    nulls: Any,
    definition_indexes: Any,
    part_starts: Any,
    descending: Any,
    out: Any,
    ends: Any,
) -> bool:
    """Write each key as bytes that compare as its index compares keys; a null key has no bytes.

    Returns whether all keys match their definitions and had room in `out`.

    Args:
        data, offsets, nulls: Canonical keys (`udfs.buffers.BinaryBuffers`).
        definition_indexes: Index of each key's definition (int32[rows]); a key with a negative index is left out.
        part_starts: Index of each definition's first part in `descending` (int32[definitions + 1]); at the end the
            number of parts.
        descending: Whether a part's order is descending (uint8[parts]).
        out: Large enough for all keys.
        ends: Receives where the bytes of each key end in `out`, after a leading 0 (int64[rows + 1], zeroed).
    """
    base, begin = address(data), address(out)
    target, limit = begin, begin + len(out)
    for row in range(len(nulls)):
        if not nulls[row] and definition_indexes[row] >= 0:
            pos, end = base + offsets[row], base + offsets[row + 1]
            kind, count, pos = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
            if kind != ARRAY or definition_indexes[row] >= len(part_starts) - 1:
                return False
            if count > part_starts[definition_indexes[row] + 1] - part_starts[definition_indexes[row]]:
                return False
            for part in range(count):
                kind, argument, content = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
                size = 2 * argument if kind in (STRING, BINARY) else 0
                if kind == BAD or target + FIXED_MAX_BYTES + size > limit:
                    return False
                after = put_sort_key(target, kind, argument, content)
                if descending[part_starts[definition_indexes[row]] + part]:
                    for position in range(target, after):
                        store8(position, ~load8(position))
                target = after
                pos = skip(pos, end)
                if pos < 0:
                    return False
        ends[row + 1] = target - begin
    return True


Int32s = NDArray[np.int32]

PartDirections = tuple[bool, ...]
"""Per part of a primary key: whether its order is descending."""


def directions_of(space: Space) -> PartDirections:
    """Return for each part of a space's primary key whether its order is descending."""
    return tuple(part.is_descending for part in space.primary_key)


@dataclass(frozen=True)
class KeyOrder:
    """Which parts of several primary keys are descending, as arguments of `write_ordered_keys`; see `key_order`."""

    part_starts: Int32s
    descending: NDArray[np.uint8]


def key_order(definitions: Sequence[PartDirections]) -> KeyOrder:
    """Return the order of several primary keys; the `definition_indexes` of `ordered_keys` count in `definitions`."""
    starts = np.cumsum([0, *map(len, definitions)]).astype(np.int32)
    return KeyOrder(starts, np.array([*(one for own in definitions for one in own), 0], np.uint8))


def ordered_keys(keys: pa.Array, order: KeyOrder, definition_indexes: Int32s) -> pa.Array:
    """Return keys as bytes that compare as their index compares them.

    Args:
        keys: Canonical keys, or the first parts of such keys (`udfs.keys.keys`).
        definition_indexes: Index of each key's definition (int32[n]); -1 for a key to leave out.

    Returns:
        The bytes of each key; null where the key is null or left out. The bytes of a prefix (the first parts of a key)
        sort at or before those of all keys with this prefix. The bytes of a greater prefix sort after all these keys.

    Raises:
        TupleError: A key does not match its definition.
        UnsupportedError: The keys of one batch take 2 GiB or more.
    """
    flat, rows = flatten(keys, OVERREAD_BYTES), len(keys)
    widths = np.append(np.diff(order.part_starts), 0)[definition_indexes]
    # A string takes at most twice its size and two bytes, any other value the room reserved for each part.
    room = 2 * int(flat.offsets[-1] - flat.offsets[0]) + int(widths.sum()) * (FIXED_MAX_BYTES + 2)
    out, ends = np.empty(room, np.uint8), np.zeros(rows + 1, np.int64)
    definition_indexes = np.ascontiguousarray(definition_indexes, np.int32)
    if not write_ordered_keys(
        *(flat.data, flat.offsets, flat.nulls, definition_indexes),
        *(order.part_starts, order.descending, out, ends),
    ):
        raise TupleError(
            "a key does not match its index", advice="check that the aggregator wrote these tables"
        )
    offsets = offsets_of(ends, "the keys that may be in a DELETE_RANGE", "lower local_bytes")
    return binary_array(pa.binary(), offsets, out[: ends[-1]], (flat.nulls == 0) & (definition_indexes >= 0))


BOUNDS_TYPE = StructType([StructField("begin", BinaryType()), StructField("end", BinaryType())])
"""The result of `range_bounds_udf`."""


def range_bounds_udf(spaces: Sequence[Space]) -> Callable[[Column, Column], Column]:
    """Return an Arrow UDF `(body binary, space index int) → struct<begin, end>`: the bounds of a DELETE_RANGE row.

    `body` is the body of the row, and the index is that of its space in `spaces`. The bounds compare with the keys of
    `sort_key_column`. An open bound is empty bytes; both bounds are null if the body cannot be read.
    """
    plan, order = key_plan(spaces), key_order([directions_of(space) for space in spaces])

    def bounds(body: pa.Array, space_indexes: pa.Array) -> pa.Array:
        ranges = delete_ranges(body)
        index = space_indexes.fill_null(-1).cast(pa.int32())
        numbers = index.to_numpy(zero_copy_only=False)
        ends = [
            ordered_keys(canonical_prefixes(ranges.field(name), plan, index).field("key"), order, numbers)
            for name in ("begin", "end")
        ]
        return pa.StructArray.from_arrays(ends, names=["begin", "end"])

    return arrow_column_function(bounds, BOUNDS_TYPE)


def sort_key_column(directions: PartDirections) -> Callable[[Column], Column]:
    """Return an Arrow UDF `(canonical key binary) → binary`: the key as bytes that compare as in its index."""
    order = key_order([directions])

    def sort_key(key: pa.Array) -> pa.Array:
        return ordered_keys(key, order, np.zeros(len(key), np.int32))

    return arrow_column_function(sort_key, BinaryType())
