"""Rows from the log to the wire: a numba kernel that selects the wanted rows and frames them.

    log    header, body
    wire   ce and 4 bytes of length, header with SYNC, body

A body is copied unchanged. The kernel reads nothing outside of `buffer[begin:end]`, whatever its bytes are. `rows` does
the opposite; `sources.relay` decides which rows are wanted.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import kernel
from schemas.iproto import VCLOCK_MAX, HeaderKey, RequestType
from sources.iproto.kernels.wire import (
    AS_NOP,
    AT,
    BAD_HEADER,
    FULL,
    HEAD_ROOM,
    K_LSN,
    K_REPLICA,
    K_TYPE,
    KEYS,
    LEFT_OUT,
    MORE,
    NEED,
    OUT,
    REACHED,
    REPEATED,
    SENT,
    header,
    passes_whitelist,
    put_byte,
    put_nop,
    space_of,
)
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.kernels.native import address_of, byte_at, copy_bytes
from sources.xlog.format.kernels.skip import skip

PREFIX = 5
_SYNC, _NOP = int(HeaderKey.SYNC), int(RequestType.NOP)
_REPLICAS = int(VCLOCK_MAX)


@kernel
def frame_rows(
    buffer: Bytes,
    end: Int,
    sync: Int,
    vclock: Ints,
    wanted: Ints,
    until: Ints,
    snapshot: bool,
    state: Ints,
    out: Bytes,
) -> Int:
    """Frame rows of one block.

    Parameters
    ----------
    buffer : uint8[]
        Rows, starting at `state[AT]`; no byte from `end` on is read.
    sync : int
        The request's, below 2^32.
    vclock : int64[32]
        Rows at or below it are left out; advanced by each row, including rows of unwanted ids.
    wanted : int64[32]
        By id `LEFT_OUT`, `SENT` or `AS_NOP`.
    until : int64[2]
        Replica id and lsn of the row after which the kernel stops; zeros: none.
    snapshot : bool
        Whether these are rows of a snapshot: all are wanted, without lsn and time.
    state : int64[STATE_SIZE]
        AT; OUT: bytes in `out`; NEED: the size that `out` must have; REPEATED: rows left out.
    out : uint8[]
        Output for the packets.

    Returns
    -------
    int
        `MORE` at the end of the rows, `FULL`, `REACHED` after the row of `until`, or damage.

    """
    data, to = address_of(buffer), address_of(out)
    values = np.zeros(KEYS + 1, np.int64)
    while state[AT] < end:
        begin = state[AT]
        body = skip(data, begin, end)
        if body < 0:
            return BAD_HEADER
        if state[OUT] + body - begin + PREFIX + HEAD_ROOM > out.size:
            state[NEED] = state[OUT] + body - begin + PREFIX + HEAD_ROOM
            return FULL
        start = state[OUT] + PREFIX
        _, w = header(data, begin, body, values, to, start)
        if w == 0:
            return BAD_HEADER
        stop = body
        if values[K_TYPE] != _NOP and body < end:
            stop = skip(data, body, end)
            if stop < 0:
                return BAD_HEADER
        if state[OUT] + stop - begin + PREFIX + HEAD_ROOM > out.size:
            state[NEED] = state[OUT] + stop - begin + PREFIX + HEAD_ROOM
            return FULL
        state[AT] = stop
        is_last = values[K_REPLICA] == until[0] and values[K_LSN] == until[1] and until[1] > 0
        what = SENT if snapshot else _wanted(values, vclock, wanted)
        if what == LEFT_OUT:
            state[REPEATED] += 1
            if is_last:
                return REACHED
            continue
        if what == AS_NOP and not passes_whitelist(values[K_TYPE], space_of(data, body, stop)):
            w = put_nop(values, to, start)
            body = stop
        if snapshot:
            if values[K_TYPE] > 0x7F:  # no number of one byte, as those of a server's snapshot are
                return BAD_HEADER
            put_byte(to, start, 0x81)
            put_byte(to, start + 1, K_TYPE)
            put_byte(to, start + 2, values[K_TYPE])
            w = start + 3
        put_byte(to, start, byte_at(to, start) + 1)
        put_byte(to, w, _SYNC)
        put_byte(to, w + 1, 0xCE)
        _put_uint32(to, w + 2, sync)
        w += 6
        copy_bytes(to + w, data + body, stop - body)
        put_byte(to, state[OUT], 0xCE)
        _put_uint32(to, state[OUT] + 1, w + stop - body - start)
        state[OUT] = w + stop - body
        if is_last:
            return REACHED
    return MORE


@kernel
def _wanted(values: Ints, vclock: Ints, wanted: Ints) -> Int:
    replica, lsn = values[K_REPLICA], values[K_LSN]
    if not 0 < replica < _REPLICAS or lsn <= vclock[replica]:
        return LEFT_OUT
    vclock[replica] = lsn
    return np.int64(wanted[replica])


@kernel
def _put_uint32(data: Int, at: Int, value: Int) -> None:
    for k in range(4):
        put_byte(data, at + k, (value >> 8 * (3 - k)) & 0xFF)
