"""Converts Arrow arrays to the flat buffers that kernels take, and the results of kernels to Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_PAGE_BYTES = 4096

OFFSET_MAX = 2**31 - 1
"""Greatest size in bytes of the content of a binary array with offsets of 32 bits."""

SMALLER_BATCHES_ADVICE = "lower spark.sql.execution.arrow.maxRecordsPerBatch"
"""The advice if a column of one batch is larger than `OFFSET_MAX`."""


@dataclass(frozen=True)
class BinaryBuffers:
    """The rows of a binary Arrow array, as a kernel reads them: row `i` is `data[offsets[i]:offsets[i + 1]]`."""

    data: NDArray[np.uint8]
    """The content; a kernel may load some bytes past its end (`with_readable_end`)."""
    offsets: NDArray[np.int32]
    """Where each row starts, and where the last one ends (int32[rows + 1])."""
    nulls: NDArray[np.uint8]
    """1 where the row is null (uint8[rows])."""


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view, as most Arrow buffers are: numba compiles a kernel again for writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


def with_readable_end(data: NDArray[np.uint8], overread: int) -> NDArray[np.uint8]:
    """Return the same bytes in memory where `overread` bytes past the end can be loaded.

    Memory is mapped in pages, so the rest of the last page can always be loaded. The buffer is copied only if its
    end is too close to the end of that page.
    """
    end = data.ctypes.data + len(data)
    if len(data) and 0 < end % _PAGE_BYTES <= _PAGE_BYTES - overread:
        return _read_only(data)
    padded = np.zeros(len(data) + overread, np.uint8)
    padded[: len(data)] = data
    return _read_only(padded[: len(data)])


def null_mask(array: pa.Array) -> NDArray[np.uint8]:
    """Return 1 for each null row of an array, else 0."""
    if array.null_count == 0:
        return np.zeros(len(array), np.uint8)
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    valid = np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)]
    return 1 - valid


def index_per_row(indexes: pa.Array | NDArray[np.int32] | int, rows: int) -> NDArray[np.int32]:
    """Return an index for each row, as int32[rows].

    Args:
        indexes: The index of each row, or one index for all rows; null becomes -1.
        rows: Number of rows.
    """
    if isinstance(indexes, np.ndarray):
        return indexes
    if isinstance(indexes, int):
        return np.full(rows, indexes, np.int32)
    return np.array(indexes.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False))


def flatten(array: pa.Array, overread: int) -> BinaryBuffers:
    """Return the buffers of a binary or string array; a slice is not copied.

    Args:
        overread: How many bytes past the end a kernel may load.
    """
    small = array if pa.types.is_binary(array.type) else array.cast(pa.binary())
    _, offsets, data = small.buffers()
    if len(small) == 0 or offsets is None:
        return BinaryBuffers(
            with_readable_end(np.zeros(0, np.uint8), overread),
            _read_only(np.zeros(1, np.int32)),
            null_mask(small),
        )
    bounds = np.frombuffer(offsets, np.int32)[small.offset : small.offset + len(small) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return BinaryBuffers(with_readable_end(content, overread), _read_only(bounds), null_mask(small))


def validity_bitmap(present: NDArray[np.bool_]) -> tuple[pa.Buffer | None, int]:
    """Return Arrow's validity buffer (None if all rows are present), and the number of null rows."""
    missing = len(present) - int(np.count_nonzero(present))
    return (pa.py_buffer(np.packbits(present, bitorder="little")) if missing else None), missing


def binary_array(
    kind: pa.DataType, offsets: NDArray[np.int32], data: NDArray[np.uint8], present: NDArray[np.bool_]
) -> pa.Array:
    """Return an Arrow array of type `kind`, strings or bytes, over memory; rows that are not `present` are null."""
    validity, missing = validity_bitmap(present)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(present), buffers, missing)


def offsets_of(ends: NDArray[np.int64], what: str, advice: str) -> NDArray[np.int32]:
    """Return the offsets of a binary array of an Arrow batch.

    Args:
        ends: Where each row ends, after a leading 0 (int64[rows + 1]).
        what, advice: For the text of the error: what the rows are, and what to do if they take too much memory.

    Raises:
        UnsupportedError: The rows take 2 GiB or more.
    """
    if ends[-1] > OFFSET_MAX:
        raise UnsupportedError(f"{what} take {ends[-1]} bytes", advice=advice)
    return ends.astype(np.int32)


def arrow_column_function(function: Callable[..., pa.Array], returns: DataType) -> Callable[..., Column]:
    """Return an Arrow UDF of a function that takes Arrow arrays and returns one."""
    # Commands that start no Spark import this module.
    from pyspark.sql.pandas.functions import arrow_udf

    make: Any = arrow_udf
    # Spark reads the annotations, which are texts in modules with postponed annotations.
    function.__annotations__ = dict.fromkeys([*signature(function).parameters, "return"], pa.Array)
    wrapped: Callable[..., Column] = make(function, returnType=returns)
    return wrapped


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; a column of one chunk is not copied."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def texts_of_rows(
    faults: NDArray[np.uint8], rows: NDArray[np.int64], total: int, text: Callable[[bytes], str]
) -> pa.Array:
    """Return a string array of `total` rows, with the text of each fault at its row and null at all other rows.

    Kernels report a fault as numbers. The text of equal numbers is made only once, because a batch may have many bad
    rows, but few kinds of faults.

    Args:
        faults: The numbers of each fault, as bytes (uint8[len(rows), width]).
        rows: The rows of the faults, ascending.
        total: Number of rows of the result.
        text: Returns the text for the numbers of a fault.
    """
    if len(rows) == 0:
        return pa.nulls(total, pa.string())
    width = faults.shape[1]
    flat = np.ascontiguousarray(faults)
    binary = pa.Array.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(flat)])
    coded = binary.dictionary_encode()
    choices = pa.array([text(fault.as_py()) for fault in coded.dictionary], pa.string())
    index = np.zeros(total, np.int32)
    index[rows] = coded.indices.to_numpy()
    absent = np.ones(total, np.bool_)
    absent[rows] = False
    return choices.take(pa.array(index, mask=absent))
