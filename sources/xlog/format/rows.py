"""Converts filled buffers (`RowColumns`) to columns, without copying values.

`batch_of` returns an Arrow batch with the columns of `schemas.xrow.XROW_FIELDS`. `headers_of` returns numpy arrays of
the row headers alone, for summaries and plans.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.errors import XlogError
from schemas.iproto import type_name
from schemas.xrow import CORRUPT_COLUMN, XROW_ARROW
from sources.xlog.format.arrays import Flags, Ints
from sources.xlog.format.kernels import row as kernel
from sources.xlog.format.kernels.row import BINARY_COLUMNS, INT32_COLUMNS, INT64_COLUMNS, RowColumns

CORRUPT_FIELD = pa.field(CORRUPT_COLUMN, pa.string())
XROW_PERMISSIVE = XROW_ARROW.append(CORRUPT_FIELD)
"""The schema of batches in mode PERMISSIVE, which have the column of corrupt records at the end."""

ABSENT = -1
ABSENT_TIMESTAMP = -(2**63)
"""Values of `Headers` in place of a missing number, and of a missing timestamp."""

_NAMED_TYPE_COUNT = 128
_PRESENCE_BIT = {
    "type": kernel.TYPE,
    "replica_id": kernel.REPLICA_ID,
    "group_id": kernel.GROUP_ID,
    "lsn": kernel.LSN,
    "tsn": kernel.LSN,
    "timestamp": kernel.TIMESTAMP,
    "space_id": kernel.SPACE_ID,
    "index_base": kernel.INDEX_BASE,
    "key": kernel.KEY,
    "tuple": kernel.TUPLE,
    "operations": kernel.OPERATIONS,
    "body": kernel.BODY,
}
_NULLABLE_HEADER_NAMES = ("type", "replica_id", "group_id", "lsn", "tsn", "timestamp", "space_id")
_FLAG_BIT = {"is_commit": kernel.COMMIT, "wait_sync": kernel.WAIT_SYNC, "wait_ack": kernel.WAIT_ACK}


@lru_cache(maxsize=1)
def _type_names() -> pa.Array:
    """Return the names of the first request types, by number.

    The array is made at the first call, because PyArrow imports pandas for it, which takes a fifth of a second.
    """
    return pa.array([type_name(code) for code in range(_NAMED_TYPE_COUNT)], pa.string())


def new_columns(row_count: int, binary_bytes: int, with_binary: bool = True) -> RowColumns:
    """Return empty buffers for `row_count` rows and `binary_bytes` bytes in each binary column."""
    ends = np.empty((len(BINARY_COLUMNS), row_count + 1), np.int32)
    ends[:, 0] = 0
    return RowColumns(
        np.empty((len(INT64_COLUMNS), row_count), np.int64),
        np.empty((len(INT32_COLUMNS), row_count), np.int32),
        np.empty(row_count, np.uint32),
        ends,
        np.empty((len(BINARY_COLUMNS), binary_bytes if with_binary else 0), np.uint8),
    )


class FileColumns:
    """The columns `file` and `instance_uuid`, which have the same value in all rows of a file.

    They are made once for the longest batch so far; shorter batches get a slice.
    """

    def __init__(self, file: str, instance_uuid: str | None) -> None:
        self._values = {"file": file, "instance_uuid": instance_uuid}
        self._columns = {name: pa.array([], pa.string()) for name in self._values}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def column(self, name: str, count: int) -> pa.Array:
        """Return the column `name` (`file` or `instance_uuid`) with `count` rows."""
        if count > len(self._columns[name]):
            self._columns[name] = pa.repeat(pa.scalar(self._values[name], pa.string()), count)
        return self._columns[name].slice(0, count)


def batch_of(
    columns: RowColumns, count: int, file_columns: FileColumns, permissive: bool = False
) -> pa.RecordBatch:
    """Return the first `count` rows of filled buffers as a batch; the buffers must not be filled again."""
    row_bits = columns.row_bits[:count]
    everywhere, somewhere = _bits_in_all_and_any(row_bits)
    arrays = []
    for field in XROW_ARROW:
        if field.name in file_columns:
            arrays.append(file_columns.column(field.name, count))
        elif field.name in _FLAG_BIT:
            arrays.append(_flag_column(row_bits, _FLAG_BIT[field.name]))
        else:
            bit = _PRESENCE_BIT.get(field.name)
            complete = bit is None or (everywhere >> bit) & 1
            absent = bit is not None and not (somewhere >> bit) & 1
            validity = None if complete or bit is None else _validity_bitmap(row_bits, bit)
            arrays.append(pa.nulls(count, field.type) if absent else _column(columns, count, field, validity))
    if permissive:
        arrays.append(pa.nulls(count, CORRUPT_FIELD.type))
    return pa.RecordBatch.from_arrays(arrays, schema=XROW_PERMISSIVE if permissive else XROW_ARROW)


def corrupt_batch(error: XlogError, file: str) -> pa.RecordBatch:
    """Return the row that mode PERMISSIVE returns for damage; it has only the position and the error."""
    position = {"file": file, "position": error.fields.get("offset", 0), "row": error.fields.get("row")}
    row = position | {CORRUPT_COLUMN: str(error)}
    return pa.RecordBatch.from_pylist([row], schema=XROW_PERMISSIVE)


def type_column(codes: npt.NDArray[np.int32]) -> pa.Array:
    """Return the names of request types; an unknown type n is `TYPE_n`."""
    if codes.size == 0 or codes.max() < _NAMED_TYPE_COUNT:
        return _type_names().take(pa.array(codes))
    kinds, indices = np.unique(codes, return_inverse=True)
    return pa.array([type_name(kind) for kind in kinds.tolist()], pa.string()).take(pa.array(indices))


def _bits_in_all_and_any(row_bits: npt.NDArray[np.uint32]) -> tuple[int, int]:
    if row_bits.size == 0:
        return 0, 0
    return int(np.bitwise_and.reduce(row_bits)), int(np.bitwise_or.reduce(row_bits))


def _validity_bitmap(row_bits: npt.NDArray[np.uint32], bit: int) -> pa.Buffer:
    return pa.py_buffer(np.packbits(row_bits & np.uint32(1 << bit) != 0, bitorder="little"))


def _flag_column(row_bits: npt.NDArray[np.uint32], bit: int) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), row_bits.size, [None, _validity_bitmap(row_bits, bit)])


def _column(columns: RowColumns, count: int, field: pa.Field, validity: pa.Buffer | None) -> pa.Array:
    if field.name in INT64_COLUMNS:
        values: npt.NDArray[Any] = columns.int64s[INT64_COLUMNS.index(field.name), :count]
    elif field.name == "type":
        names = type_column(columns.int32s[INT32_COLUMNS.index("type"), :count])
        return (
            names
            if validity is None
            else pa.Array.from_buffers(names.type, count, [validity, *names.buffers()[1:]])
        )
    elif field.name in INT32_COLUMNS:
        values = columns.int32s[INT32_COLUMNS.index(field.name), :count]
    else:
        ends = columns.binary_ends[BINARY_COLUMNS.index(field.name), : count + 1]
        data = columns.binary_data[BINARY_COLUMNS.index(field.name), : ends[-1]]
        return pa.Array.from_buffers(field.type, count, [validity, pa.py_buffer(ends), pa.py_buffer(data)])
    return pa.Array.from_buffers(field.type, count, [validity, pa.py_buffer(values)])


@dataclass(frozen=True)
class Headers:
    """The header columns of n rows, in the order of the log.

    A missing value is `ABSENT` (-1), and a missing timestamp is `ABSENT_TIMESTAMP`.
    """

    position: Ints
    lsn: Ints
    tsn: Ints
    timestamp: Ints
    """Position of the row's block in the file (bytes), lsn, lsn of the transaction's first row, microseconds since 1970
    UTC (int64[n])."""
    row: npt.NDArray[np.int32]
    type: npt.NDArray[np.int32]
    replica_id: npt.NDArray[np.int32]
    group_id: npt.NDArray[np.int32]
    space_id: npt.NDArray[np.int32]
    """The row's number in its block, request type, replica id, group id, space id (int32[n])."""
    is_commit: Flags
    wait_ack: Flags
    """Whether the row is the last of its transaction (bool[n]); whether the transaction waits for a quorum."""


def headers_of(columns: RowColumns, count: int) -> Headers:
    """Return the headers of the first `count` rows of filled buffers; the buffers must not be filled again."""
    row_bits = columns.row_bits[:count]
    values: dict[str, Any] = {name: columns.int64s[k, :count] for k, name in enumerate(INT64_COLUMNS)}
    values |= {
        name: columns.int32s[k, :count] for k, name in enumerate(INT32_COLUMNS) if name != "index_base"
    }
    for name in _NULLABLE_HEADER_NAMES:
        is_absent = row_bits & np.uint32(1 << _PRESENCE_BIT[name]) == 0
        values[name][is_absent] = ABSENT_TIMESTAMP if name == "timestamp" else ABSENT
    is_commit = (row_bits >> np.uint32(kernel.COMMIT)) & np.uint32(1) == 1
    wait_ack = (row_bits >> np.uint32(kernel.WAIT_ACK)) & np.uint32(1) == 1
    return Headers(**values, is_commit=is_commit, wait_ack=wait_ack)
