"""An index of the keys of one data file: finds the rows of some keys without a comparison for each of the file's keys.

The rows are ordered by a hash of their keys. The upper bits of a hash name its bucket, and `starts` says where a bucket
begins, so a lookup reads some words that lie together, and then compares the keys with an equal hash. The hash has
seeds (`udfs.kernels.keyed_hash`), so that no one can choose keys that collide; an index is read with the seeds that
made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.compiled import entry
from udfs.buffers import BinaryBuffers, flatten
from udfs.kernels.keyed_hash import keyed_hash
from udfs.kernels.memory import address, are_bytes_equal
from udfs.kernels.values import OVERREAD_BYTES

ROWS_PER_BUCKET_BITS = 2
"""There are about 2**2 rows in each bucket."""

MAX_BUCKET_BITS = 31

_HASH_BITS = 32


@entry
def hash_keys(data: Any, offsets: Any, seeds: Any, hashes: Any) -> None:
    """Write the hash of each key.

    Args:
        data: uint8[n]: the keys, as in `udfs.buffers.BinaryBuffers`.
        offsets: int32[rows + 1].
        seeds: int64[SEED_COUNT].
        hashes: uint32[rows], receives the hashes.
    """
    base, keys = address(data), address(seeds)
    for row in range(hashes.size):
        begin = base + offsets[row]
        hashes[row] = keyed_hash(begin, np.int64(offsets[row + 1] - offsets[row]), np.int64(0), keys)


@entry
def find_keys(
    wanted_data: Any,
    wanted_offsets: Any,
    wanted_hashes: Any,
    data: Any,
    offsets: Any,
    starts: Any,
    hashes: Any,
    rows: Any,
    bucket_bits: Any,
    found_keys: Any,
    found_rows: Any,
) -> int:
    """Find the rows that have one of the wanted keys; return their number, which may be more than there is room for.

    Args:
        wanted_data: uint8[n]: the wanted keys.
        wanted_offsets: int32[keys + 1].
        wanted_hashes: uint32[keys].
        data: uint8[m]: the keys of the file.
        offsets: int32[rows + 1].
        starts: int32[buckets + 1]: where each bucket begins in `hashes` and `rows`.
        hashes: uint32[rows], ascending.
        rows: int32[rows]: the row of each hash.
        bucket_bits: The number of upper bits of a hash that name its bucket.
        found_keys: int32[room], receives the number of the wanted key of each found row.
        found_rows: int64[room], receives the found rows.
    """
    wanted_base, base = address(wanted_data), address(data)
    shift, count = np.int64(32 - bucket_bits), 0
    for key in range(wanted_hashes.size):
        hashed = wanted_hashes[key]
        bucket = np.int64(hashed) >> shift
        begin = wanted_base + wanted_offsets[key]
        size = np.int64(wanted_offsets[key + 1] - wanted_offsets[key])
        for at in range(starts[bucket], starts[bucket + 1]):
            if hashes[at] != hashed:
                continue
            row = rows[at]
            first = offsets[row]
            if np.int64(offsets[row + 1] - first) == size and are_bytes_equal(begin, base + first, size):
                if count < found_rows.size:
                    found_keys[count], found_rows[count] = key, row
                count += 1
    return count


@dataclass(frozen=True)
class KeyIndex:
    """The index of one file's keys; the arrays may be mapped from a file."""

    starts: NDArray[np.int32]
    """Where each bucket begins, and where the last one ends."""
    hashes: NDArray[np.uint32]
    rows: NDArray[np.int32]

    @property
    def bucket_bits(self) -> int:
        """The number of upper bits of a hash that name its bucket."""
        return (len(self.starts) - 1).bit_length() - 1


@dataclass(frozen=True)
class WantedKeys:
    """Distinct keys that are looked up, with their hashes."""

    buffers: BinaryBuffers
    hashes: NDArray[np.uint32]

    @classmethod
    def of(cls, keys: pa.Array, seeds: NDArray[np.int64]) -> WantedKeys:
        """Return keys with their hashes by some seeds."""
        flat = flatten(keys, OVERREAD_BYTES)
        return cls(flat, hashes_of(flat, seeds))


def hashes_of(keys: BinaryBuffers, seeds: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the hash of each key."""
    hashes = np.empty(len(keys.offsets) - 1, np.uint32)
    hash_keys(keys.data, keys.offsets, seeds, hashes)
    return hashes


def bucket_bits_for(row_count: int) -> int:
    """Return how many bits name a bucket in an index of that many rows."""
    return min(MAX_BUCKET_BITS, max(1, row_count.bit_length() - ROWS_PER_BUCKET_BITS))


def build_index(keys: pa.Array, seeds: NDArray[np.int64]) -> KeyIndex:
    """Return the index of a file's keys, in the order of its rows."""
    hashes = hashes_of(flatten(keys, OVERREAD_BYTES), seeds)
    # The row breaks ties and comes along, so one sort of whole numbers orders both.
    ordered = np.sort(
        hashes.astype(np.uint64) << np.uint64(_HASH_BITS) | np.arange(len(hashes), dtype=np.uint64)
    )
    sorted_hashes = (ordered >> np.uint64(_HASH_BITS)).astype(np.uint32)
    bits = bucket_bits_for(len(hashes))
    per_bucket = np.bincount(
        (sorted_hashes >> np.uint32(_HASH_BITS - bits)).astype(np.int64), minlength=1 << bits
    )
    starts = np.zeros((1 << bits) + 1, np.int32)
    np.cumsum(per_bucket, out=starts[1:])
    return KeyIndex(starts, sorted_hashes, (ordered & np.uint64(0xFFFFFFFF)).astype(np.int32))


def find_in_index(
    index: KeyIndex, keys: BinaryBuffers, wanted: WantedKeys
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return (number of the wanted key, row) of each row of a file that has one of the wanted keys.

    Args:
        index: The index of the file's keys.
        keys: The file's keys.
        wanted: Made with the seeds of the index.
    """
    room = len(wanted.hashes) + 1
    while True:
        found_keys, found_rows = np.empty(room, np.int32), np.empty(room, np.int64)
        count = find_keys(
            wanted.buffers.data,
            wanted.buffers.offsets,
            wanted.hashes,
            keys.data,
            keys.offsets,
            index.starts,
            index.hashes,
            index.rows,
            index.bucket_bits,
            found_keys,
            found_rows,
        )
        if count <= room:
            return found_keys[:count], found_rows[:count]
        room = count
