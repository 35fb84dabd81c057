"""Hashes a row of the log to one number, which is equal for the same row in the logs of all instances of a replicaset.

The number equals Spark's `xxhash64(type, space_id, index_base, key, tuple, operations, body)`, so hashes
that older releases computed with Spark stay comparable. Timestamps are left out, because each instance writes its own.
The body of a row with operations is left out, too: only instances that log old and new tuples (`wal_ext`) write it.

The hash is XXH64 over the bytes of each column in turn, the hash of one column being the seed of the next; a null
changes nothing, the first seed is 42 (`XxHash64` in Spark's `hash.scala`, `XXH64.java`). 64-bit integers wrap around;
patterns above 2^63 - 1 are negative here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.compiled import entry, inlined, inner
from udfs.buffers import flatten, null_mask
from udfs.kernels.memory import address, load8, load32, load64
from udfs.kernels.values import OVERREAD_BYTES, Int

FIRST_SEED = 42

# The primes of XXH64.
_PRIME_1 = np.int64(-7046029288634856825)
_PRIME_2 = np.int64(-4417276706812531889)
_PRIME_3 = np.int64(1609587929392839161)
_PRIME_4 = np.int64(-8796714831421723037)
_PRIME_5 = np.int64(2870177450012600261)


@inlined
def _rotate_left(value: Int, bits: Int) -> Int:
    return (value << bits) | ((value >> (64 - bits)) & ((np.int64(1) << bits) - 1))


@inlined
def _shift_right(value: Int, bits: Int) -> Int:
    """Shift an int64 right as if it was unsigned, so that zeros come in."""
    return (value >> bits) & ((np.int64(1) << (64 - bits)) - 1)


@inlined
def _final_mix(value: Int) -> Int:
    value = (value ^ _shift_right(value, 33)) * _PRIME_2
    value = (value ^ _shift_right(value, 29)) * _PRIME_3
    return value ^ _shift_right(value, 32)


@inlined
def _hash_round(value: Int, word: Int) -> Int:
    return _rotate_left(value + word * _PRIME_2, 31) * _PRIME_1


@inlined
def hash_int(value: Int, seed: Int) -> Int:
    """Return the hash of a 32-bit integer."""
    result = (seed + _PRIME_5 + 4) ^ ((value & 0xFFFFFFFF) * _PRIME_1)
    return _final_mix(_rotate_left(result, 23) * _PRIME_2 + _PRIME_3)


@inner
def hash_bytes(begin: Int, end: Int, seed: Int) -> Int:
    """Return the hash of the bytes between two addresses."""
    at = begin
    if end - begin >= 32:
        v1, v2, v3, v4 = seed + _PRIME_1 + _PRIME_2, seed + _PRIME_2, seed + np.int64(0), seed - _PRIME_1
        while at <= end - 32:
            v1, v2 = _hash_round(v1, load64(at)), _hash_round(v2, load64(at + 8))
            v3, v4 = _hash_round(v3, load64(at + 16)), _hash_round(v4, load64(at + 24))
            at += 32
        result = _rotate_left(v1, 1) + _rotate_left(v2, 7) + _rotate_left(v3, 12) + _rotate_left(v4, 18)
        for one in (v1, v2, v3, v4):
            result = (result ^ (_rotate_left(one * _PRIME_2, 31) * _PRIME_1)) * _PRIME_1 + _PRIME_4
    else:
        result = seed + _PRIME_5
    result += end - begin
    while at <= end - 8:
        result = _rotate_left(result ^ _hash_round(np.int64(0), load64(at)), 27) * _PRIME_1 + _PRIME_4
        at += 8
    if at <= end - 4:
        result = _rotate_left(result ^ (load32(at) * _PRIME_1), 23) * _PRIME_2 + _PRIME_3
        at += 4
    while at < end:
        result = _rotate_left(result ^ (load8(at) * _PRIME_5), 11) * _PRIME_1
        at += 1
    return _final_mix(result)


@entry
def hash_int_column(values: Any, nulls: Any, hashes: Any) -> None:
    """Update the hash of each row with an int32 column.

    Args:
        values: int32[n].
        nulls: 1 where the row is null (uint8[n]).
        hashes: Seeds before, hashes after (int64[n]).
    """
    for i in range(hashes.size):
        if nulls[i] == 0:
            hashes[i] = hash_int(np.int64(values[i]), hashes[i])


@entry
def hash_bytes_column(data: Any, offsets: Any, nulls: Any, hashes: Any) -> None:
    """Update `hashes` like `hash_int_column`, with a column of bytes (`udfs.buffers.BinaryBuffers`)."""
    base = address(data)
    for i in range(hashes.size):
        if nulls[i] == 0:
            hashes[i] = hash_bytes(base + offsets[i], base + offsets[i + 1], hashes[i])


HASHED_COLUMNS = ("type", "space_id", "index_base", "key", "tuple", "operations", "body")
"""The columns that are hashed, in this order."""


def row_hashes(rows: pa.RecordBatch) -> pa.Array:
    """Return the hash of each row.

    Args:
        rows: It has the columns `HASHED_COLUMNS`, as in `schemas.xrow`.
    """
    hashes: NDArray[np.int64] = np.full(rows.num_rows, FIRST_SEED, np.int64)
    for name in HASHED_COLUMNS:
        column = rows.column(name) if name != "body" else _hashed_bodies(rows)
        if column.null_count == len(column):
            continue
        if pa.types.is_integer(column.type):
            values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
            hash_int_column(values, null_mask(column), hashes)
        else:
            flat = flatten(column, OVERREAD_BYTES)
            hash_bytes_column(flat.data, flat.offsets, flat.nulls, hashes)
    return pa.array(hashes)


def _hashed_bodies(rows: pa.RecordBatch) -> pa.Array:
    """Return the bodies without those of rows with operations."""
    bodies, operations = rows.column("body"), rows.column("operations")
    if len(bodies) in (bodies.null_count, operations.null_count):
        return bodies
    return pc.if_else(pc.is_null(operations), bodies, pa.scalar(None, bodies.type))
