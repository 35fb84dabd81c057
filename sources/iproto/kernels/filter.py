"""Numba kernels that replace rows of unwanted instances by NOPs, in transactions that are encoded as in a log.

`sources.subscribe.whitelist` decides which instances are unwanted. The rows were checked before
(`rows.convert_stream_rows`). The kernels read nothing outside of the rows, whatever their bytes are.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import kernel
from schemas.iproto import RequestType, SystemSpace
from sources.iproto.kernels.wire import (
    BAD_HEADER,
    COUNT,
    END_OF_INPUT,
    HEADER_KEY_COUNT,
    K_TYPE,
    NEEDED_BYTES,
    OUTPUT_FULL,
    ROW_OVERHEAD_BYTES,
    SENT,
    UNKNOWN,
    UNKNOWN_INSTANCE,
    WRITTEN,
    body_space_id,
    copy_header,
    passes_whitelist,
    put_nop_header,
)
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.kernels.native import address_of, copy_bytes
from sources.xlog.format.kernels.skip import load_map_size, load_uint, skip

_NOP, _CLUSTER = int(RequestType.NOP), int(SystemSpace.CLUSTER)


@kernel
def next_registering_transaction(rows: Bytes, ends: Ints, first: Int) -> Int:
    """Return the index of the next transaction with a row of `_cluster`, from index `first` on.

    Transaction i is `rows[ends[i - 1]:ends[i]]`. If no transaction has such a row, the result is the number of
    transactions; for bytes that are not rows it is -1.
    """
    data = address_of(rows)
    for number in range(first, ends.size):
        p = np.int64(ends[number - 1] if number > 0 else 0)
        end = np.int64(ends[number])
        while p < end:
            kind, body = _row_type_and_body(data, p, end)
            if body < 0:
                return -1
            p = body
            if kind != _NOP and body < end:
                p = skip(data, body, end)
                if p < 0:
                    return -1
                if body_space_id(data, body, p) == _CLUSTER:
                    return number
    return np.int64(ends.size)


@kernel
def _row_type_and_body(data: Int, begin: Int, end: Int) -> tuple[Int, Int]:
    """Return (request type, position of the body) of the row at `begin`; the position is -1 for a damaged header."""
    pairs, p = load_map_size(data, begin, end)
    kind = np.int64(0)
    for _ in range(pairs if p >= 0 else 0):
        key, p = load_uint(data, p, end)
        if p < 0:
            return 0, -1
        if key == K_TYPE:
            value, p = load_uint(data, p, end)
            kind = np.int64(value)
        else:
            p = skip(data, p, end)
        if p < 0:
            return 0, -1
    return kind, np.int64(p)


@kernel
def replace_unwanted_rows(
    rows: Bytes,
    ends: Ints,
    replica_ids: Ints,
    stop: Int,
    treatments: Ints,
    state: Ints,
    out: Bytes,
    out_ends: Ints,
) -> Int:
    """Copy transactions, and replace the rows of unwanted instances by NOPs.

    Args:
        rows: The bytes of the transactions; transaction i is `rows[ends[i - 1]:ends[i]]`.
        ends, replica_ids: For each transaction, its end in `rows` and its replica id (int64[n]).
        stop: Index of the transaction before which the kernel ends.
        treatments: For each replica id, what happens to its rows: `SENT`, `AS_NOP` or `UNKNOWN` (`kernels.wire`;
            int64[32]).
        state: COUNT: index of the next transaction (int64[STATE_SIZE]); WRITTEN: bytes in `out`; NEEDED_BYTES: the size
            that `out` must have.
        out: Output: the copied and replaced rows.
        out_ends: Output: the end of each transaction in `out` (int64[n]).

    Returns:
        `END_OF_INPUT`, `OUTPUT_FULL`, `UNKNOWN_INSTANCE` before transaction `state[COUNT]`, or a kind of damage.
    """
    data, to = address_of(rows), address_of(out)
    values = np.zeros(HEADER_KEY_COUNT + 1, np.int64)
    while state[COUNT] < stop:
        number = state[COUNT]
        p = np.int64(ends[number - 1] if number > 0 else 0)
        end = np.int64(ends[number])
        treatment = treatments[replica_ids[number]]
        w = np.int64(state[WRITTEN])
        if w + end - p + ROW_OVERHEAD_BYTES > out.size:
            state[NEEDED_BYTES] = w + end - p + ROW_OVERHEAD_BYTES
            return OUTPUT_FULL
        if treatment == SENT:
            copy_bytes(to + w, data + p, end - p)
            w += end - p
            p = end
        while p < end:
            # A NOP may be longer than the row that it replaces.
            if w + end - p + ROW_OVERHEAD_BYTES > out.size:
                state[NEEDED_BYTES] = w + end - p + ROW_OVERHEAD_BYTES
                return OUTPUT_FULL
            body, copied = copy_header(data, p, end, values, to, w)
            if body < 0:
                return BAD_HEADER
            row_end = np.int64(body)
            if values[K_TYPE] != _NOP and body < end:
                row_end = np.int64(skip(data, body, end))
                if row_end < 0:
                    return BAD_HEADER
            if values[K_TYPE] == _NOP or passes_whitelist(values[K_TYPE], body_space_id(data, body, row_end)):
                copy_bytes(to + copied, data + body, row_end - body)
                w = np.int64(copied + row_end - body)
            elif treatment == UNKNOWN:
                return UNKNOWN_INSTANCE
            else:
                w = np.int64(put_nop_header(values, to, w))
            p = row_end
        out_ends[number] = w
        state[WRITTEN] = w
        state[COUNT] = number + 1
    return END_OF_INPUT
