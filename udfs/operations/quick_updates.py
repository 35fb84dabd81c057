"""Applies the most frequent operations of many keys at once (`udfs.operations.kernels.quick_updates`)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.buffers import binary_array, flatten, offsets_of
from udfs.operations.kernels.quick_updates import MAX_FIELDS, apply_to_keys
from udfs.operations.tuple_format import TupleFormat

_ADVICE = "lower local_bytes"


def quick_updates(
    tuples: pa.Array,
    is_wanted: NDArray[np.bool_],
    row_ends: NDArray[np.int64],
    operations: pa.Array,
    index_bases: NDArray[np.int64],
    format_numbers: NDArray[np.int64],
    formats: Sequence[TupleFormat],
    limit_bytes: int,
) -> pa.Array:
    """Return the tuple of each key after its UPDATEs and UPSERTs; null where this shortcut does not handle them.

    It handles `=` of a field, and `+` and `-` of integers, by number or name. It leaves out a key with anything else,
    or with anything that can fail.

    Args:
        tuples: Of each key, before its rows (binary).
        is_wanted: Whether to try a key (bool[keys]).
        row_ends: Where the rows of each key end; the rows of a key are consecutive (int64[keys]).
        operations: MessagePack of each row's operations (binary).
        index_bases, format_numbers: Of each row: the number of the first field, and the index in `formats`
            (int64[rows]).
        limit_bytes: Greatest size of a tuple after operations.
    """
    key_fields = np.zeros((max(len(formats), 1), MAX_FIELDS), np.uint8)
    names: list[bytes] = []
    numbers: list[int] = []
    format_names = [0]
    for index, fmt in enumerate(formats):
        key_fields[index, [part.field for part in fmt.primary_key if part.field < MAX_FIELDS]] = 1
        names += fmt.number_by_name
        numbers += fmt.number_by_name.values()
        format_names.append(len(names))
    before, changes = flatten(tuples, 0), flatten(operations, 0)
    own = flatten(pa.array(names, pa.binary()), 0)
    room = int(before.offsets[-1] - before.offsets[0]) + 2 * int(changes.offsets[-1] - changes.offsets[0])
    out, ends = np.empty(room, np.uint8), np.zeros(len(tuples) + 1, np.int64)
    is_done = np.zeros(len(tuples), np.uint8)
    apply_to_keys(
        row_ends,
        is_wanted.astype(np.uint8),
        before.data,
        before.offsets,
        changes.data,
        changes.offsets,
        np.array(index_bases),  # numba compiles read-only arrays, as Arrow's are, once more
        format_numbers,
        key_fields,
        own.data,
        own.offsets,
        np.array(numbers, np.int64),
        np.array(format_names, np.int64),
        limit_bytes,
        out,
        ends[1:],
        is_done,
    )
    offsets = offsets_of(ends, "the tuples of a batch after UPDATEs", _ADVICE)
    return binary_array(pa.binary(), offsets, out[: ends[-1]], is_done.astype(np.bool_))


def compile_kernels() -> None:
    """Compile the kernel ahead of the first batch."""
    empty, one, zero = pa.array([b"\x90"], pa.binary()), np.ones(1, np.int64), np.zeros(1, np.int64)
    quick_updates(empty, one == 1, one, empty, zero, zero, [TupleFormat()], 1)
