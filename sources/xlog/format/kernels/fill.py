"""Copies the rows of complete blocks into Arrow's buffers: the decoder's main loop, in numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import kernel
from sources.xlog.format.arrays import Blocks, Bytes, Int, Ints
from sources.xlog.format.kernels.chain import BLOCK_BEGIN, BLOCK_END, BLOCK_START
from sources.xlog.format.kernels.native import address_of, copy_bytes
from sources.xlog.format.kernels.row import (
    AT,
    BLOCK,
    COUNT,
    FILLED,
    FULL,
    GROUP_ID,
    INDEX_BASE,
    KEY,
    LSN,
    NUMBER,
    REPLICA_ID,
    ROOM,
    SPACE_ID,
    TIMESTAMP,
    TSN,
    TYPE,
    RowColumns,
    row_end,
    walk_row,
)
from sources.xlog.format.selection import RowFilter, is_selected


@kernel
def _is_wanted(row_filter: RowFilter, numbers: Ints, row_bits: Int) -> bool:
    replica_id = numbers[REPLICA_ID] if (row_bits >> REPLICA_ID) & 1 else 0
    space_id = numbers[SPACE_ID] if (row_bits >> SPACE_ID) & 1 else -1
    has_lsn, has_time = (row_bits >> LSN) & 1, (row_bits >> TIMESTAMP) & 1
    return bool(
        is_selected(
            row_filter,
            numbers[TYPE],
            replica_id,
            numbers[LSN],
            numbers[TIMESTAMP],
            space_id,
            has_lsn,
            has_time,
        )
    )


@kernel
def _store_numbers(
    columns: RowColumns, i: Int, position: Int, row_number: Int, numbers: Ints, row_bits: Int
) -> None:
    columns.int64s[0, i] = position
    columns.int64s[1, i] = numbers[LSN]
    columns.int64s[2, i] = numbers[TSN]
    columns.int64s[3, i] = numbers[TIMESTAMP]
    columns.int32s[0, i] = row_number
    columns.int32s[1, i] = numbers[TYPE]
    columns.int32s[2, i] = numbers[REPLICA_ID]
    columns.int32s[3, i] = numbers[GROUP_ID]
    columns.int32s[4, i] = numbers[SPACE_ID]
    columns.int32s[5, i] = numbers[INDEX_BASE]
    columns.row_bits[i] = row_bits


@kernel
def _needed_binary_bytes(columns: RowColumns, i: Int, field_bounds: Ints, row_bits: Int) -> Int:
    """Return 0 if the row's binary values fit into the buffers, otherwise how many bytes each buffer must have."""
    lacking, size = 0, columns.binary_data.shape[1]
    for c in range(4):
        if (row_bits >> (KEY + c)) & 1:
            used = columns.binary_ends[c, i] + field_bounds[2 * c + 1] - field_bounds[2 * c]
            if used > size:
                lacking = max(lacking, used)
    return lacking


@kernel
def _store_binary_values(columns: RowColumns, i: Int, data: Int, field_bounds: Ints, row_bits: Int) -> None:
    to, size = address_of(columns.binary_data), columns.binary_data.shape[1]
    for c in range(4):
        used = np.int64(columns.binary_ends[c, i])
        if (row_bits >> (KEY + c)) & 1:
            length = field_bounds[2 * c + 1] - field_bounds[2 * c]
            copy_bytes(to + c * size + used, data + field_bounds[2 * c], length)
            used += length
        columns.binary_ends[c, i + 1] = used


@kernel
def walk_rows(
    buffer: Bytes,
    blocks: Blocks,
    block_count: Int,
    file_position: Int,
    row_filter: RowFilter,
    with_binary: bool,
    columns: RowColumns,
    state: Ints,
) -> Int:
    """Fill columns with the rows of blocks, from the position that `state` says.

    Args:
        buffer: The decompressed rows.
        blocks: As `chain.walk_blocks` fills them (int64[4, n]); `BLOCK_BEGIN` and `BLOCK_END` are offsets in `buffer`.
        block_count: Number of blocks to walk.
        file_position: Added to a block's `BLOCK_START`, which gives its position in the file.
        row_filter: Selects the rows that are copied; the others only count for the row numbers.
        with_binary: Whether the binary columns are filled.
        columns: Filled from row `state[COUNT]` on.
        state: The position of the walk, read and updated (int64[5]). `AT` is -1 at the start of a block. After an
            error, `BLOCK`, `AT` and `NUMBER` are those of the bad row.

    Returns:
        `FILLED`: all blocks are done. `FULL`: the columns have no room for the next row; `state[ROOM]` is 0, or how
        many bytes a binary column must have. Otherwise a negative `damage.WalkStatus`.
    """
    numbers, field_bounds = np.zeros(16, np.int64), np.zeros(8, np.int64)
    i, b, p, number, result = state[COUNT], state[BLOCK], state[AT], state[NUMBER], FILLED
    capacity, data = columns.row_bits.size, address_of(buffer)
    while b < block_count and result == FILLED:
        end = blocks[BLOCK_END, b]
        p = blocks[BLOCK_BEGIN, b] if p < 0 else p
        while p < end:
            behind, row_bits = walk_row(data, p, end, numbers, field_bounds)
            if behind < 0:
                result = behind
                break
            if not row_filter.has_conditions or _is_wanted(row_filter, numbers, row_bits):
                lacking = (
                    _needed_binary_bytes(columns, i, field_bounds, row_bits)
                    if with_binary and i < capacity
                    else 0
                )
                if i == capacity or lacking:
                    state[ROOM] = lacking
                    result = FULL
                    break
                _store_numbers(columns, i, file_position + blocks[BLOCK_START, b], number, numbers, row_bits)
                if with_binary:
                    _store_binary_values(columns, i, data, field_bounds, row_bits)
                i += 1
            p = behind
            number += 1
        if result == FILLED:
            b, p, number = b + 1, -1, 0
    state[COUNT], state[BLOCK], state[AT], state[NUMBER] = i, b, p, number
    return result


@kernel
def end_of_row(buffer: Bytes, begin: Int, end: Int) -> Any:
    """Return where the row at `begin` ends in a block that ends at `end`, or a negative number (`row.row_end`)."""
    return row_end(address_of(buffer), begin, end)
