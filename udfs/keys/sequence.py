"""Computes the sequence of a version: some fields of its tuple as bytes that compare as Tarantool compares the fields.

Two sequences are compared as unsigned bytes, which Spark does for a binary column; the order is that of a tree index
over `scalar` parts, part by part. The bytes (`udfs.keys.kernels.sort_key`) serve only for comparing and are the same in
every run. A field that cannot be reached is absent, which is no error. The configuration names the fields;
`udfs.before_replace` uses the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.compiled import entry, inner
from schemas.errors import TupleError
from udfs.buffers import SMALLER_BATCHES_ADVICE, binary_array, flatten, index_per_row, offsets_of
from udfs.kernels.memory import address
from udfs.kernels.values import ARRAY, BINARY, OVERREAD_BYTES, STRING, Int, head, skip
from udfs.keys.kernels.sort_key import FIXED_MAX_BYTES, put_sort_key


@inner
def _locate_fields(pos: Int, end: Int, base: Int, fields: Any, classes: Any, arguments: Any) -> Int:
    """Find the fields of one tuple's sequence; return the greatest number of bytes that the sequence may take."""
    room = np.int64(FIXED_MAX_BYTES * len(fields))
    if pos >= end:
        return room
    kind, count, first = head(pos, end)
    if kind != ARRAY:
        return room
    pos, number = first, np.int64(0)
    for part in range(len(fields)):
        field = fields[part]
        if field < 0 or field >= count:
            continue
        if field < number:
            pos, number = first, np.int64(0)
        while number < field and pos >= 0:
            pos = skip(pos, end)
            number += 1
        if pos < 0 or pos >= end:
            continue
        kind, argument, position = head(pos, end)
        classes[part] = kind
        arguments[part] = (position - base) << 32 | argument if kind >= STRING else argument
        if kind in (STRING, BINARY):
            room += 2 * argument
    return room


@entry
def locate_sequence_fields(
    data: Any, offsets: Any, nulls: Any, format_indexes: Any, formats: Any, classes: Any, arguments: Any
) -> Int:
    """Find the fields of the sequences of all tuples; return the number of bytes that `write_sequences` may need.

    Args:
        data, offsets, nulls: The tuples (`udfs.buffers.BinaryBuffers`).
        format_indexes: Index of each tuple's format in `formats` (int32[rows]); with an index outside of it, all fields
            are absent.
        formats: 0-based numbers of the fields (int32[formats, parts]); a field with a negative number is absent.
        classes, arguments: The result: class and argument of each field (`udfs.kernels.values`; int8 and int64[rows,
            parts], zeroed).
    """
    base = address(data)
    room = np.int64(0)
    for row in range(len(nulls)):
        if nulls[row]:
            continue
        index = format_indexes[row]
        if index < 0 or index >= len(formats):
            room += FIXED_MAX_BYTES * formats.shape[1]
            continue
        pos, end = base + offsets[row], base + offsets[row + 1]
        room += _locate_fields(pos, end, base, formats[index], classes[row], arguments[row])
    return room


@entry
def write_sequences(data: Any, nulls: Any, classes: Any, arguments: Any, out: Any, ends: Any) -> bool:
    """Write each tuple's sequence, as bytes that compare as its values do, one after another; a null row has no bytes.

    Returns whether all sequences had room in `out`.

    Args:
        data, nulls: The tuples.
        classes, arguments: The result of `locate_sequence_fields`.
        out: As large as `locate_sequence_fields` returned.
        ends: Where each row starts in `out`, and where the last one ends (int64[rows + 1], zeroed).
    """
    base, begin = address(data), address(out)
    target, limit = begin, begin + len(out)
    for row in range(len(nulls)):
        if not nulls[row]:
            for part in range(classes.shape[1]):
                kind, argument = classes[row, part], arguments[row, part]
                pos = base
                if kind >= STRING:
                    pos += argument >> 32
                    argument &= 0xFFFFFFFF
                if target + FIXED_MAX_BYTES + (2 * argument if kind in (STRING, BINARY) else 0) > limit:
                    return False
                target = put_sort_key(target, kind, argument, pos)
        ends[row + 1] = target - begin
    return True


NO_VALUE = b"\x00"
"""First byte of a field's part of the sequence if it is missing, nil or of a type without an order."""


def _field_table(formats: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return the field numbers, (formats, parts)."""
    widths = {len(fields) for fields in formats}
    if len(widths) > 1:
        raise ValueError(f"formats with {sorted(widths)} sequence columns: all must have the same number")
    return np.array(formats, np.int32).reshape(len(formats), widths.pop() if widths else 0)


def sequence_bytes(
    tuples: pa.Array, format_indexes: pa.Array | NDArray[np.int32] | int, formats: Sequence[Sequence[int]]
) -> pa.Array:
    """Return the sequence of each tuple: the values of some of its fields, as bytes that sort as the values do.

    Args:
        tuples: MessagePack tuples; may be a slice. A null gives null, never an error.
        format_indexes: Index in `formats` of each tuple's format; for an index outside of it, all fields are missing.
        formats: Per format the 0-based numbers of the fields, in the order in which they are compared; -1 for a field
            that the format lacks. All have the same length.

    Returns:
        A field that is missing, nil, damaged or without an order (array, map, interval) sorts below all values; NaN
        sorts below all other numbers.

    Raises:
        ValueError: The formats differ in length.
        UnsupportedError: The sequences of one batch take 2 GiB or more.
    """
    flat, rows, table = flatten(tuples, OVERREAD_BYTES), len(tuples), _field_table(formats)
    classes = np.zeros((rows, table.shape[1]), np.int8)
    arguments = np.zeros((rows, table.shape[1]), np.int64)
    room = locate_sequence_fields(
        flat.data, flat.offsets, flat.nulls, index_per_row(format_indexes, rows), table, classes, arguments
    )
    out, ends = np.empty(room, np.uint8), np.zeros(rows + 1, np.int64)
    if not write_sequences(flat.data, flat.nulls, classes, arguments, out, ends):
        raise TupleError("a sequence takes more bytes than its fields can have")
    offsets = offsets_of(ends, "the sequences of one batch", SMALLER_BATCHES_ADVICE)
    return binary_array(pa.binary(), offsets, out[: ends[-1]], flat.nulls == 0)


def ranks_of(values: pa.Array) -> NDArray[np.int64]:
    """Return the dense rank of each sequence, the lowest one having 1; 0 for null."""
    found = np.zeros(len(values), np.int64)
    known = pc.is_valid(values).to_numpy(zero_copy_only=False)
    if known.any():
        found[known] = pc.rank(values.drop_null(), sort_keys="ascending", tiebreaker="dense").to_numpy()
    return found
