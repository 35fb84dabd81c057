"""The walk over the fields of many tuples: the class and argument of each field, or why a tuple is bad.

What it leaves of a field: its class, and as argument the value itself, or `place << 32 | size` of its content
(place from the first byte of the buffer); for a variant of the whole value, for the fields past the format of
all of them. Not here: what a column makes of a field.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from udfs.kernels.compiled import entry, inner
from udfs.kernels.memory import address, set_word, store8, word
from udfs.kernels.values import ABSENT, ARRAY, BAD, STRING, Int, head, skip

OK = 0
NOT_MSGPACK = 1
NOT_ARRAY = 2
TRAILING = 3
NO_LAYOUT = 4
WRONG_TYPE = 5
MISSING = 6

WHOLE = 1 << 30
"""Bit of a field in `fields`: its column is a variant, so the walk keeps it whole."""

COLUMN_SHIFT = 32
"""Where a field's column stands in `fields`; the bits below `WHOLE` are the classes that the field accepts."""

Stop: TypeAlias = tuple[Int, Int, Int, Int]
"""Where the walk of a tuple stopped: place, position of the field, code, class."""


@inner
def _walk_fields(
    pos: Int, end: Int, base: Int, number: Int, fields: Int, kinds: Int, values: Int, rows: Int
) -> Stop:
    """Walk the first `number` fields; `kinds` and `values` are the addresses of the row in the first column."""
    for position in range(number):
        if pos >= end:
            return pos, position, NOT_MSGPACK, BAD
        field = word(fields, position)
        start = pos
        kind, argument, pos = head(pos, end)
        if not field >> kind & 1:
            return pos, position, (NOT_MSGPACK if kind == BAD else WRONG_TYPE), kind
        if field & WHOLE:
            pos = skip(start, end)
            if pos < 0:
                return pos, position, NOT_MSGPACK, BAD
            argument = (start - base) << 32 | (pos - start)
        elif kind >= STRING:
            place = pos - base
            pos += argument
            argument |= place << 32
        cell = (field >> COLUMN_SHIFT) * rows
        store8(kinds + cell, kind)
        set_word(values, cell, argument)
    return pos, number, OK, ABSENT


@inner
def _walk_rest(stop: Stop, end: Int, count: Int, number: Int, fields: Int) -> Stop:
    """Look for fields that are missing, or walk over those past the format."""
    pos, position, code, kind = stop
    while code == OK and position < number:
        if not word(fields, position) & 1:
            return pos, position, MISSING, ABSENT
        position += 1
    while code == OK and position < count:
        pos = skip(pos, end)
        if pos < 0:
            return pos, position, NOT_MSGPACK, BAD
        position += 1
    if code == OK and pos != end:
        return pos, position, TRAILING, ABSENT
    return pos, position, code, kind


@inner
def _walk_tuple(
    pos: Int, end: Int, base: Int, number: Int, fields: Int, kinds: Int, values: Int, rows: Int
) -> Any:
    """Walk one tuple of a format of `number` fields; return a Stop and the span of the fields past them."""
    kind, count, pos = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
    if kind != ARRAY:
        return (pos, np.int64(0), NOT_MSGPACK if kind == BAD else NOT_ARRAY, kind), -1
    stop = _walk_fields(pos, end, base, min(count, number), fields, kinds, values, rows)
    extra = (stop[0] - base) << 32 | (end - stop[0]) if count > number else np.int64(-1)
    return _walk_rest(stop, end, count, number, fields), extra


@entry
def walk(
    data: Any,
    offsets: Any,
    nulls: Any,
    layouts: Any,
    starts: Any,
    fields: Any,
    classes: Any,
    arguments: Any,
    errors: Any,
) -> None:
    """Walk all rows; a bad row's fields are all absent, and `errors` says (code, position, class).

    Parameters
    ----------
    data : uint8 array
        The tuples' bytes; `OVERREAD` more can be read after the last.
    offsets : int32 array
        Where each tuple starts in `data`, and where the last ends.
    nulls : uint8 array
        1 where there is no tuple.
    layouts : int32 array
        Index of each tuple's format.
    starts : int32 array
        Where each format starts in `fields`, and where the last ends.
    fields : int64 array
        Of each field of each format: `column << COLUMN_SHIFT`, `WHOLE`, bits of the classes it accepts.
    classes, arguments : int8 and int64 arrays, (columns + 1, rows), zeroed
        The result; the last column is the fields past the format.
    errors : int32 array, (3, rows), zeroed
        The result for bad rows.

    """
    base, kinds, values, table = address(data), address(classes), address(arguments), address(fields)
    rows = len(nulls)
    for row in range(rows):
        if nulls[row]:
            continue
        layout = layouts[row]
        if layout < 0 or layout >= len(starts) - 1:
            errors[0, row], errors[1, row] = NO_LAYOUT, layout
            continue
        first, last = np.int64(starts[layout]), np.int64(starts[layout + 1])
        pos, end = base + offsets[row], base + offsets[row + 1]
        stop, extra = _walk_tuple(
            pos, end, base, last - first, table + 8 * first, kinds + row, values + 8 * row, rows
        )
        if stop[2] != OK:
            classes[:, row] = ABSENT
            errors[0, row], errors[1, row], errors[2, row] = stop[2], stop[1], stop[3]
        elif extra >= 0:
            classes[-1, row], arguments[-1, row] = ARRAY, extra
