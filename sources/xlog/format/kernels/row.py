"""Walks one xrow: numba kernels that find its numbers and the positions of its fields in the MessagePack.

A row is a header map, then a body map (none for NOP):

    header  0 type, 2 replica id, 3 lsn, 4 timestamp (double, s), 7 group id, 8 lsn - tsn, 9 flags
    body    0x10 space, 0x15 index base, 0x20 key, 0x21 tuple (UPDATE: operations), 0x28 UPSERT's operations

The keys of a map are in any order, and unknown keys are skipped. The kernels read only inside their block, even if its
bytes are damaged. They refuse what Tarantool refuses: anything but a map, and a value whose type does not fit its key.

For changes other than INSERT, REPLACE, UPDATE, UPSERT and DELETE (DELETE_RANGE, INSERT_ARROW, types of later servers)
only the space is read, and the column `body` has the whole body. The column also has the body of an UPDATE or UPSERT
that contains the new tuple besides the operations (key 0x2d, `wal_ext`).

Source: `xrow_header_decode`, `xrow_header_encode` and `xrow_decode_dml` in Tarantool's `src/box/xrow.c`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.compiled import kernel
from schemas.iproto import VCLOCK_MAX, BodyKey, HeaderKey, RequestType
from schemas.row_types import CHANGES, KeyPlace
from sources.xlog.format.arrays import Int, Ints
from sources.xlog.format.damage import WalkStatus
from sources.xlog.format.kernels.native import address_of, byte_at, double_of, put_word
from sources.xlog.format.kernels.skip import DOUBLE, big_endian, is_array, load_map_size, load_uint, skip

TYPE, REPLICA_ID, LSN, TIMESTAMP = 0, 2, 3, 4
GROUP_ID, TSN, FLAGS, SPACE_ID, INDEX_BASE = 7, 8, 9, 11, 12
KEY, TUPLE, OPERATIONS, BODY = 13, 14, 15, 16
COMMIT, WAIT_SYNC, WAIT_ACK, _HAS_NEW_TUPLE = 17, 18, 19, 20
"""Numbers of bits in `RowColumns.row_bits`. Those up to `INDEX_BASE` are also indexes of the array `numbers`, and those
up to 9 equal the keys of the header."""

INT64_COLUMNS = ("position", "lsn", "tsn", "timestamp")
INT32_COLUMNS = ("row", "type", "replica_id", "group_id", "space_id", "index_base")
BINARY_COLUMNS = ("key", "tuple", "operations", "body")

FILLED, FULL = 0, 1
COUNT, BLOCK, AT, NUMBER, ROOM = range(5)
"""Indexes in the state of `walk_rows`: number of filled rows; number of the block; position in it; number of the row in
it; bytes that each binary column must have for the next row."""

_UINT_KEYS = 1 << TYPE | 1 << REPLICA_ID | 1 << LSN | 1 << GROUP_ID | 1 << TSN | 1 << FLAGS
_INT32_KEYS = 1 << TYPE | 1 << REPLICA_ID | 1 << GROUP_ID
_UPDATE, _UPSERT = int(RequestType.UPDATE), int(RequestType.UPSERT)
_NOP, _FIRST_RAFT = int(RequestType.NOP), int(RequestType.RAFT)
_TYPES_READ_BY_FIELD = sum(
    1 << int(kind) for kind, one in CHANGES.items() if one.key_place is not KeyPlace.RANGE
)
_SPACE_KEY, _INDEX_BASE_KEY, _KEY_KEY = int(BodyKey.SPACE_ID), int(BodyKey.INDEX_BASE), int(BodyKey.KEY)
_NEW_TUPLE_KEY = int(BodyKey.NEW_TUPLE)
_TUPLE_KEY, _OPERATIONS_KEY, _LAST_HEADER_KEY = int(BodyKey.TUPLE), int(BodyKey.OPS), int(HeaderKey.FLAGS)
_BAD_HEADER, _BAD_BODY, _BAD_RANGE = (
    int(WalkStatus.ROW_HEADER),
    int(WalkStatus.ROW_BODY),
    int(WalkStatus.ROW_RANGE),
)
_REPLICA_ID_LIMIT = int(VCLOCK_MAX)
_INT32_MAX = 2**31 - 1
_MAX_SECONDS = 9.2e12  # seconds: the range of 63 bits of microseconds


class RowColumns(NamedTuple):
    """Buffers that `fill.walk_rows` fills, for n rows."""

    int64s: Ints
    """The columns `INT64_COLUMNS`: position of the row's block in the file (bytes), lsn, tsn, timestamp (microseconds
    since 1970 UTC; int64[4, n]).
    """
    int32s: npt.NDArray[np.int32]
    """The columns `INT32_COLUMNS`: the row's number in its block, type, replica id, group id, space id, index base
    (int32[6, n]).
    """
    row_bits: npt.NDArray[np.uint32]
    """For each row, one bit for each column in which it has a value, and bits for its flags (uint32[n]). If the bit of
    a column is not set, the value in `int64s` or `int32s` is undefined.
    """
    binary_ends: npt.NDArray[np.int32]
    """`binary_ends[k]` has Arrow's offsets of the values in `binary_data[k]` (int32[4, n + 1]); `binary_ends[k, 0]` is
    0.
    """
    binary_data: npt.NDArray[np.uint8]
    """The bytes of each of the columns `BINARY_COLUMNS`, one value after another (uint8[4, size])."""


@kernel
def _walk_header(data: Int, begin: Int, end: Int, numbers: Int) -> tuple[Int, Int]:
    """Store the header's values in `numbers`, by key; return (position after it or status, bits of its keys)."""
    pairs, p = load_map_size(data, begin, end)
    key_bits = 0
    if p < 0:
        return _BAD_HEADER, 0
    for _ in range(pairs):
        key, p = load_uint(data, p, end)
        if p < 0:
            return _BAD_HEADER, 0
        if key == TIMESTAMP:
            if p + 9 > end or byte_at(data, p) != DOUBLE:
                return _BAD_HEADER, 0
            put_word(numbers, 8 * TIMESTAMP, big_endian(data, p + 1, 8))
            key_bits |= 1 << TIMESTAMP
            p += 9
        elif 0 <= key <= _LAST_HEADER_KEY and (_UINT_KEYS >> key) & 1:
            value, p = load_uint(data, p, end)
            if (_INT32_KEYS >> key) & 1 and not 0 <= value <= _INT32_MAX:
                return (_BAD_RANGE if p >= 0 else _BAD_HEADER), 0
            put_word(numbers, 8 * key, value)
            key_bits |= 1 << key
        else:
            p = skip(data, p, end)
        if p < 0:
            return _BAD_HEADER, 0
    return p, key_bits


@kernel
def _convert_header(numbers: Ints, key_bits: Int) -> Int:
    """Convert the header's values in `numbers` to values of columns; return the row's bits, or a status."""
    if (key_bits >> TIMESTAMP) & 1:
        seconds = double_of(numbers[TIMESTAMP])
        if not -_MAX_SECONDS < seconds < _MAX_SECONDS:
            return _BAD_RANGE
        numbers[TIMESTAMP] = np.int64(np.rint(seconds * 1e6))
    if (key_bits >> REPLICA_ID) & 1 and numbers[REPLICA_ID] >= _REPLICA_ID_LIMIT:
        return _BAD_RANGE
    if (key_bits >> LSN) & 1 and numbers[LSN] < 0:
        return _BAD_RANGE
    flags = numbers[FLAGS] if (key_bits >> FLAGS) & 1 else 0
    row_bits = key_bits & ~(1 << TSN | 1 << FLAGS) | (flags & 1) << COMMIT
    row_bits |= ((flags >> 1) & 1) << WAIT_SYNC | ((flags >> 2) & 1) << WAIT_ACK
    # A local row inside a global transaction wraps around 2^64, as int64 arithmetic does.
    if (key_bits >> TSN) & 1:
        numbers[TSN] = numbers[LSN] - numbers[TSN]
    else:
        numbers[TSN] = numbers[LSN]
        row_bits |= 1 << COMMIT
    return row_bits


@kernel
def _walk_body(
    data: Int, begin: Int, end: Int, kind: Int, numbers: Int, field_bounds: Int
) -> tuple[Int, Int]:
    """Store the body's numbers and the bounds of its fields; return (position after the body or status, row bits)."""
    pairs, p = load_map_size(data, begin, end)
    row_bits, update, is_read_by_field = 0, kind == _UPDATE, (_TYPES_READ_BY_FIELD >> kind) & 1 == 1
    if p < 0:
        p = skip(data, begin, end) if not is_read_by_field else -1
        return p if p >= 0 else _BAD_BODY, 0
    for _ in range(pairs):
        key, p = load_uint(data, p, end)
        if p < 0:
            return _BAD_BODY, 0
        if is_read_by_field and key in (_TUPLE_KEY, _KEY_KEY, _OPERATIONS_KEY):
            index = KEY if key == _KEY_KEY else (TUPLE if key == _TUPLE_KEY and not update else OPERATIONS)
            begin = p
            p = skip(data, p, end) if is_array(data, p, end) else -1
            # An UPDATE's operations are its tuple, as in `memtx_space_execute_update`: no server writes both.
            if not (key == _OPERATIONS_KEY and update and (row_bits >> OPERATIONS) & 1):
                put_word(field_bounds, 16 * (index - KEY), begin)
                put_word(field_bounds, 16 * (index - KEY) + 8, p)
            row_bits |= 1 << index
        elif key in (_SPACE_KEY, _INDEX_BASE_KEY):
            index = SPACE_ID if key == _SPACE_KEY else INDEX_BASE
            value, p = load_uint(data, p, end)
            if not 0 <= value <= _INT32_MAX:
                return (_BAD_RANGE if p >= 0 else _BAD_BODY), 0
            put_word(numbers, 8 * index, value)
            row_bits |= 1 << index
        else:
            if key == _NEW_TUPLE_KEY and (update or kind == _UPSERT):
                row_bits |= 1 << _HAS_NEW_TUPLE
            p = skip(data, p, end)
        if p < 0:
            return _BAD_BODY, 0
    return p, row_bits


@kernel
def row_end(data: Int, begin: Int, end: Int) -> Any:
    """Return the position after a row that `walk_row` refused, or a negative number if its end is unknown.

    Only the type in the header says whether a body follows, so without a readable type the end is unknown.
    """
    pairs, p = load_map_size(data, begin, end)
    kind = -1
    for _ in range(max(pairs, 0)):
        if p < 0:
            return p
        key, behind_key = load_uint(data, p, end)
        is_type = behind_key >= 0 and key == TYPE
        p = skip(data, p, end)
        if is_type:
            kind, p = load_uint(data, p, end)
        elif p >= 0:
            p = skip(data, p, end)
    if p >= 0 and kind < 0:
        return _BAD_HEADER
    if p < 0 or kind == _NOP or p == end:
        return p
    return skip(data, p, end)


@kernel
def walk_row(data: Int, begin: Int, end: Int, numbers: Ints, field_bounds: Ints) -> tuple[Int, Int]:
    """Walk one row.

    Args:
        data: Address of the rows.
        begin, end: Where the row begins, and where its block ends.
        numbers: Filled with the numbers of the header and the body, at the indexes `TYPE` to `INDEX_BASE` (int64[16]).
        field_bounds: Filled with the begin and the end of key, tuple, operations and body, in this order (int64[8]).

    Returns:
        position, row_bits: The position after the row, or a negative `damage.WalkStatus`; and the row's value of
            `RowColumns.row_bits`.
    """
    numbers[TYPE] = 0
    numbers[LSN] = 0
    p, key_bits = _walk_header(data, begin, end, address_of(numbers))
    if p < 0:
        return p, 0
    row_bits = _convert_header(numbers, key_bits)
    kind = numbers[TYPE]
    if row_bits < 0:
        return row_bits, 0
    if kind == _NOP or p == end:
        return p, row_bits
    begin_body = p
    if kind < _FIRST_RAFT:
        p, fields = _walk_body(data, p, end, kind, address_of(numbers), address_of(field_bounds))
        row_bits |= fields
    else:
        p = skip(data, p, end)
        p = p if p >= 0 else _BAD_BODY
    if row_bits & 1 << _HAS_NEW_TUPLE or not row_bits & (1 << KEY | 1 << TUPLE | 1 << OPERATIONS):
        field_bounds[6], field_bounds[7] = begin_body, p
        row_bits |= 1 << BODY
    return p, row_bits & ~(1 << _HAS_NEW_TUPLE)
