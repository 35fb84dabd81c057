"""Numba kernels that parse packets and headers of rows, and write headers; `rows` and `frames` use them."""

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
    load_map,
    load_uint,
    skip,
)

END_OF_INPUT, OUTPUT_FULL, OTHER_PACKET, STOP_ROW, UNKNOWN_INSTANCE = 0, 1, 2, 3, 4
BAD_LENGTH, BAD_HEADER, BAD_ID, LSN_GAP, CUT_TRANSACTION, BAD_ROW, BAD_BODY = -1, -2, -3, -4, -5, -6, -7
"""Results of the kernels in `rows`, `frames` and `filter`.

END_OF_INPUT: no complete packet is left. OUTPUT_FULL: `out` must grow. OTHER_PACKET: the next packet is not a row.
STOP_ROW: the kernel stopped after a row, as its docstring says. UNKNOWN_INSTANCE: it stopped before a row whose
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

HEAD_ROOM = 64
"""Maximum number of bytes by which a row in the log is longer than its packet."""

K_TYPE, _SYNC, K_REPLICA, K_LSN = 0, int(HeaderKey.SYNC), int(HeaderKey.REPLICA_ID), int(HeaderKey.LSN)
K_TIME, _SCHEMA_VERSION, K_TSN = int(HeaderKey.TIMESTAMP), int(HeaderKey.SCHEMA_VERSION), int(HeaderKey.TSN)
K_FLAGS = int(HeaderKey.FLAGS)
KEYS = 10
HAS_TSN = 10
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
_PACKET_LIMIT = 1 << 30
_GROUP, _INT32_MAX = int(HeaderKey.GROUP_ID), 2**31 - 1
_TIME_MAX = 9.2e12  # seconds: the range of 63 bits of microseconds
_ARRAYS = 1 << int(BodyKey.KEY) | 1 << int(BodyKey.TUPLE) | 1 << int(BodyKey.OPS)
_NUMBERS = 1 << int(BodyKey.SPACE_ID) | 1 << int(BodyKey.INDEX_BASE)
_BY_FIELDS = 1 << _INSERT | 1 << int(RequestType.REPLACE) | 1 << int(RequestType.UPDATE)
_BY_FIELDS |= 1 << int(RequestType.DELETE) | 1 << int(RequestType.UPSERT)


@kernel
def packet_bounds(data: Int, p: Int, end: Int) -> tuple[Int, Int]:
    """Return (begin, end) of the packet at `p`; (-1, needed bytes) if it is incomplete, (-2, 0) if there is none."""
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
    if not 0 < length <= _PACKET_LIMIT:
        return -2, 0
    if begin + length > end:
        return -1, begin - p + length
    return begin, begin + length


@kernel
def copy_header(data: Int, begin: Int, end: Int, values: Ints, out: Int, to: Int) -> tuple[Int, Int]:
    """Store the header's numbers in `values` by key; copy the header without SYNC and SCHEMA_VERSION to `out + to`.

    Return (position of the body, end in `out`), or (-1, 0) for damage. `values[HAS_TSN]` is 1 if there is a TSN.
    """
    pairs, p = load_map(data, begin, end)
    if p < 0 or pairs > KEYS + 5:
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
        elif 0 <= key < KEYS:
            value, p = load_uint(data, p, end)
            if p < 0:
                return -1, 0
            values[key] = value
            if key == K_TSN:
                values[HAS_TSN] = 1
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
    return bool(-_TIME_MAX < seconds < _TIME_MAX and 0 <= values[_GROUP] <= _INT32_MAX)


@kernel
def is_complete_body(data: Int, begin: Int, end: Int, kind: Int) -> bool:
    """Return whether a log reader accepts `begin..end` as one body: a map, or nothing for a NOP."""
    if kind == _NOP or begin == end:
        return bool(kind == _NOP and begin == end)
    pairs, p = load_map(data, begin, end)
    if p < 0:
        return False
    by_fields = (_BY_FIELDS >> kind) & 1 == 1
    for _ in range(pairs):
        key, p = load_uint(data, p, end)
        if p < 0:
            return False
        if 0 <= key < 63 and (_NUMBERS >> key) & 1:
            value, p = load_uint(data, p, end)
            if not 0 <= value <= _INT32_MAX:
                return False
        else:
            if 0 <= key < 63 and by_fields and (_ARRAYS >> key) & 1 and not is_array(data, p, end):
                return False
            p = skip(data, p, end)
        if p < 0:
            return False
    return bool(p == end)


@kernel
def body_space_id(data: Int, begin: Int, end: Int) -> Int:
    """Return the space id of a body, -1 if it has none or is not a map."""
    pairs, p = load_map(data, begin, end)
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
def passes_whitelist(kind: Int, space: Int) -> bool:
    """Return whether a row is kept although its instance is not on the whitelist.

    It is kept if it registers an instance, defines a space, or confirms or rolls back synchronous transactions.

    Rows of sequences and of vinyl's deferred deletes do none of this, although they are in system spaces.
    """
    if kind >= _FIRST_RAFT:
        return True
    return bool(0 <= space <= _SYSTEM_ID_MAX and space not in (_SEQUENCE_DATA, _DEFERRED_DELETE))


@kernel
def put_nop(values: Ints, to: Int, at: Int) -> Int:
    """Write the header of a NOP that replaces a row, encoded as Tarantool does, and return its end."""
    has_flags = values[K_FLAGS] != 0
    put_byte(to, at, 0x84 + values[HAS_TSN] + (1 if has_flags else 0))
    put_byte(to, at + 1, K_TYPE)
    put_byte(to, at + 2, _NOP)
    put_byte(to, at + 3, K_REPLICA)
    put_byte(to, at + 4, values[K_REPLICA])
    w: Int = put_number(to, at + 5, K_LSN, UINT64, values[K_LSN])
    w = put_number(to, w, K_TIME, DOUBLE, values[K_TIME])
    if values[HAS_TSN]:
        w = put_number(to, w, K_TSN, UINT64, values[K_TSN])
    if has_flags:
        put_byte(to, w, K_FLAGS)
        put_byte(to, w + 1, values[K_FLAGS] & 0x7F)
        w += 2
    return w


@kernel
def put_number(to: Int, at: Int, key: Int, head: Int, value: Int) -> Int:
    """Write a key, a MessagePack type byte and a number of eight bytes; return their end."""
    put_byte(to, at, key)
    put_byte(to, at + 1, head)
    for k in range(8):
        put_byte(to, at + 2 + k, (value >> 8 * (7 - k)) & 0xFF)
    return at + 10


@kernel
def put_byte(data: Int, at: Int, value: Int) -> None:
    """Store one byte at address + offset; at least eight bytes must be free there (`HEAD_ROOM`)."""
    rest = np.int64(word_at(data, at) >> np.uint64(8))
    put_word(data, at, rest << 8 | value)


@kernel
def is_row(kind: Int) -> bool:
    """Return whether a request type is that of a row in a log; unknown types of later servers count as rows."""
    return bool(_SELECT < kind <= _DML_MAX or _FIRST_RAFT <= kind < _FIRST_ADMIN)


@kernel
def is_snapshot_row(kind: Int) -> bool:
    """Return whether a type is that of a row in a snapshot: INSERT, or an unknown type of later servers."""
    return bool(kind == _INSERT or _NOP < kind <= _DML_MAX)
