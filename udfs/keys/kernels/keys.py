"""Extracts the keys of many tuples, or of `key` arrays, and writes them in canonical form.

`udfs.keys.kernels.canonical` writes each part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.compiled import entry, inner
from udfs.kernels.memory import address, load8
from udfs.kernels.values import ABSENT, ARRAY, BAD, MAP, STRING, UNSIGNED, Int, head, skip
from udfs.keys.kernels.canonical import (
    BY_VALUE,
    HEADER_MAX_BYTES,
    MIXED,
    PART_GROWTH_BYTES,
    put_array,
    put_part,
)

OK = 0
NOT_MSGPACK = 1
NOT_ARRAY = 2
NO_DEFINITION = 3
WRONG_COUNT = 4
MISSING = 5
WRONG_TYPE = 6
INVALID = 7
NO_ROOM = 8
AMBIGUOUS = 9
"""Codes of rows: why a row has no key. `udfs.keys.keys` has the texts."""

KEY, TUPLE, PREFIX = 0, 1, 2
"""Kind of a row: an array of all parts of a key in order, a tuple, or an array of the first parts of a key."""


class Parts(NamedTuple):
    """The parts of all key definitions, in flat arrays."""

    part_starts: NDArray[np.int32]
    """Index of each definition's first part; at the end the number of parts."""
    fields: NDArray[np.int32]
    """0-based field number of each part."""
    class_bits: NDArray[np.int64]
    """Classes of values that each part accepts, as bits."""
    comparisons: NDArray[np.int64]
    """How the index compares each part (`udfs.keys.kernels.canonical`)."""
    step_starts: NDArray[np.int32]
    """Index in `steps` of the first step of each part's path; at the end the number of steps."""
    steps: NDArray[np.int64]
    """Each row is (0-based index into an array, -1) or (position, size) of a map's key in `map_keys` (int64[steps,
    2]).
    """
    map_keys: NDArray[np.uint8]
    """The map keys of all steps, one after another."""


@inner
def _find_in_map(pos: Int, end: Int, count: Int, name: Int, size: Int) -> Int:
    """Return where the value of a map's string key is; -1 if the map is broken, -2 if it lacks the key."""
    for _ in range(count):
        if pos >= end:
            return -1
        kind, argument, after = head(pos, end)
        if kind == STRING and argument == size:
            same = True
            for k in range(size):
                same &= load8(after + k) == load8(name + k)
            if same:
                return after + argument
        pos = skip(pos, end)
        pos = skip(pos, end) if pos >= 0 else pos
        if pos < 0:
            return -1
    return -2


@inner
def _follow_path(pos: Int, end: Int, steps: Any, first: Int, last: Int, map_keys: Int) -> Int:
    """Follow a path, the steps `first` to `last` (excluded), from the value at `pos`.

    Return where the value at its end is; -1 if the tuple is broken, -2 if it lacks the value.
    """
    for k in range(first, last):
        if pos >= end:
            return -1
        kind, count, pos = head(pos, end)
        if steps[k, 1] >= 0:
            pos = _find_in_map(pos, end, count if kind == MAP else 0, map_keys + steps[k, 0], steps[k, 1])
        elif kind != ARRAY or steps[k, 0] >= count:
            return -2
        else:
            for _ in range(steps[k, 0]):
                pos = skip(pos, end)
                if pos < 0:
                    return -1
        if pos < 0:
            return pos
    return pos


@inner
def _write_key(
    pos: Int, end: Int, row_kind: Int, first: Int, last: Int, parts: Any, target: Int, limit: Int
) -> Any:
    """Write the canonical key of one row.

    Args:
        pos, end: Addresses of the row's bytes.
        row_kind: KEY, TUPLE or PREFIX.
        first, last: Indexes of the first part of the key's definition, and after the last one.
        parts: All key definitions.
        target, limit: Address of the key, and the first address after it that must not be written.

    Returns:
        target: Where the key ends.
        code: OK, or why the row has no key; then the next two say more.
        part: Index of the part that is wrong; for WRONG_COUNT, the number of parts that the row has.
        kind: Class of the value that is wrong.
    """
    whole = row_kind == TUPLE
    kind, count, pos = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
    if kind != ARRAY:
        return target, (NOT_MSGPACK if kind == BAD else NOT_ARRAY), 0, kind
    if not whole and (count > last - first or (row_kind == KEY and count != last - first)):
        return target, WRONG_COUNT, count, ABSENT
    if not whole:
        last = first + count
    fields, start, number = pos, pos, 0
    if target + HEADER_MAX_BYTES > limit:
        return target, NO_ROOM, 0, ABSENT
    target = put_array(target, last - first)
    for part in range(first, last):
        field = parts.fields[part] if whole else part - first
        if field >= count:
            return target, MISSING, part - first, ABSENT
        if field < number:
            pos, number = fields, 0
        while number < field:
            pos = skip(pos, end)
            if pos < 0:
                return target, NOT_MSGPACK, part - first, BAD
            number += 1
        start = pos
        if whole and parts.step_starts[part] < parts.step_starts[part + 1]:
            names = address(parts.map_keys)
            start = _follow_path(
                pos, end, parts.steps, parts.step_starts[part], parts.step_starts[part + 1], names
            )
            if start < 0:
                return target, (MISSING if start == -2 else NOT_MSGPACK), part - first, ABSENT
        kind, argument, after = head(start, end) if start < end else (BAD, np.int64(0), start)
        if not parts.class_bits[part] >> kind & 1:
            return target, (NOT_MSGPACK if kind == BAD else WRONG_TYPE), part - first, kind
        # A canonical part is at most `PART_GROWTH_BYTES` bytes longer than the part.
        size = after - start + (argument if kind >= STRING else 0)
        if target + size + PART_GROWTH_BYTES > limit:
            return target, NO_ROOM, part - first, kind
        comparison = parts.comparisons[part]
        if comparison == MIXED and row_kind == PREFIX:
            comparison = BY_VALUE  # the bound of a range is only compared by its order
        target = put_part(target, comparison, start, end)[0]
        if target < 0:
            return target, (AMBIGUOUS if target == -2 else INVALID), part - first, kind
    return target, OK, 0, UNSIGNED


@entry
def write_keys(
    data: Any,
    offsets: Any,
    nulls: Any,
    row_kinds: Any,
    definition_indexes: Any,
    parts: Parts,
    out: Any,
    ends: Any,
    errors: Any,
) -> None:
    """Write the canonical key of each row.

    Args:
        data, offsets, nulls: The rows (`udfs.buffers.BinaryBuffers`).
        row_kinds: Kind of each row: `KEY`, `TUPLE` or `PREFIX` (uint8[rows]).
        definition_indexes: Index of each row's key definition (int32[rows]).
        parts: All key definitions.
        out: Receives the keys; a row whose key does not fit has the code `NO_ROOM`.
        ends: Receives where each key ends in `out`, after a leading 0 (int64[rows + 1], zeroed); a row without a key
            takes no bytes.
        errors: Receives code, part and class (`_write_key`) of each row without a key (int32[3, rows], zeroed).
    """
    base, begin = address(data), address(out)
    target, limit = begin, begin + len(out)
    for row in range(len(nulls)):
        ends[row + 1] = target - begin
        if nulls[row]:
            continue
        index = definition_indexes[row]
        starts = parts.part_starts
        if index < 0 or index >= len(starts) - 1 or starts[index] == starts[index + 1]:
            errors[0, row] = NO_DEFINITION
            errors[1, row] = index
            continue
        pos, end = base + offsets[row], base + offsets[row + 1]
        after, code, part, kind = _write_key(
            pos, end, row_kinds[row], starts[index], starts[index + 1], parts, target, limit
        )
        if code == OK:
            target = after
            ends[row + 1] = target - begin
        else:
            errors[0, row], errors[1, row], errors[2, row] = code, part, kind
