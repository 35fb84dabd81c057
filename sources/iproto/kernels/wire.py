"""Numba kernels that parse packets and headers of rows, and write headers; `rows`, `filter` and `frames` use them."""

from __future__ import annotations

import numpy as np

from schemas.compiled import kernel
from schemas.iproto import (
    CHANGE_TYPE_MAX,
    FIRST_COMMAND,
    SYSTEM_SPACE_ID_MAX,
    BodyKey,
    HeaderKey,
    RequestType,
    SystemSpace,
)
from sources.xlog.format.arrays import Int, Ints
from sources.xlog.format.kernels.native import byte_at, copy_bytes, double_of, put_word, word_at
from sources.xlog.format.kernels.skip import (
    DOUBLE,
    UINT8,
    UINT64,
    big_endian,
    is_array,
    load_map_size,
    load_uint,
    skip,
)

END_OF_INPUT, OUTPUT_FULL, OTHER_PACKET, STOP_ROW, UNKNOWN_INSTANCE = 0, 1, 2, 3, 4
BAD_LENGTH, BAD_HEADER, BAD_ID, LSN_GAP, CUT_TRANSACTION, BAD_ROW, BAD_BODY = -1, -2, -3, -4, -5, -6, -7
"""Results of the kernels in `rows`, `frames` and `filter`.

END_OF_INPUT: no complete packet is left. OUTPUT_FULL: `out` must grow. OTHER_PACKET: the next packet is not a row.
STOP_ROW: the kernel stopped after the row that its caller named. UNKNOWN_INSTANCE: it stopped before a row whose
treatment is UNKNOWN. Negative results are kinds of damage.
"""

POSITION, WRITTEN, COMMITTED, COUNT, REPLICA, NEXT_LSN, FIRST_LSN = range(7)
SKIPPING, REPEATED, NEEDED_BYTES, ROW_LSN, HEARTBEATS = range(7, 12)
"""Indexes into the array `state`, which a kernel reads and updates.

POSITION: position in the input buffer. WRITTEN: bytes written to `out`. COMMITTED: bytes of the complete transactions
in `out`. COUNT: number of these transactions. REPLICA, NEXT_LSN, FIRST_LSN, SKIPPING: of the incomplete transaction,
its replica id (0: there is none), the lsn of its next and of its first row, and whether it is dropped. REPEATED: number
of rows dropped because the vclock has them. NEEDED_BYTES: size of the next packet or of `out`. ROW_LSN: lsn of the last
checked row. HEARTBEATS: number received.
"""
STATE_SIZE = 12
"""Number of elements of `state`."""

ROW_OVERHEAD_BYTES = 64
"""Maximum number of bytes by which a row in the log is longer than its packet."""

K_TYPE, _SYNC, K_REPLICA, K_LSN = 0, int(HeaderKey.SYNC), int(HeaderKey.REPLICA_ID), int(HeaderKey.LSN)
K_TIME, _SCHEMA_VERSION, K_TSN = int(HeaderKey.TIMESTAMP), int(HeaderKey.SCHEMA_VERSION), int(HeaderKey.TSN)
K_FLAGS = int(HeaderKey.FLAGS)
HEADER_KEY_COUNT = 10
HAS_TSN_INDEX = 10
"""The array `values` has a header's numbers, each at the index of its key, and whether it has a TSN."""
_SELECT, _DML_MAX = int(RequestType.SELECT), int(CHANGE_TYPE_MAX)
_INSERT, _NOP = int(RequestType.INSERT), int(RequestType.NOP)
_FIRST_RAFT, _FIRST_ADMIN = int(RequestType.RAFT_PROMOTE), int(FIRST_COMMAND)
_SPACE_ID, _SYSTEM_ID_MAX = int(BodyKey.SPACE_ID), int(SYSTEM_SPACE_ID_MAX)
_SEQUENCE_DATA, _DEFERRED_DELETE = int(SystemSpace.SEQUENCE_DATA), int(SystemSpace.VINYL_DEFERRED_DELETE)
LEFT_OUT, SENT, AS_NOP, UNKNOWN = 0, 1, 2, 3
"""Treatment of a replica id's rows.

LEFT_OUT: they are not sent. SENT: they are sent. AS_NOP: they are replaced by NOPs, except rows that `passes_whitelist`
accepts. UNKNOWN: the instance of the id is not known, so a kernel stops before a row that `passes_whitelist` does not
accept: as a NOP, a wanted row would be lost.
"""
_PACKET_MAX_BYTES = 1 << 30
_GROUP, _INT32_MAX = int(HeaderKey.GROUP_ID), 2**31 - 1
_MAX_TIMESTAMP = 9.2e12  # seconds: the range of 63 bits of microseconds
_ARRAY_KEYS_MASK = 1 << int(BodyKey.KEY) | 1 << int(BodyKey.TUPLE) | 1 << int(BodyKey.OPS)
_INTEGER_KEYS_MASK = 1 << int(BodyKey.SPACE_ID) | 1 << int(BodyKey.INDEX_BASE)
_CHECKED_TYPES_MASK = 1 << _INSERT | 1 << int(RequestType.REPLACE) | 1 << int(RequestType.UPDATE)
_CHECKED_TYPES_MASK |= 1 << int(RequestType.DELETE) | 1 << int(RequestType.UPSERT)
"""Bit masks: body keys whose values are arrays, or integers, and request types whose arrays are checked."""


@kernel
def packet_bounds(data: Int, p: Int, end: Int) -> tuple[Int, Int]:
    """Return where the packet at position `p` begins, after its length, and where it ends.

    The result is (-1, needed bytes) if the packet is incomplete, and (-2, 0) if no valid length is at `p`.
    """
    if p >= end:
        return -1, 1
    head = byte_at(data, p)
    if head >= 0x80 and not UINT8 <= head <= UINT64:
        return -2, 0
    size = 0 if head < 0x80 else 1 << (head - UINT8)
    begin = p + 1 + size
    if begin > end:
        return -1, 1 + size
    length = head if size == 0 else big_endian(data, p + 1, size)
    if not 0 < length <= _PACKET_MAX_BYTES:
        return -2, 0
    if begin + length > end:
        return -1, begin - p + length
    return begin, begin + length


@kernel
def copy_header(data: Int, begin: Int, end: Int, values: Ints, out: Int, to: Int) -> tuple[Int, Int]:
    """Store a header's numbers in `values`, at the index of their key, and copy the header to the address `out + to`.

    The copy has neither SYNC nor SCHEMA_VERSION. Returns (position of the body, offset from `out` at which the copy
    ends), or (-1, 0) for damage. `values[HAS_TSN_INDEX]` is 1 if the header has a TSN.
    """
    pairs, p = load_map_size(data, begin, end)
    if p < 0 or pairs > HEADER_KEY_COUNT + 5:
        return -1, 0
    values[:] = 0
    copied_pairs, w = 0, to + 1
    for _ in range(pairs):
        start = p
        key, p = load_uint(data, p, end)
        if p < 0:
            return -1, 0
        if key == K_TIME:
            if p + 9 > end or byte_at(data, p) != DOUBLE:
                return -1, 0
            values[K_TIME] = big_endian(data, p + 1, 8)
            p += 9
        elif 0 <= key < HEADER_KEY_COUNT:
            value, p = load_uint(data, p, end)
            if p < 0:
                return -1, 0
            values[key] = value
            if key == K_TSN:
                values[HAS_TSN_INDEX] = 1
        else:
            p = skip(data, p, end)
            if p < 0:
                return -1, 0
        if key not in (_SYNC, _SCHEMA_VERSION):
            copy_bytes(out + w, data + start, p - start)
            w += p - start
            copied_pairs += 1
    if copied_pairs > 14:  # the relay adds a SYNC to the log's header, and a one-byte map head counts to 15
        return -1, 0
    put_byte(out, to, 0x80 | copied_pairs)
    return p, w


@kernel
def is_valid_header(values: Ints) -> bool:
    """Return whether a log reader accepts a header's timestamp and group id."""
    seconds = double_of(values[K_TIME])
    return bool(-_MAX_TIMESTAMP < seconds < _MAX_TIMESTAMP and 0 <= values[_GROUP] <= _INT32_MAX)


@kernel
def is_complete_body(data: Int, begin: Int, end: Int, kind: Int) -> bool:
    """Return whether a log reader accepts the bytes from `begin` to `end` as one body: a map, or no bytes for a NOP."""
    if kind == _NOP or begin == end:
        return bool(kind == _NOP and begin == end)
    pairs, p = load_map_size(data, begin, end)
    if p < 0:
        return False
    has_checked_arrays = (_CHECKED_TYPES_MASK >> kind) & 1 == 1
    for _ in range(pairs):
        key, p = load_uint(data, p, end)
        if p < 0:
            return False
        if 0 <= key < 63 and (_INTEGER_KEYS_MASK >> key) & 1:
            value, p = load_uint(data, p, end)
            if not 0 <= value <= _INT32_MAX:
                return False
        else:
            if (
                0 <= key < 63
                and has_checked_arrays
                and (_ARRAY_KEYS_MASK >> key) & 1
                and not is_array(data, p, end)
            ):
                return False
            p = skip(data, p, end)
        if p < 0:
            return False
    return bool(p == end)


@kernel
def body_space_id(data: Int, begin: Int, end: Int) -> Int:
    """Return the space id in a body; -1 if the body has no space id or is not a map."""
    pairs, p = load_map_size(data, begin, end)
    for _ in range(pairs if p >= 0 else 0):
        key, p = load_uint(data, p, end)
        if p < 0:
            return -1
        if key == _SPACE_ID:
            space, p = load_uint(data, p, end)
            return np.int64(space) if p >= 0 else np.int64(-1)
        p = skip(data, p, end)
        if p < 0:
            return -1
    return -1


@kernel
def passes_whitelist(kind: Int, space_id: Int) -> bool:
    """Return whether a row is sent although its instance is not on the whitelist.

    This holds for rows that register an instance, define a space, or confirm or roll back synchronous transactions.
    Rows of sequences and of vinyl's deferred deletes do none of this, although they are in system spaces.
    """
    if kind >= _FIRST_RAFT:
        return True
    return bool(0 <= space_id <= _SYSTEM_ID_MAX and space_id not in (_SEQUENCE_DATA, _DEFERRED_DELETE))


@kernel
def put_nop_header(values: Ints, to: Int, at: Int) -> Int:
    """Write the header of a NOP that replaces the row with header `values`, as Tarantool encodes it; return its end."""
    has_flags = values[K_FLAGS] != 0
    put_byte(to, at, 0x84 + values[HAS_TSN_INDEX] + (1 if has_flags else 0))
    put_byte(to, at + 1, K_TYPE)
    put_byte(to, at + 2, _NOP)
    put_byte(to, at + 3, K_REPLICA)
    put_byte(to, at + 4, values[K_REPLICA])
    w: Int = put_number(to, at + 5, K_LSN, UINT64, values[K_LSN])
    w = put_number(to, w, K_TIME, DOUBLE, values[K_TIME])
    if values[HAS_TSN_INDEX]:
        w = put_number(to, w, K_TSN, UINT64, values[K_TSN])
    if has_flags:
        put_byte(to, w, K_FLAGS)
        put_byte(to, w + 1, values[K_FLAGS] & 0x7F)
        w += 2
    return w


@kernel
def put_number(to: Int, at: Int, key: Int, type_byte: Int, value: Int) -> Int:
    """Write a key, a MessagePack type byte and a number of eight bytes; return where they end."""
    put_byte(to, at, key)
    put_byte(to, at + 1, type_byte)
    for k in range(8):
        put_byte(to, at + 2 + k, (value >> 8 * (7 - k)) & 0xFF)
    return at + 10


@kernel
def put_byte(data: Int, at: Int, value: Int) -> None:
    """Store one byte at the address `data + at`; at least eight bytes must be writable there (`ROW_OVERHEAD_BYTES`)."""
    rest = np.int64(word_at(data, at) >> np.uint64(8))
    put_word(data, at, rest << 8 | value)


@kernel
def is_row(kind: Int) -> bool:
    """Return whether rows of a log have this request type; unknown types of later servers count as rows."""
    return bool(_SELECT < kind <= _DML_MAX or _FIRST_RAFT <= kind < _FIRST_ADMIN)


@kernel
def is_snapshot_row(kind: Int) -> bool:
    """Return whether rows of a snapshot have this request type: INSERT, or an unknown type of later servers."""
    return bool(kind == _INSERT or _NOP < kind <= _DML_MAX)
