"""Numba kernels that check the rows of a server's stream and convert them to rows of a log.

    packet  mp_uint length, header with SYNC, body
    log     header without SYNC and SCHEMA_VERSION, body

`convert_stream_rows` converts the rows of SUBSCRIBE: it copies complete transactions above the vclock, and stops if an
lsn is missing. `convert_snapshot_rows` converts the rows of FETCH_SNAPSHOT, which have neither lsn nor timestamp. As a
checkpoint of Tarantool does, it numbers them from lsn 0, which the first header omits, and gives all the same timestamp
(`checkpoint_write_row` in `src/box/memtx_engine.c`).

IPROTO has no checksum, and the log's checksum is computed only when rows are written. So a packet counts as damaged if
it is not exactly one row that a log reader accepts (`is_complete_body`, `is_valid_header`). A body is copied unchanged.
The kernels read nothing outside of the received bytes, whatever these are. They stop at packets that are not rows:
answers and errors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schemas.compiled import kernel
from schemas.iproto import VCLOCK_MAX
from sources.iproto.kernels.wire import (
    BAD_BODY,
    BAD_HEADER,
    BAD_ID,
    BAD_LENGTH,
    BAD_ROW,
    COMMITTED,
    COUNT,
    CUT_TRANSACTION,
    END_OF_INPUT,
    FIRST_LSN,
    HAS_TSN_INDEX,
    HEADER_KEY_COUNT,
    HEARTBEATS,
    K_FLAGS,
    K_LSN,
    K_REPLICA,
    K_TIME,
    K_TSN,
    K_TYPE,
    LSN_GAP,
    NEEDED_BYTES,
    NEXT_LSN,
    OTHER_PACKET,
    OUTPUT_FULL,
    POSITION,
    REPEATED,
    REPLICA,
    ROW_LSN,
    ROW_OVERHEAD_BYTES,
    SKIPPING,
    WRITTEN,
    copy_header,
    is_complete_body,
    is_row,
    is_snapshot_row,
    is_valid_header,
    packet_bounds,
    put_byte,
)
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.kernels.native import address_of, copy_bytes, double_of, put_word, swap_bytes
from sources.xlog.format.kernels.skip import DOUBLE


@kernel
def convert_snapshot_rows(buffer: Bytes, end: Int, time: float, state: Ints, out: Bytes) -> Int:
    """Convert the complete rows of FETCH_SNAPSHOT in a buffer, and number them with consecutive lsns.

    Args:
        buffer, end, out: See `convert_stream_rows`.
        time: The timestamp of all rows, seconds since 1970 UTC.
        state: POSITION, WRITTEN, COMMITTED (equal to WRITTEN), NEEDED_BYTES, and NEXT_LSN: the lsn of the next row
            (int64[STATE_SIZE]).

    Returns:
        `END_OF_INPUT`, `OUTPUT_FULL`, `OTHER_PACKET`, or a kind of damage (`kernels.wire`).
    """
    data, to = address_of(buffer), address_of(out)
    values = np.zeros(HEADER_KEY_COUNT + 1, np.int64)
    bits = np.empty(1, np.float64)
    bits[0] = time
    time_bits = bits.view(np.int64)[0]
    while True:
        begin, stop = packet_bounds(data, state[POSITION], end)
        if begin < 0:
            state[NEEDED_BYTES] = stop
            return END_OF_INPUT if begin == -1 else BAD_LENGTH
        if state[WRITTEN] + stop - begin + ROW_OVERHEAD_BYTES > out.size:
            state[NEEDED_BYTES] = state[WRITTEN] + stop - begin + ROW_OVERHEAD_BYTES
            return OUTPUT_FULL
        body, _ = copy_header(data, begin, stop, values, to, state[WRITTEN])
        if body < 0:
            return BAD_HEADER
        if not is_snapshot_row(values[K_TYPE]):
            return OTHER_PACKET if not is_row(values[K_TYPE]) else BAD_ROW
        if not is_complete_body(data, body, stop, values[K_TYPE]):
            return BAD_BODY
        w = _put_snapshot_header(to, state[WRITTEN], values[K_TYPE], state[NEXT_LSN], time_bits)
        copy_bytes(to + w, data + body, stop - body)
        state[WRITTEN] = w + stop - body
        state[COMMITTED] = state[WRITTEN]
        state[NEXT_LSN] += 1
        state[POSITION] = stop


@kernel
def _put_snapshot_header(out: Int, w: Int, kind: Int, lsn: Int, time_bits: Int) -> Int:
    """Write the header of a snapshot's row and return its end; the header of the first row, number 0, has no lsn.

    `time_bits` has the bits of the timestamp, a double.
    """
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
    put_word(out, w + 2, swap_bytes(np.uint64(time_bits)))
    return w + 10


REPLICA_ID_END = int(VCLOCK_MAX)
HEARTBEAT_TYPE = 0


@kernel
def _check_sequence(values: Ints, vclock: Ints, state: Ints) -> int:
    """Check that a row has the next lsn of its instance and continues its transaction; return 0 or a kind of damage."""
    replica, lsn = values[K_REPLICA], values[K_LSN]
    if not 0 < replica < REPLICA_ID_END or lsn <= 0:
        return BAD_ID
    tsn = lsn - values[K_TSN]
    state[ROW_LSN] = lsn
    if state[REPLICA] == 0:
        state[REPLICA], state[FIRST_LSN], state[NEXT_LSN] = replica, tsn, lsn
        state[SKIPPING] = 1 if lsn <= vclock[replica] else 0
        if tsn != lsn:
            return CUT_TRANSACTION
        if state[SKIPPING] == 0 and lsn != vclock[replica] + 1:
            return LSN_GAP
    elif replica != state[REPLICA] or tsn != state[FIRST_LSN]:
        return CUT_TRANSACTION
    if lsn != state[NEXT_LSN]:
        return LSN_GAP
    state[NEXT_LSN] = lsn + 1
    return 0


@kernel
def convert_stream_rows(
    buffer: Bytes,
    end: Int,
    vclock: Ints,
    counts: Ints,
    state: Ints,
    out: Bytes,
    transactions: Ints,
    times: npt.NDArray[np.float64],
) -> Int:
    """Convert the complete rows of SUBSCRIBE in a buffer.

    Args:
        buffer: Received bytes, from `state[POSITION]` to `end`; no other byte is read.
        vclock: Rows up to it are dropped (int64[32]). The kernel advances it after each complete transaction.
        counts: Number of copied rows by replica id (int64[32]); the kernel adds the rows of this call.
        state: The state between calls, initially zeros (int64[STATE_SIZE]); see `kernels.wire`.
        out: Output for the rows; complete transactions end at `state[COMMITTED]`.
        transactions: Output, one column per complete transaction: its end in `out`, its replica id, and the lsn of its
            last row (int64[3, n]).
        times: Output: for each transaction the timestamp of its last row, seconds since 1970 UTC, by the server's clock
            (float64[n]).

    Returns:
        `END_OF_INPUT`, `OUTPUT_FULL`, `OTHER_PACKET`, or a kind of damage (`kernels.wire`).
    """
    data, to = address_of(buffer), address_of(out)
    values = np.zeros(HEADER_KEY_COUNT + 1, np.int64)
    while True:
        begin, stop = packet_bounds(data, state[POSITION], end)
        if begin < 0:
            state[NEEDED_BYTES] = stop
            return END_OF_INPUT if begin == -1 else BAD_LENGTH
        if state[COUNT] == times.size or state[WRITTEN] + stop - begin + ROW_OVERHEAD_BYTES > out.size:
            state[NEEDED_BYTES] = state[WRITTEN] + stop - begin + ROW_OVERHEAD_BYTES
            return OUTPUT_FULL
        body, w = copy_header(data, begin, stop, values, to, state[WRITTEN])
        if body < 0:
            return BAD_HEADER
        kind = values[K_TYPE]
        if kind == HEARTBEAT_TYPE:
            state[HEARTBEATS] += 1
            state[POSITION] = stop
            continue
        if not is_row(kind):
            return OTHER_PACKET
        status = np.int64(_check_sequence(values, vclock, state))
        if status < 0:
            return status
        if not (is_valid_header(values) and is_complete_body(data, body, stop, kind)):
            return BAD_BODY
        if state[SKIPPING]:
            state[REPEATED] += 1
        else:
            copy_bytes(to + w, data + body, stop - body)
            state[WRITTEN] = w + stop - body
        if values[HAS_TSN_INDEX] == 0 or values[K_FLAGS] & 1:
            status = np.int64(_finish_transaction(values, vclock, counts, state, transactions, times))
            if status < 0:
                return status
        state[POSITION] = stop


@kernel
def _finish_transaction(
    values: Ints, vclock: Ints, counts: Ints, state: Ints, transactions: Ints, times: npt.NDArray[np.float64]
) -> int:
    replica, lsn = state[REPLICA], values[K_LSN]
    if state[SKIPPING]:
        # The requested vclock ends inside this transaction, which its writer had truncated.
        if lsn > vclock[replica]:
            return CUT_TRANSACTION
    else:
        vclock[replica] = lsn
        counts[replica] += lsn - state[FIRST_LSN] + 1
        transactions[0, state[COUNT]] = state[WRITTEN]
        transactions[1, state[COUNT]] = replica
        transactions[2, state[COUNT]] = lsn
        times[state[COUNT]] = double_of(values[K_TIME])
        state[COUNT] += 1
        state[COMMITTED] = state[WRITTEN]
    state[REPLICA] = 0
    return 0
