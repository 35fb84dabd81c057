"""Groups rows by (partition, key), and looks rows up in the groups, without a Python object per row.

A partition is the number of a table, or of a space of a replicaset. The groups are in an open-addressing hash table
over the bytes of keys. A slot of the table has the number of a group, or -1 if it is free. A group is represented by
its first row; `hash_parts` stores 31 bits of each group's hash, so that unequal keys are rarely compared. At most half
of the slots are used, and their number is a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.compiled import entry
from udfs.buffers import BinaryBuffers, flatten
from udfs.kernels.keyed_hash import hash_seeds, keyed_hash
from udfs.kernels.memory import address, are_bytes_equal
from udfs.kernels.values import OVERREAD_BYTES

NO_GROUP = -1
"""In place of the number of a group."""


@entry
def group_rows(
    partitions: Any,
    data: Any,
    offsets: Any,
    nulls: Any,
    slots: Any,
    hash_parts: Any,
    first_rows: Any,
    group_numbers: Any,
    seeds: Any,
) -> int:
    """Assign each row to a group; return the number of groups.

    Args:
        partitions: Partition of each row (int32[n]).
        data, offsets, nulls: The keys, as in `udfs.buffers.BinaryBuffers`. A null key is in no group.
        slots: Filled with -1 (int32[size]); `size` is a power of two, at least 2 n.
        hash_parts: Room for a part of each group's hash (int32[n]).
        first_rows: Room for the first row of each group (int32[n]).
        group_numbers: Receives the group of each row (int32[n]); -1 without a key.
        seeds: Seeds of the hash (`udfs.kernels.keyed_hash`; int64[SEED_COUNT]).
    """
    base, mask, count, keys = address(data), np.int64(slots.size - 1), 0, address(seeds)
    for row in range(partitions.size):
        if nulls[row] != 0:
            group_numbers[row] = NO_GROUP
            continue
        begin, end, partition = base + offsets[row], base + offsets[row + 1], np.int64(partitions[row])
        hashed = keyed_hash(begin, end - begin, partition, keys)
        # The hash part has the upper bits; the index depends on the lower ones.
        hash_part, index = np.int32(hashed >> 1), hashed & mask
        while True:
            group = slots[index]
            if group < 0:
                slots[index] = group_numbers[row] = count
                first_rows[count], hash_parts[count] = row, hash_part
                count += 1
                break
            if hash_parts[group] == hash_part:
                first = first_rows[group]
                size = np.int64(offsets[first + 1] - offsets[first])
                same = partitions[first] == partition and size == end - begin
                if same and are_bytes_equal(begin, base + offsets[first], size):
                    group_numbers[row] = group
                    break
            index = (index + 1) & mask
    return count


@entry
def find_rows(
    partitions: Any,
    data: Any,
    offsets: Any,
    nulls: Any,
    known_partitions: Any,
    known_data: Any,
    known_offsets: Any,
    slots: Any,
    hash_parts: Any,
    first_rows: Any,
    group_numbers: Any,
    seeds: Any,
) -> None:
    """Find the group of each row among those that `group_rows` has made.

    Args:
        partitions, data, offsets, nulls: Partitions and keys of the rows to look up.
        known_partitions, known_data, known_offsets, slots, hash_parts, first_rows: As passed to `group_rows`.
        group_numbers: Receives the group of each row (int32[n]); -1 if there is none.
        seeds: As passed to `group_rows` (int64[SEED_COUNT]).
    """
    base, known_base, mask = address(data), address(known_data), np.int64(slots.size - 1)
    keys = address(seeds)
    for row in range(partitions.size):
        group_numbers[row] = NO_GROUP
        if nulls[row] != 0:
            continue
        begin, end, partition = base + offsets[row], base + offsets[row + 1], np.int64(partitions[row])
        hashed = keyed_hash(begin, end - begin, partition, keys)
        # The hash part has the upper bits; the index depends on the lower ones.
        hash_part, index = np.int32(hashed >> 1), hashed & mask
        while True:
            group = slots[index]
            if group < 0:
                break
            if hash_parts[group] == hash_part:
                first = first_rows[group]
                size = np.int64(known_offsets[first + 1] - known_offsets[first])
                same = known_partitions[first] == partition and size == end - begin
                if same and are_bytes_equal(begin, known_base + known_offsets[first], size):
                    group_numbers[row] = group
                    break
            index = (index + 1) & mask


Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class Groups:
    """The groups of some rows; the private fields are arguments of `find_rows`."""

    group_numbers: Int32s
    """Number of each row's group (int32[rows]); -1 for a row without a key. Groups are numbered in the order of their
    first rows.
    """
    first_rows: Int32s
    """First row of each group (int32[groups])."""
    _partitions: Int32s
    _keys: BinaryBuffers
    _slots: Int32s
    _hash_parts: Int32s

    def __len__(self) -> int:
        return len(self.first_rows)

    def find(self, partitions: Int32s, keys: pa.Array) -> Int32s:
        """Return the group of each row of other arrays; -1 if no group has its partition and key."""
        flat, group_numbers = flatten(keys, OVERREAD_BYTES), np.empty(len(keys), np.int32)
        known = self._keys
        find_rows(
            *(partitions, flat.data, flat.offsets, flat.nulls),
            *(self._partitions, known.data, known.offsets, self._slots, self._hash_parts, self.first_rows),
            *(group_numbers, hash_seeds()),
        )
        return group_numbers


def group(partitions: Int32s, keys: pa.Array) -> Groups:
    """Group rows by partition and key.

    Args:
        partitions: Partition of each row (int32[rows]).
        keys: A row with a null key is in no group.
    """
    rows, flat = len(keys), flatten(keys, OVERREAD_BYTES)
    size = 1 << max(3, (2 * rows - 1).bit_length())
    slots, hash_parts = np.full(size, -1, np.int32), np.empty(rows, np.int32)
    first_rows, group_numbers = np.empty(rows, np.int32), np.empty(rows, np.int32)
    partitions = np.ascontiguousarray(partitions, np.int32)
    count = group_rows(
        *(partitions, flat.data, flat.offsets, flat.nulls),
        *(slots, hash_parts, first_rows, group_numbers, hash_seeds()),
    )
    return Groups(group_numbers, first_rows[:count], partitions, flat, slots, hash_parts[:count])
