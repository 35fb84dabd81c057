"""A numba kernel that converts rows of a log to packets for a subscriber.

    log     header, body
    packet  byte 0xce and a length of 4 bytes, header with SYNC, body

Rows may be left out or replaced by NOPs. A body is copied unchanged. The kernel reads nothing outside of the given
bytes, whatever they are. `rows` does the opposite conversion; `sources.relay` decides which rows are sent.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import kernel
from schemas.iproto import VCLOCK_MAX, HeaderKey, RequestType
from sources.iproto.kernels.wire import (
    AS_NOP,
    BAD_HEADER,
    END_OF_INPUT,
    HEADER_KEY_COUNT,
    K_LSN,
    K_REPLICA,
    K_TYPE,
    LEFT_OUT,
    NEEDED_BYTES,
    OUTPUT_FULL,
    POSITION,
    REPEATED,
    REPLICA,
    ROW_LSN,
    ROW_OVERHEAD_BYTES,
    SENT,
    STOP_ROW,
    UNKNOWN,
    UNKNOWN_INSTANCE,
    WRITTEN,
    body_space_id,
    copy_header,
    passes_whitelist,
    put_byte,
    put_nop_header,
)
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.kernels.native import address_of, byte_at, copy_bytes
from sources.xlog.format.kernels.skip import skip

LENGTH_BYTES = 5
_SYNC, _NOP = int(HeaderKey.SYNC), int(RequestType.NOP)
_REPLICA_ID_END = int(VCLOCK_MAX)


@kernel
def frame_rows(
    buffer: Bytes,
    end: Int,
    sync: Int,
    vclock: Ints,
    treatments: Ints,
    stop_row: Ints,
    is_snapshot: bool,
    state: Ints,
    out: Bytes,
) -> Int:
    """Convert the rows of one block of a log to packets.

    Args:
        buffer: Rows, from `state[POSITION]` to `end`; no other byte is read.
        sync: IPROTO_SYNC of the subscriber's request, below 2^32.
        vclock: The subscriber's vclock: rows up to it are left out (int64[32]). Each row above it advances it, even a
            row that is not sent.
        treatments: For each replica id, what happens to its rows: `LEFT_OUT`, `SENT`, `AS_NOP` or `UNKNOWN`
            (`kernels.wire`; int64[32]).
        stop_row: Replica id and lsn of the row after which the kernel stops (int64[2]); zeros: the kernel stops after
            no row.
        is_snapshot: Whether the rows are of a snapshot: all are sent, without lsn and timestamp.
        state: POSITION in `buffer` (int64[STATE_SIZE]); WRITTEN: bytes in `out`; NEEDED_BYTES: the size that `out` must
            have; REPEATED: number of rows that are left out; REPLICA, ROW_LSN: of the row before which the kernel
            stopped.
        out: Output for the packets.

    Returns:
        `END_OF_INPUT` at the end of the rows, `OUTPUT_FULL`, `STOP_ROW` after the row that `stop_row` names,
        `UNKNOWN_INSTANCE` before a row with the treatment `UNKNOWN`, or a kind of damage.
    """
    data, to = address_of(buffer), address_of(out)
    values = np.zeros(HEADER_KEY_COUNT + 1, np.int64)
    while state[POSITION] < end:
        begin = state[POSITION]
        body = skip(data, begin, end)
        if body < 0:
            return BAD_HEADER
        if state[WRITTEN] + body - begin + LENGTH_BYTES + ROW_OVERHEAD_BYTES > out.size:
            state[NEEDED_BYTES] = state[WRITTEN] + body - begin + LENGTH_BYTES + ROW_OVERHEAD_BYTES
            return OUTPUT_FULL
        start = state[WRITTEN] + LENGTH_BYTES
        _, w = copy_header(data, begin, body, values, to, start)
        if w == 0:
            return BAD_HEADER
        stop = body
        if values[K_TYPE] != _NOP and body < end:
            stop = skip(data, body, end)
            if stop < 0:
                return BAD_HEADER
        if state[WRITTEN] + stop - begin + LENGTH_BYTES + ROW_OVERHEAD_BYTES > out.size:
            state[NEEDED_BYTES] = state[WRITTEN] + stop - begin + LENGTH_BYTES + ROW_OVERHEAD_BYTES
            return OUTPUT_FULL
        if (
            not is_snapshot
            and _is_treatment_unknown(values, vclock, treatments)
            and not passes_whitelist(values[K_TYPE], body_space_id(data, body, stop))
        ):
            state[REPLICA], state[ROW_LSN] = values[K_REPLICA], values[K_LSN]
            return UNKNOWN_INSTANCE
        state[POSITION] = stop
        is_last = values[K_REPLICA] == stop_row[0] and values[K_LSN] == stop_row[1] and stop_row[1] > 0
        treatment = SENT if is_snapshot else _row_treatment(values, vclock, treatments)
        if treatment == LEFT_OUT:
            state[REPEATED] += 1
            if is_last:
                return STOP_ROW
            continue
        if treatment == AS_NOP and not passes_whitelist(values[K_TYPE], body_space_id(data, body, stop)):
            w = put_nop_header(values, to, start)
            body = stop
        if is_snapshot:
            if values[K_TYPE] > 0x7F:  # the type must be one byte, as in a server's snapshot
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
        put_byte(to, state[WRITTEN], 0xCE)
        _put_uint32(to, state[WRITTEN] + 1, w + stop - body - start)
        state[WRITTEN] = w + stop - body
        if is_last:
            return STOP_ROW
    return END_OF_INPUT


@kernel
def _is_treatment_unknown(values: Ints, vclock: Ints, treatments: Ints) -> bool:
    replica, lsn = values[K_REPLICA], values[K_LSN]
    if values[K_TYPE] == _NOP or not 0 < replica < _REPLICA_ID_END:
        return False
    return bool(lsn > vclock[replica] and treatments[replica] == UNKNOWN)


@kernel
def _row_treatment(values: Ints, vclock: Ints, treatments: Ints) -> Int:
    """Return what happens to the row with this header, and advance the vclock to the row."""
    replica, lsn = values[K_REPLICA], values[K_LSN]
    if not 0 < replica < _REPLICA_ID_END or lsn <= vclock[replica]:
        return LEFT_OUT
    vclock[replica] = lsn
    return np.int64(treatments[replica])


@kernel
def _put_uint32(data: Int, at: Int, value: Int) -> None:
    for k in range(4):
        put_byte(data, at + k, (value >> 8 * (3 - k)) & 0xFF)
