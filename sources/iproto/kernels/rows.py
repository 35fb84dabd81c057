"""Rows from the wire to the log: numba kernels that check a server's stream and copy it, header by header.

    wire   mp_uint length, header with SYNC, body
    log    header without SYNC and SCHEMA_VERSION, body

`walk_stream` takes SUBSCRIBE's rows: it lets whole transactions through, those that are above the vclock, and
stops where an lsn is missing. `walk_snapshot` takes FETCH_SNAPSHOT's rows, which have neither lsn nor time, and
numbers them as Tarantool's own checkpoint does (`checkpoint_write_row` in `src/box/memtx_engine.c`).

No body is looked at: it is copied as it came. The kernels read nothing outside of `buffer[begin:end]`, whatever
its bytes are. Not here: answers and errors, at which they stop; any input or output.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from schemas.iproto import VCLOCK_MAX, HeaderKey, RequestType
from sources.xlog.arrays import Bytes, Int, Ints
from sources.xlog.kernels.native import (
    address_of,
    byte_at,
    copy_bytes,
    double_of,
    put_word,
    swap_bytes,
    word_at,
)
from sources.xlog.kernels.skip import DOUBLE, big_endian, load_map, load_uint, skip

MORE, FULL, PACKET = 0, 1, 2
BAD_LENGTH, BAD_HEADER, BAD_ID, GAP, CUT, BAD_ROW = -1, -2, -3, -4, -5, -6
"""Why a walk stopped: the bytes end; no room for what comes; no row comes. Negative: damage."""

AT, OUT, COMMITTED, COUNT, REPLICA, NEXT, TSN, SKIPPING, REPEATED, NEED, ROW_LSN, HEARTBEATS = range(12)
"""Places in a walk's state.

AT: position in the buffer. OUT, COMMITTED: bytes written to `out`, and those of whole transactions. COUNT:
whole transactions in `out`. REPLICA, NEXT, TSN, SKIPPING: of the transaction that is open (0: none is): its
id, the lsn that must come, its first lsn, whether it is left out. REPEATED: rows left out, since the vclock
has them. NEED: bytes that the next packet takes, where they are more than there are. ROW_LSN: of the row that
stopped the walk. HEARTBEATS: how many came.
"""
STATE_SIZE = 12

HEAD_ROOM = 32
"""A row in the log is at most so much longer than on the wire, in bytes."""

_K_TYPE, _K_SYNC, _K_REPLICA, _K_LSN = 0, int(HeaderKey.SYNC), int(HeaderKey.REPLICA_ID), int(HeaderKey.LSN)
_K_TIME, _K_SCHEMA, _K_TSN = int(HeaderKey.TIMESTAMP), int(HeaderKey.SCHEMA_VERSION), int(HeaderKey.TSN)
_K_FLAGS = int(HeaderKey.FLAGS)
_KEYS = 10
_HAS_TSN = 10
_NOP, _FIRST_RAFT = int(RequestType.NOP), int(RequestType.RAFT_PROMOTE)
_INSERT, _LAST_RAFT, _LAST_DML = int(RequestType.INSERT), int(RequestType.RAFT_ROLLBACK), 17
_SELECT = int(RequestType.SELECT)
_REPLICAS = int(VCLOCK_MAX)
_PACKET_LIMIT = 1 << 30
_HEARTBEAT = 0


@njit(cache=True, nogil=True)
def _frame(data: Int, p: Int, end: Int) -> tuple[Int, Int]:
    """Return (begin, end) of the packet at `p`; (-1, bytes it needs) where it is not whole, (-2, 0) if none is."""
    if p >= end:
        return -1, 1
    head = byte_at(data, p)
    size = 0 if head < 0x80 else 1 << (head - 0xCC)
    if head >= 0x80 and not 0xCC <= head <= 0xCF:
        return -2, 0
    begin = p + 1 + size
    if begin > end:
        return -1, 1 + size
    length = head if size == 0 else big_endian(data, p + 1, size)
    if not 0 < length <= _PACKET_LIMIT:
        return -2, 0
    if begin + length > end:
        return -1, begin - p + length
    return begin, begin + length


@njit(cache=True, nogil=True)
def _header(data: Int, begin: Int, end: Int, values: Ints, out: Int, to: Int) -> tuple[Int, Int]:
    """Store the header's numbers by key, whether it has a TSN, and copy what the log keeps of it to `out + to`.

    Returns (position of the body, end in `out`), or (-1, 0). The first byte is `to`: the map's head.
    """
    pairs, p = load_map(data, begin, end)
    if p < 0 or pairs > _KEYS + 5:
        return -1, 0
    values[:] = 0
    kept, w = 0, to + 1
    for _ in range(pairs):
        start = p
        key, p = load_uint(data, p, end)
        if p < 0:
            return -1, 0
        if key == _K_TIME:
            if p + 9 > end or byte_at(data, p) != DOUBLE:
                return -1, 0
            values[_K_TIME] = big_endian(data, p + 1, 8)
            p += 9
        elif 0 <= key < _KEYS:
            value, p = load_uint(data, p, end)
            if p < 0:
                return -1, 0
            values[key] = value
            if key == _K_TSN:
                values[_HAS_TSN] = 1
        else:
            p = skip(data, p, end)
            if p < 0:
                return -1, 0
        if key not in (_K_SYNC, _K_SCHEMA):
            copy_bytes(out + w, data + start, p - start)
            w += p - start
            kept += 1
    if kept > 15:
        return -1, 0
    _put_byte(out, to, 0x80 | kept)
    return p, w


@njit(cache=True, nogil=True)
def _put_byte(data: Int, at: Int, value: Int) -> None:
    # There is always room for a word here: HEAD_ROOM.
    rest = np.int64(word_at(data, at) >> np.uint64(8))
    put_word(data, at, rest << 8 | value)


@njit(cache=True, nogil=True)
def _is_row(kind: Int) -> bool:
    return bool(_SELECT < kind <= _LAST_DML or _FIRST_RAFT <= kind <= _LAST_RAFT)


@njit(cache=True, nogil=True)
def _admit(values: Ints, vclock: Ints, state: Ints) -> int:
    """Check the row's place in its transaction and in its origin's log; return 0 or a damage."""
    replica, lsn = values[_K_REPLICA], values[_K_LSN]
    if not 0 < replica < _REPLICAS or lsn <= 0:
        return BAD_ID
    tsn = lsn - values[_K_TSN]
    state[ROW_LSN] = lsn
    if state[REPLICA] == 0:
        state[REPLICA], state[TSN], state[NEXT] = replica, tsn, lsn
        state[SKIPPING] = 1 if lsn <= vclock[replica] else 0
        if tsn != lsn:
            return CUT
        if state[SKIPPING] == 0 and lsn != vclock[replica] + 1:
            return GAP
    elif replica != state[REPLICA] or tsn != state[TSN]:
        return CUT
    if lsn != state[NEXT]:
        return GAP
    state[NEXT] = lsn + 1
    return 0


@njit(cache=True, nogil=True)
def walk_stream(
    buffer: Bytes,
    end: Int,
    vclock: Ints,
    counts: Ints,
    state: Ints,
    out: Bytes,
    marks: Ints,
    times: npt.NDArray[np.float64],
) -> Int:
    """Copy the rows of SUBSCRIBE up to the end of the last whole packet.

    Parameters
    ----------
    buffer : uint8[]
        Bytes from the wire, from `state[AT]` on; no byte from `end` on is read.
    vclock : int64[32]
        What is had; goes on with each whole transaction.
    counts : int64[32]
        Rows let through, by replica id; counted up.
    state : int64[STATE_SIZE]
        Of the walk; all zeros at its beginning.
    out : uint8[]
        Gets the rows; what is of whole transactions ends at `state[COMMITTED]`.
    marks : int64[3, n]
        Gets of each whole transaction its end in `out`, its replica id, the lsn of its last row.
    times : float64[n]
        Gets the time of its last row, seconds since 1970 UTC, as the server stamped it.

    Returns
    -------
    int
        `MORE`, `FULL`, `PACKET`, or damage.

    """
    data, to = address_of(buffer), address_of(out)
    values = np.zeros(_KEYS + 1, np.int64)
    while True:
        begin, stop = _frame(data, state[AT], end)
        if begin < 0:
            state[NEED] = stop
            return MORE if begin == -1 else BAD_LENGTH
        if state[COUNT] == times.size or state[OUT] + stop - begin + HEAD_ROOM > out.size:
            state[NEED] = state[OUT] + stop - begin + HEAD_ROOM
            return FULL
        body, w = _header(data, begin, stop, values, to, state[OUT])
        if body < 0:
            return BAD_HEADER
        kind = values[_K_TYPE]
        if kind == _HEARTBEAT:
            state[HEARTBEATS] += 1
            state[AT] = stop
            continue
        if not _is_row(kind):
            return PACKET
        status = np.int64(_admit(values, vclock, state))
        if status < 0:
            return status
        if state[SKIPPING]:
            state[REPEATED] += 1
        else:
            copy_bytes(to + w, data + body, stop - body)
            state[OUT] = w + stop - body
        if values[_HAS_TSN] == 0 or values[_K_FLAGS] & 1:
            status = np.int64(_commit(values, vclock, counts, state, marks, times))
            if status < 0:
                return status
        state[AT] = stop


@njit(cache=True, nogil=True)
def _commit(
    values: Ints, vclock: Ints, counts: Ints, state: Ints, marks: Ints, times: npt.NDArray[np.float64]
) -> int:
    replica, lsn = state[REPLICA], values[_K_LSN]
    if state[SKIPPING]:
        # The vclock ends inside this transaction: whoever wrote it had cut it.
        if lsn > vclock[replica]:
            return CUT
    else:
        vclock[replica] = lsn
        counts[replica] += lsn - state[TSN] + 1
        marks[0, state[COUNT]] = state[OUT]
        marks[1, state[COUNT]] = replica
        marks[2, state[COUNT]] = lsn
        times[state[COUNT]] = double_of(values[_K_TIME])
        state[COUNT] += 1
        state[COMMITTED] = state[OUT]
    state[REPLICA] = 0
    return 0


@njit(cache=True, nogil=True)
def walk_snapshot(buffer: Bytes, end: Int, time: float, state: Ints, out: Bytes) -> Int:
    """Copy the rows of FETCH_SNAPSHOT up to the end of the last whole packet, each with the next number as lsn.

    Parameters
    ----------
    buffer, end, out
        As of `walk_stream`.
    time : float
        Seconds since 1970 UTC, for every row.
    state : int64[STATE_SIZE]
        AT, OUT, COMMITTED (the same as OUT), NEED, and NEXT: the number of the next row.

    Returns
    -------
    int
        `MORE`, `FULL`, `PACKET`, or damage.

    """
    data, to = address_of(buffer), address_of(out)
    values = np.zeros(_KEYS + 1, np.int64)
    bits = np.empty(1, np.float64)
    bits[0] = time
    stamp = bits.view(np.int64)[0]
    while True:
        begin, stop = _frame(data, state[AT], end)
        if begin < 0:
            state[NEED] = stop
            return MORE if begin == -1 else BAD_LENGTH
        if state[OUT] + stop - begin + HEAD_ROOM > out.size:
            state[NEED] = state[OUT] + stop - begin + HEAD_ROOM
            return FULL
        body, _ = _header(data, begin, stop, values, to, state[OUT])
        if body < 0:
            return BAD_HEADER
        if values[_K_TYPE] != _INSERT:
            return PACKET if not _is_row(values[_K_TYPE]) else BAD_ROW
        w = _numbered(to, state[OUT], state[NEXT], stamp)
        copy_bytes(to + w, data + body, stop - body)
        state[OUT] = w + stop - body
        state[COMMITTED] = state[OUT]
        state[NEXT] += 1
        state[AT] = stop


@njit(cache=True, nogil=True)
def _numbered(out: Int, w: Int, lsn: Int, stamp: Int) -> Int:
    """Write the header of a snapshot's row; return its end. The first row, 0, has no lsn."""
    _put_byte(out, w, 0x82 if lsn == 0 else 0x83)
    _put_byte(out, w + 1, _K_TYPE)
    _put_byte(out, w + 2, _INSERT)
    w += 3
    if lsn > 0:
        _put_byte(out, w, _K_LSN)
        _put_byte(out, w + 1, 0xCF)
        put_word(out, w + 2, swap_bytes(np.uint64(lsn)))
        w += 10
    _put_byte(out, w, _K_TIME)
    _put_byte(out, w + 1, DOUBLE)
    put_word(out, w + 2, swap_bytes(np.uint64(stamp)))
    return w + 10
