"""Walks over the fields of many tuples and writes each into its column, or reports why a tuple is bad.

A field that does not fit is null in its column, and the column's statuses say why. A tuple that cannot be split into
fields has no value in any column. `udfs.tuples.kernels.field_writers` writes each field.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from schemas.compiled import entry, inlined, inner
from udfs.kernels.memory import address, load8, store8, word
from udfs.kernels.values import ABSENT, ARRAY, BAD, Int, head, skip
from udfs.tuples.kernels.columns import (
    COLUMN_BYTES,
    FITS,
    INEXACT,
    MISFIT_STATUSES,
    NO_ROOM,
    STATUSES,
    UNDECIDED,
    WRONG_CLASS,
    discard_row,
    put_null,
)
from udfs.tuples.kernels.field_writers import COLUMN_SHIFT, put_any, put_nested, put_quickly

OK = 0
NOT_MSGPACK = 1
NOT_ARRAY = 2
TRAILING_BYTES = 3
NO_FORMAT = 4
"""Codes of tuples: why a tuple cannot be split into fields."""

BAD_ROWS, INEXACT_ROWS, UNDECIDED_ROWS, COUNTERS = 0, 1, 2, 3
"""Indexes of the walk's counters, and their number."""

Stop: TypeAlias = tuple[Int, Int, Int, Int, Int]
"""Where the walk of a tuple stopped: address, number of the field, code, class of the value; statuses as bits."""


@inner
def _record_status(column: Int, row: Int, status: Int) -> Int:
    """Store the status of a field, null the field if it does not fit, and return the status as a bit."""
    if status != NO_ROOM:
        store8(word(column, STATUSES) + row, status)
    if MISFIT_STATUSES >> status & 1:
        put_null(column, row)
    return 1 << status


@inlined
def _walk_fields(pos: Int, end: Int, field_count: Int, fields: Int, columns: Int, row: Int) -> Stop:
    """Write the first `field_count` fields of a tuple into their columns."""
    statuses = np.int64(0)
    for position in range(field_count):
        if pos >= end:
            return pos, position, NOT_MSGPACK, BAD, statuses
        field = word(fields, position)
        column = columns + (field >> COLUMN_SHIFT)
        after = put_quickly(pos, end, field, column, row)
        if after == 0 or after > end:
            after, status = put_any(pos, end, field, column, row)
            if after < 0:
                return pos, position, NOT_MSGPACK, BAD, statuses
            if status != FITS:
                statuses |= _record_status(column, row, status)
                if status == NO_ROOM:
                    break
        pos = after
    return pos, field_count, OK, ABSENT, statuses


@inner
def _put_fields_past_format(stop: Stop, end: Int, count: Int, extra_column: Int, row: Int) -> Stop:
    """Write the fields after the format's last one, as one array, to their column; there must be at least one."""
    pos, position, code, kind, statuses = stop
    after, status = put_nested(pos, end, count - position, extra_column, row)
    if after < 0:
        while pos >= 0:
            pos = skip(pos, end)
            position += 1
        return pos, position - 1, NOT_MSGPACK, BAD, statuses
    if status != FITS:
        statuses |= _record_status(extra_column, row, status)
    return after, count, code, kind, statuses


@inner
def _put_absent_fields(count: Int, field_count: Int, fields: Int, columns: Int, row: Int) -> Int:
    """Null the fields that a tuple of `count` fields lacks; return the bits of their statuses."""
    statuses = np.int64(0)
    for position in range(count, field_count):
        field = word(fields, position)
        column = columns + (field >> COLUMN_SHIFT)
        if field & 1:
            put_null(column, row)
        else:
            statuses |= _record_status(column, row, np.int64(WRONG_CLASS + ABSENT))
    return statuses


@inlined
def _walk_tuple(
    pos: Int, end: Int, field_count: Int, fields: Int, columns: Int, extra_column: Int, row: Int
) -> Stop:
    """Walk one tuple of a format of `number` fields."""
    byte = load8(pos)
    if byte & 0xF0 == 0x90 and pos < end:
        kind, count, pos = ARRAY, byte & 0x0F, pos + 1
    else:
        kind, count, pos = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
    if kind != ARRAY:
        return pos, np.int64(0), (NOT_MSGPACK if kind == BAD else NOT_ARRAY), kind, np.int64(0)
    stop = _walk_fields(pos, end, min(count, field_count), fields, columns, row)
    if stop[2] != OK or stop[4] >> NO_ROOM & 1:
        return stop
    if count < field_count:
        return (
            stop[0],
            count,
            (OK if stop[0] == end else TRAILING_BYTES),
            ABSENT,
            stop[4] | _put_absent_fields(count, field_count, fields, columns, row),
        )
    if count > field_count:
        stop = _put_fields_past_format(stop, end, count, extra_column, row)
    if stop[2] == OK and stop[0] != end and not stop[4] >> NO_ROOM & 1:
        return stop[0], stop[1], TRAILING_BYTES, ABSENT, stop[4]
    return stop


@inner
def _put_nulls(columns: Int, last: Int, row: Int) -> None:
    for column in range(columns, last, COLUMN_BYTES):
        put_null(column, row)


@entry
def walk(
    data: Any,
    offsets: Any,
    nulls: Any,
    formats: Any,
    field_starts: Any,
    field_words: Any,
    columns: Any,
    errors: Any,
    counters: Any,
    first_row: int,
) -> int:
    """Write the fields of the tuples from `first_row` on into columns; stop at a row for which a column has no room.

    Args:
        data: The tuples' bytes; `OVERREAD_BYTES` more can be read after the last.
        offsets: Where each tuple starts in `data`, and where the last ends.
        nulls: 1 if there is no tuple.
        formats: Index of each tuple's format.
        field_starts: For each format two indexes in `field_words`: of its first field, and of the first column that it
            lacks (int32[2 formats + 1]). At the end the length of `field_words`.
        field_words: For each format one word per field, then one word for each column that the format lacks. The word
            of a field combines the offset of its column (from bit `COLUMN_SHIFT` on), the column's storage (from
            `STORAGE_SHIFT` on) and a bit for each class of values that the field accepts. The word of a column has its
            offset only.
        columns: Described in `udfs.tuples.kernels.columns` (int64[columns + 1, COLUMN_WORDS]); the last one is for the
            fields past the format.
        errors: The result for bad rows: code, position, class (int32[3, rows], zeroed).
        counters: Incremented: rows that are bad or have fields that do not fit, rows with fields of the status
            `INEXACT`, rows with fields of the status `UNDECIDED` (`udfs.tuples.kernels.columns`; int64[COUNTERS]).

    Returns:
        The row where it stopped; the number of rows if it is done.
    """
    base, table, begin = address(data), address(field_words), address(columns)
    rows, extra_column = len(nulls), begin + COLUMN_BYTES * (len(columns) - 1)
    for row in range(first_row, rows):
        if nulls[row]:
            _put_nulls(begin, extra_column, row)
            continue
        format_index = np.int64(formats[row])
        if format_index < 0 or 2 * format_index >= len(field_starts) - 1:
            errors[0, row], errors[1, row] = NO_FORMAT, format_index
            _put_nulls(begin, extra_column, row)
            counters[BAD_ROWS] += 1
            continue
        start = np.int64(field_starts[2 * format_index])
        lacking = np.int64(field_starts[2 * format_index + 1])
        pos, end = base + offsets[row], base + offsets[row + 1]
        stop = _walk_tuple(pos, end, lacking - start, table + 8 * start, begin, extra_column, row)
        for k in range(lacking, field_starts[2 * format_index + 2]):
            put_null(begin + (field_words[k] >> COLUMN_SHIFT), row)
        if stop[4] >> NO_ROOM & 1:
            for column in range(begin, extra_column + 1, COLUMN_BYTES):
                discard_row(column, row)
            return row
        if stop[2] != OK or stop[4] >> INEXACT != 0:
            counters[INEXACT_ROWS] += stop[4] >> INEXACT & 1
            counters[UNDECIDED_ROWS] += stop[4] >> UNDECIDED & 1
            if stop[2] != OK or stop[4] & MISFIT_STATUSES != 0:
                counters[BAD_ROWS] += 1
            if stop[2] != OK:
                _put_nulls(begin, extra_column + 1, row)
                errors[0, row], errors[1, row], errors[2, row] = stop[2], stop[1], stop[3]
    return rows
