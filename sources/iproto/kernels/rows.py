"""Rows from the wire to the log: numba kernels that check a server's stream and convert each header.

    wire   mp_uint length, header with SYNC, body
    log    header without SYNC and SCHEMA_VERSION, body

`walk_stream` takes SUBSCRIBE's rows: it copies whole transactions above the vclock, and stops if an lsn is missing.
`walk_snapshot` takes FETCH_SNAPSHOT's, which have neither lsn nor time: as Tarantool's own checkpoint it numbers them
from 0 (0 itself is omitted), and gives all the same time (`checkpoint_write_row` in `src/box/memtx_engine.c`).

IPROTO has no checksum, and rows get the log's checksum when they are written: so a packet that is not exactly one row
that a log reader accepts counts as damage (`body_is_whole`, `is_readable`). A body is copied unchanged. The kernels
read nothing outside of `buffer[begin:end]`, whatever its bytes are. They stop at answers and errors, and do no I/O.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schemas.compiled import kernel
from schemas.iproto import VCLOCK_MAX, RequestType, SystemSpace
from sources.iproto.kernels.wire import (
    AS_NOP,
    AT,
    BAD_BODY,
    BAD_HEADER,
    BAD_ID,
    BAD_LENGTH,
    BAD_ROW,
    COMMITTED,
    COUNT,
    CUT,
    FULL,
    GAP,
    HAS_TSN,
    HEAD_ROOM,
    HEARTBEATS,
    K_FLAGS,
    K_LSN,
    K_REPLICA,
    K_TIME,
    K_TSN,
    K_TYPE,
    KEYS,
    MORE,
    NEED,
    NEXT,
    OUT,
    PACKET,
    REACHED,
    REGISTERS,
    REPEATED,
    REPLICA,
    ROW_LSN,
    SKIPPING,
    TSN,
    body_is_whole,
    frame,
    header,
    is_readable,
    is_row,
    is_snapshot_row,
    passes_whitelist,
    put_byte,
    put_nop,
    space_of,
)
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.kernels.native import address_of, copy_bytes, double_of, put_word, swap_bytes
from sources.xlog.format.kernels.skip import DOUBLE


@kernel
def walk_snapshot(buffer: Bytes, end: Int, time: float, state: Ints, out: Bytes) -> Int:
    """Copy the rows of FETCH_SNAPSHOT up to the end of the last complete packet, with consecutive lsns.

    Parameters
    ----------
    buffer, end, out
        See `walk_stream`.
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
    values = np.zeros(KEYS + 1, np.int64)
    bits = np.empty(1, np.float64)
    bits[0] = time
    stamp = bits.view(np.int64)[0]
    while True:
        begin, stop = frame(data, state[AT], end)
        if begin < 0:
            state[NEED] = stop
            return MORE if begin == -1 else BAD_LENGTH
        if state[OUT] + stop - begin + HEAD_ROOM > out.size:
            state[NEED] = state[OUT] + stop - begin + HEAD_ROOM
            return FULL
        body, _ = header(data, begin, stop, values, to, state[OUT])
        if body < 0:
            return BAD_HEADER
        if not is_snapshot_row(values[K_TYPE]):
            return PACKET if not is_row(values[K_TYPE]) else BAD_ROW
        if not body_is_whole(data, body, stop, values[K_TYPE]):
            return BAD_BODY
        w = _numbered(to, state[OUT], values[K_TYPE], state[NEXT], stamp)
        copy_bytes(to + w, data + body, stop - body)
        state[OUT] = w + stop - body
        state[COMMITTED] = state[OUT]
        state[NEXT] += 1
        state[AT] = stop


@kernel
def _numbered(out: Int, w: Int, kind: Int, lsn: Int, stamp: Int) -> Int:
    """Write the header of a snapshot's row; return its end. The first row, 0, has no lsn."""
    put_byte(out, w, 0x82 if lsn == 0 else 0x83)
    put_byte(out, w + 1, K_TYPE)
    put_byte(out, w + 2, kind)
    w += 3
    if lsn > 0:
        put_byte(out, w, K_LSN)
        put_byte(out, w + 1, 0xCF)
        put_word(out, w + 2, swap_bytes(np.uint64(lsn)))
        w += 10
    put_byte(out, w, K_TIME)
    put_byte(out, w + 1, DOUBLE)
    put_word(out, w + 2, swap_bytes(np.uint64(stamp)))
    return w + 10


REPLICAS = int(VCLOCK_MAX)
NOP, CLUSTER = int(RequestType.NOP), int(SystemSpace.CLUSTER)
HEARTBEAT = 0


@kernel
def _admit(values: Ints, vclock: Ints, state: Ints) -> int:
    """Check the row's position in its transaction and in its origin's log; return 0 or a damage."""
    replica, lsn = values[K_REPLICA], values[K_LSN]
    if not 0 < replica < REPLICAS or lsn <= 0:
        return BAD_ID
    tsn = lsn - values[K_TSN]
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


@kernel
def walk_stream(
    buffer: Bytes,
    end: Int,
    vclock: Ints,
    counts: Ints,
    state: Ints,
    out: Bytes,
    marks: Ints,
    times: npt.NDArray[np.float64],
    wanted: Ints,
) -> Int:
    """Copy the rows of SUBSCRIBE up to the end of the last whole packet.

    Parameters
    ----------
    buffer : uint8[]
        Bytes from the wire, starting at `state[AT]`; no byte from `end` on is read.
    vclock : int64[32]
        Advanced after each complete transaction.
    counts : int64[32]
        Number of copied rows by replica id; increased here.
    state : int64[STATE_SIZE]
        The state of the walk; all zeros at its beginning.
    out : uint8[]
        Output for the rows; complete transactions end at `state[COMMITTED]`.
    marks : int64[3, n]
        Output per complete transaction: its end in `out`, its replica id, the lsn of its last row.
    times : float64[n]
        Output: the time of its last row, seconds since 1970 UTC, by the server's clock.
    wanted : int64[32]
        `SENT` or `AS_NOP` by id: a NOP replaces each row, except rows that pass any whitelist.

    Returns
    -------
    int
        `MORE`, `FULL`, `PACKET`, `REACHED` after a transaction that changes `_cluster` while some id is `AS_NOP` (the
        owners of ids may change there), or damage.

    """
    data, to = address_of(buffer), address_of(out)
    values = np.zeros(KEYS + 1, np.int64)
    is_filtered = wanted.max() == AS_NOP
    while True:
        begin, stop = frame(data, state[AT], end)
        if begin < 0:
            state[NEED] = stop
            return MORE if begin == -1 else BAD_LENGTH
        if state[COUNT] == times.size or state[OUT] + stop - begin + HEAD_ROOM > out.size:
            state[NEED] = state[OUT] + stop - begin + HEAD_ROOM
            return FULL
        body, w = header(data, begin, stop, values, to, state[OUT])
        if body < 0:
            return BAD_HEADER
        kind = values[K_TYPE]
        if kind == HEARTBEAT:
            state[HEARTBEATS] += 1
            state[AT] = stop
            continue
        if not is_row(kind):
            return PACKET
        status = np.int64(_admit(values, vclock, state))
        if status < 0:
            return status
        if not (is_readable(values) and body_is_whole(data, body, stop, kind)):
            return BAD_BODY
        space = np.int64(-1)
        if is_filtered and kind != NOP and not state[SKIPPING]:
            space = np.int64(space_of(data, body, stop))
            if wanted[state[REPLICA]] == AS_NOP and not passes_whitelist(kind, space):
                w = np.int64(put_nop(values, to, state[OUT]))
                body = stop
            elif space == CLUSTER:
                state[REGISTERS] = 1
        if state[SKIPPING]:
            state[REPEATED] += 1
        else:
            copy_bytes(to + w, data + body, stop - body)
            state[OUT] = w + stop - body
        if values[HAS_TSN] == 0 or values[K_FLAGS] & 1:
            status = np.int64(_commit(values, vclock, counts, state, marks, times))
            if status < 0:
                return status
            if state[REGISTERS]:
                state[REGISTERS] = 0
                state[AT] = stop
                return REACHED
        state[AT] = stop


@kernel
def _commit(
    values: Ints, vclock: Ints, counts: Ints, state: Ints, marks: Ints, times: npt.NDArray[np.float64]
) -> int:
    replica, lsn = state[REPLICA], values[K_LSN]
    if state[SKIPPING]:
        # The vclock ends inside this transaction: its writer had truncated it.
        if lsn > vclock[replica]:
            return CUT
    else:
        vclock[replica] = lsn
        counts[replica] += lsn - state[TSN] + 1
        marks[0, state[COUNT]] = state[OUT]
        marks[1, state[COUNT]] = replica
        marks[2, state[COUNT]] = lsn
        times[state[COUNT]] = double_of(values[K_TIME])
        state[COUNT] += 1
        state[COMMITTED] = state[OUT]
    state[REPLICA] = 0
    return 0
