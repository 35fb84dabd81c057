"""Compiled shortcut for the most frequent operations: `=` of a field, and `+` and `-` of integers.

The results equal those of `udfs.operations.operations.quick_update`, some twenty times faster. A key with anything
else, or anything that can fail, is left to that module.
"""

from typing import Any

import numpy as np

from schemas.compiled import entry, inner
from udfs.operations.kernels.elements import skip_value

MAX_FIELDS = 256
"""Tuples with more fields are left out."""

_IN_TUPLE, _IN_OPERATIONS, _NUMBER = 0, 1, 2
"""Where a field's value is: in the tuple before, in the operations, or computed."""

_SET, _ADD, _SUBTRACT = 0x3D, 0x2B, 0x2D


@inner
def _read_integer(data: Any, pos: Any) -> Any:
    """Return the integer at `pos`, and whether it is one of 64 bits with a sign."""
    code = np.int64(data[pos])
    if code < 0x80:
        return code, True
    if code >= 0xE0:
        return code - 0x100, True
    if code < 0xCC or code > 0xD3:
        return np.int64(0), False
    width = 1 << ((code - 0xCC) & 3)
    value = np.int64(0)
    for k in range(width):
        value = value << 8 | np.int64(data[pos + 1 + k])
    if code < 0xD0:
        return value, value >= 0
    shift = 64 - 8 * width
    return value << shift >> shift, True


@inner
def _integer_size(value: Any) -> Any:
    """Return the size of the shortest encoding (`mp_encode_uint`, `mp_encode_int`)."""
    if -0x20 <= value < 0x80:
        return 1
    if value >= 0:
        return 2 if value < 1 << 8 else 3 if value < 1 << 16 else 5 if value < 1 << 32 else 9
    return 2 if value >= -(1 << 7) else 3 if value >= -(1 << 15) else 5 if value >= -(1 << 31) else 9


@inner
def _put_integer(out: Any, at: Any, value: Any) -> Any:
    """Write the shortest encoding of an integer; return where it ends."""
    size = _integer_size(value)
    if size == 1:
        out[at] = np.uint8(value & 0xFF)
        return at + 1
    power = 0 if size == 2 else 1 if size == 3 else 2 if size == 5 else 3
    out[at] = np.uint8((0xCC if value >= 0 else 0xD0) + power)
    for k in range(size - 1):
        out[at + 1 + k] = np.uint8((value >> (8 * (size - 2 - k))) & 0xFF)
    return at + size


@inner
def _find_name(
    data: Any, begin: Any, size: Any, names: Any, offsets: Any, numbers: Any, first: Any, last: Any
) -> Any:
    """Return the number of the field with a name, -1 if there is none."""
    for name in range(first, last):
        start = offsets[name]
        if offsets[name + 1] - start == size:
            k = 0
            while k < size and names[start + k] == data[begin + k]:
                k += 1
            if k == size:
                return np.int64(numbers[name])
    return np.int64(-1)


@inner
def _split(data: Any, begin: Any, end: Any, starts: Any) -> Any:
    """Find where the fields of a tuple start, and where the last one ends; return their number, -1 if it is not known.

    The tuple's header must be the shortest one, since the result gets such a header.
    """
    if begin >= end:
        return np.int64(-1)
    code = np.int64(data[begin])
    if 0x90 <= code < 0xA0:
        count, pos = code - 0x90, np.int64(begin + 1)
    elif code == 0xDC and end - begin >= 3:
        count, pos = np.int64(data[begin + 1]) << 8 | np.int64(data[begin + 2]), np.int64(begin + 3)
        if count < 16:
            return np.int64(-1)
    else:
        return np.int64(-1)
    if count > MAX_FIELDS:
        return np.int64(-1)
    starts[0] = pos
    for field in range(count):
        starts[field] = pos
        pos = skip_value(data, pos) if pos < end else np.int64(-1)
        if pos < 0:
            return np.int64(-1)
    starts[count] = pos
    return count if pos == end else np.int64(-1)


@inner
def _find_field(
    operations: Any, pos: Any, stop: Any, index_base: Any, count: Any, fmt: Any, names: Any, key_fields: Any
) -> Any:
    """Return the number of the field that an operation changes, and where its argument begins; -1 if it is not known.

    Args:
        pos: Where the operation begins.
        names: `names` to `format_names` of `apply_to_keys`.
    """
    if pos + 4 >= stop or operations[pos] != 0x93 or operations[pos + 1] != 0xA1:
        return np.int64(-1), pos
    head, value = np.int64(operations[pos + 3]), pos + 4
    number = np.int64(-1)
    if head < 0x80:
        number = head - index_base
    elif head >= 0xE0:
        number = head - 0x100 + count
    elif 0xA0 <= head < 0xC0 and value + head - 0xA0 < stop:
        texts, offsets, numbers, bounds = names
        number = _find_name(
            operations, value, head - 0xA0, texts, offsets, numbers, bounds[fmt], bounds[fmt + 1]
        )
        value += head - 0xA0
    if number < 0 or number >= count or key_fields[fmt, number]:
        return np.int64(-1), pos
    return number, value


@inner
def _apply_row(
    operations: Any,
    pos: Any,
    stop: Any,
    row: Any,
    index_base: Any,
    count: Any,
    fmt: Any,
    names: Any,
    key_fields: Any,
    tuples: Any,
    fields: Any,
    size: Any,
) -> Any:
    """Apply the operations of one row to `fields`; return the size of all fields after it, -1 if it is left out."""
    starts, places, values, ends, changed_by = fields
    left = np.int64(operations[pos]) - 0x90 if pos < stop else np.int64(0)
    if left <= 0 or left >= 16:
        return np.int64(-1)
    pos += 1
    for _ in range(left):
        number, value = _find_field(operations, pos, stop, index_base, count, fmt, names, key_fields)
        if number < 0:
            return np.int64(-1)
        code, pos = operations[pos + 2], skip_value(operations, value)
        if pos < 0 or pos > stop:
            return np.int64(-1)
        place = places[number]
        if place == _IN_TUPLE:
            size -= starts[number + 1] - starts[number]
        elif place == _IN_OPERATIONS:
            size -= ends[number] - values[number]
        else:
            size -= np.int64(_integer_size(values[number]))
        if code == _SET:
            places[number], values[number], ends[number] = _IN_OPERATIONS, value, pos
            size += pos - value
        elif code in (_ADD, _SUBTRACT) and changed_by[number] != row:
            old, is_integer = values[number], True
            if place == _IN_TUPLE:
                old, is_integer = _read_integer(tuples, starts[number])
            elif place == _IN_OPERATIONS:
                old, is_integer = _read_integer(operations, values[number])
            argument, is_valid = _read_integer(operations, value)
            total = old + argument if code == _ADD else old - argument
            other = argument if code == _ADD else ~argument
            overflows = (old ^ total) & (other ^ total) < 0
            if not (is_integer and is_valid) or overflows:
                return np.int64(-1)
            places[number], values[number] = _NUMBER, total
            size += np.int64(_integer_size(total))
        else:
            return np.int64(-1)
        changed_by[number] = row
    return size if pos == stop else np.int64(-1)


@inner
def _copy(out: Any, at: Any, data: Any, begin: Any, end: Any) -> Any:
    for pos in range(begin, end):
        out[at] = data[pos]
        at += 1
    return at


@inner
def _write_fields(out: Any, at: Any, count: Any, fields: Any, tuples: Any, operations: Any) -> Any:
    """Write the fields of a tuple; return where they end."""
    starts, places, values, ends, _ = fields
    for number in range(count):
        if places[number] == _NUMBER:
            at = _put_integer(out, at, values[number])
        elif places[number] == _IN_TUPLE:
            at = _copy(out, at, tuples, starts[number], starts[number + 1])
        else:
            at = _copy(out, at, operations, values[number], ends[number])
    return at


@entry
def apply_to_keys(
    row_ends: Any,
    is_wanted: Any,
    tuples: Any,
    tuple_offsets: Any,
    operations: Any,
    operation_offsets: Any,
    index_bases: Any,
    formats: Any,
    key_fields: Any,
    names: Any,
    name_offsets: Any,
    name_numbers: Any,
    format_names: Any,
    limit: Any,
    out: Any,
    out_ends: Any,
    is_done: Any,
) -> None:
    """Apply the operations of each key's rows to its tuple.

    Args:
        row_ends: Where the rows of each key end; the rows of a key are consecutive (int64[keys]).
        is_wanted: Whether to try a key (uint8[keys]).
        tuples, tuple_offsets: The tuple of each key before its rows (uint8[], int32[keys + 1]).
        operations, operation_offsets: MessagePack of each row's operations, empty if there are none (uint8[],
            int32[rows + 1]).
        index_bases, formats: Of each row, the number of the first field, and the number of its format (int64[rows]).
        key_fields: By format and field, whether the field is part of the primary key (uint8[formats, `MAX_FIELDS`]).
        names, name_offsets, name_numbers: The names of fields, and the number of each one's field.
        format_names: Where each format's names begin, and where the last one's end (int64[formats + 1]).
        limit: The greatest size in bytes of a tuple's fields.
        out, out_ends: Receive the tuples, and where each key's ends (int64[keys]). `out` has room for all tuples and
            twice all operations.
        is_done: Receives whether a key's operations were applied (uint8[keys]).
    """
    starts = np.empty(MAX_FIELDS + 1, np.int64)
    places, changed_by = np.empty(MAX_FIELDS, np.int64), np.empty(MAX_FIELDS, np.int64)
    values, value_ends = np.empty(MAX_FIELDS, np.int64), np.empty(MAX_FIELDS, np.int64)
    fields = (starts, places, values, value_ends, changed_by)
    all_names = (names, name_offsets, name_numbers, format_names)
    at = row = np.int64(0)
    for key in range(row_ends.size):
        begin, end = np.int64(tuple_offsets[key]), np.int64(tuple_offsets[key + 1])
        count = _split(tuples, begin, end, starts) if is_wanted[key] else np.int64(-1)
        size = np.int64(-1)
        if count >= 0:
            places[:count], changed_by[:count] = _IN_TUPLE, -1
            size = starts[count] - starts[0]
            while row < row_ends[key] and size >= 0:
                size = _apply_row(
                    *(
                        operations,
                        np.int64(operation_offsets[row]),
                        np.int64(operation_offsets[row + 1]),
                        row,
                    ),
                    *(index_bases[row], count, formats[row], all_names, key_fields, tuples, fields, size),
                )
                if size > limit:
                    size = np.int64(-1)
                row += 1
        is_done[key] = size >= 0
        if size >= 0:
            at = _copy(out, at, tuples, begin, starts[0])
            at = _write_fields(out, at, count, fields, tuples, operations)
        row = row_ends[key]
        out_ends[key] = at
