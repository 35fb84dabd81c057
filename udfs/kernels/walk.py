"""The walk over the fields of many tuples: the class and argument of each field, or why a tuple is bad.

What it leaves of a field: its class, and as argument the value itself, or `place << 32 | size` of its content
(place from the first byte of the buffer); for a variant of the whole value, for the fields past the format of
all of them. Not here: what a column makes of a field.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from udfs.kernels.compiled import entry, inlined, inner
from udfs.kernels.memory import address
from udfs.kernels.values import ABSENT, ARRAY, BAD, STRING, Int, head, skip

OK = 0
NOT_MSGPACK = 1
NOT_ARRAY = 2
TRAILING = 3
NO_LAYOUT = 4
WRONG_TYPE = 5
MISSING = 6

Table: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]
"""Of each field of each format: its column, the classes it accepts (bits), whether it is kept as MessagePack."""


@inner
def _reject(classes: Any, errors: Any, row: Int, code: Int, position: Int, found: Int) -> None:
    classes[:, row] = ABSENT
    errors[0, row] = code
    errors[1, row] = position
    errors[2, row] = found


@inlined
def _rest(pos, end, base, row, fields, count, classes, arguments):  # type: ignore[no-untyped-def]
    """Keep the fields past the format; return where the tuple ends, or -1."""
    if count <= fields:
        return pos
    start = pos
    for _ in range(fields, count):
        pos = skip(pos, end)
        if pos < 0:
            return pos
    classes[-1, row] = ARRAY
    arguments[-1, row] = (start - base) << 32 | (pos - start)
    return pos


@inlined
def _fields(pos, end, base, row, first, number, table, classes, arguments):  # type: ignore[no-untyped-def]
    """Walk `number` fields of a format that starts at `first`; return (place, position, code, class)."""
    columns, accepts, whole = table
    for position in range(number):
        field = first + position
        start = pos
        if pos >= end:
            return pos, position, NOT_MSGPACK, BAD
        kind, argument, pos = head(pos, end)
        if not accepts[field] >> kind & 1:
            return pos, position, (NOT_MSGPACK if kind == BAD else WRONG_TYPE), kind
        column = columns[field]
        classes[column, row] = kind
        if whole[field]:
            pos = skip(start, end)
            if pos < 0:
                return pos, position, NOT_MSGPACK, BAD
            argument = (start - base) << 32 | (pos - start)
        elif kind >= STRING:
            place = pos - base
            pos += argument
            argument = place << 32 | argument
        arguments[column, row] = argument
    return pos, number, OK, ABSENT


@entry
def walk(data, offsets, nulls, layouts, starts, table, classes, arguments, errors):  # type: ignore[no-untyped-def]
    """Walk all rows; a bad row's fields are all absent, and `errors` says (code, position, class).

    Parameters
    ----------
    data : uint8 array
        The tuples' bytes; 9 more can be read after the last.
    offsets : int32 array
        Where each tuple starts in `data`, and where the last ends.
    nulls : uint8 array
        1 where there is no tuple.
    layouts : int32 array
        Index of each tuple's format.
    starts : int32 array
        Where the fields of each format start in `table`, and where the last ends.
    table : Table
        The fields of all formats.
    classes, arguments : int8 and int64 arrays, (columns + 1, rows), zeroed
        The result; the last column is the fields past the format.
    errors : int32 array, (3, rows), zeroed
        The result for bad rows.

    """
    base = address(data)
    for row in range(len(offsets) - 1):
        if nulls[row]:
            continue
        layout = layouts[row]
        if layout < 0 or layout >= len(starts) - 1:
            _reject(classes, errors, row, NO_LAYOUT, layout, ABSENT)
            continue
        first, last = starts[layout], starts[layout + 1]
        pos, end = base + offsets[row], base + offsets[row + 1]
        kind, count, pos = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
        if kind != ARRAY:
            _reject(classes, errors, row, NOT_MSGPACK if kind == BAD else NOT_ARRAY, 0, kind)
            continue
        number = min(count, last - first)
        pos, position, code, kind = _fields(pos, end, base, row, first, number, table, classes, arguments)
        while code == OK and position < last - first:
            if not table[1][first + position] & 1:
                code = MISSING
            else:
                position += 1
        if code == OK:
            pos = _rest(pos, end, base, row, last - first, count, classes, arguments)
            code = NOT_MSGPACK if pos < 0 else (OK if pos == end else TRAILING)
        if code != OK:
            _reject(classes, errors, row, code, position, kind)
