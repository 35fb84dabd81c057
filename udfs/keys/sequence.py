"""Computes the sequence of a version: some fields of its tuple as bytes that compare as Tarantool compares the fields.

Two sequences are compared as unsigned bytes, which Spark does for a binary column; the order is that of a tree index
over `scalar` parts, part by part. The bytes (`udfs.keys.kernels.sort_key`) serve only for comparing and are the same in
every run. The configuration names the fields; `udfs.before_replace` uses the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.errors import TupleError, UnsupportedError
from udfs.buffers import flatten, variable_array
from udfs.kernels.values import OVERREAD
from udfs.keys.kernels.sequence import locate, write

_OFFSET_MAX = 2**31 - 1

NO_VALUE = b"\x00"
"""First byte of a field's part of the sequence if it is missing, nil or of a type without an order."""


def _field_table(formats: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return the field numbers, (formats, parts)."""
    widths = {len(fields) for fields in formats}
    if len(widths) > 1:
        raise ValueError(f"formats with {sorted(widths)} sequence columns: all must have the same number")
    return np.array(formats, np.int32).reshape(len(formats), widths.pop() if widths else 0)


def _offsets(ends: NDArray[np.int64]) -> NDArray[np.int32]:
    if ends[-1] > _OFFSET_MAX:
        raise UnsupportedError(
            f"the sequences of one batch take {ends[-1]} bytes",
            advice="lower spark.sql.execution.arrow.maxRecordsPerBatch",
        )
    return ends.astype(np.int32)


def _bytes_by(
    tuples: pa.Array, which: pa.Array | NDArray[np.int32] | int, table: NDArray[np.int32]
) -> pa.Array:
    rows = len(tuples)
    flat = flatten(tuples, OVERREAD)
    if isinstance(which, np.ndarray):
        index = which
    elif isinstance(which, int):
        index = np.full(rows, which, np.int32)
    else:
        index = which.fill_null(-1).cast(pa.int32()).to_numpy()
    classes = np.zeros((rows, table.shape[1]), np.int8)
    arguments = np.zeros((rows, table.shape[1]), np.int64)
    room = locate(flat.data, flat.offsets, flat.nulls, index, table, classes, arguments)
    out, ends = np.empty(room, np.uint8), np.zeros(rows + 1, np.int64)
    if not write(flat.data, flat.nulls, classes, arguments, out, ends):
        raise TupleError("a sequence takes more bytes than its fields can have")
    offsets = _offsets(ends)
    return variable_array(pa.binary(), offsets, out[: ends[-1]], flat.nulls == 0)


def sequence_bytes(
    tuples: pa.Array, which: pa.Array | NDArray[np.int32] | int, formats: Sequence[Sequence[int]]
) -> pa.Array:
    """Return the sequence of each tuple.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        MessagePack tuples; may be a slice. A null gives null, never an error.
    which : pyarrow.Int32Array, int32[n] or int
        Index in `formats` of each tuple's format; for an index outside of it, all fields are missing.
    formats : sequence of sequences of int
        Per format the 0-based numbers of the fields, in the order in which they are compared; -1 for a field that the
        format lacks. All have the same length.

    Returns
    -------
    pyarrow.BinaryArray
        A field that is missing, nil, damaged or without an order (array, map, interval) sorts below all values; NaN
        sorts below all other numbers.

    Raises
    ------
    ValueError
        The formats differ in length.
    UnsupportedError
        The sequences of one batch take 2 GiB or more.

    """
    return _bytes_by(tuples, which, _field_table(formats))


def ranks_of(values: pa.Array) -> NDArray[np.int64]:
    """Return the dense rank of each sequence; 0 for null."""
    found = np.zeros(len(values), np.int64)
    known = pc.is_valid(values).to_numpy(zero_copy_only=False)
    if known.any():
        found[known] = pc.rank(values.drop_null(), sort_keys="ascending", tiebreaker="dense").to_numpy()
    return found
