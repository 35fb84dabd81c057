"""Rows of a snapshot from the wire to the log: numba kernels that number and stamp them.

FETCH_SNAPSHOT's rows have neither lsn nor time; Tarantool's own checkpoint numbers its rows from 0 (0 itself is
omitted), and gives all the same time (`checkpoint_write_row` in `src/box/memtx_engine.c`). Rows of SUBSCRIBE are in
`rows`.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import kernel
from sources.iproto.kernels.wire import (
    AT,
    BAD_BODY,
    BAD_HEADER,
    BAD_LENGTH,
    BAD_ROW,
    COMMITTED,
    FULL,
    HEAD_ROOM,
    K_LSN,
    K_TIME,
    K_TYPE,
    KEYS,
    MORE,
    NEED,
    NEXT,
    OUT,
    PACKET,
    body_is_whole,
    frame,
    header,
    is_row,
    is_snapshot_row,
    put_byte,
)
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.kernels.native import address_of, copy_bytes, put_word, swap_bytes
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
