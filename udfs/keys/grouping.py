"""Groups rows by (partition, key), and looks rows up in the groups, without a Python object per row.

A partition is a number besides the key: a table, or a space of a replicaset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.buffers import Flat, flatten
from udfs.kernels.values import OVERREAD
from udfs.keys.kernels.grouping import find_rows, group_rows
from udfs.seeds import hash_seeds

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class Groups:
    """The groups of some rows.

    Parameters
    ----------
    ids : int32[rows]
        Number of each row's group, in the order of their first rows; -1 for a row without a key.
    firsts : int32[groups]
        First row of each group.

    """

    ids: Int32s
    firsts: Int32s
    _partitions: Int32s
    _keys: Flat
    _table: Int32s
    _marks: Int32s

    def __len__(self) -> int:
        return len(self.firsts)

    def find(self, partitions: Int32s, keys: pa.Array) -> Int32s:
        """Return the group of each of some other rows, -1 if no group has its partition and key."""
        flat, ids = flatten(keys, OVERREAD), np.empty(len(keys), np.int32)
        known = self._keys
        find_rows(
            *(partitions, flat.data, flat.offsets, flat.nulls),
            *(self._partitions, known.data, known.offsets, self._table, self._marks, self.firsts, ids),
            hash_seeds(),
        )
        return ids


def group(partitions: Int32s, keys: pa.Array) -> Groups:
    """Group rows by partition and key.

    Parameters
    ----------
    partitions : int32[rows]
    keys : pyarrow.BinaryArray
        A row with a null key is in no group.

    """
    rows, flat = len(keys), flatten(keys, OVERREAD)
    size = 1 << max(3, (2 * rows - 1).bit_length())
    table, marks = np.full(size, -1, np.int32), np.empty(rows, np.int32)
    firsts, ids = np.empty(rows, np.int32), np.empty(rows, np.int32)
    partitions = np.ascontiguousarray(partitions, np.int32)
    count = group_rows(
        partitions, flat.data, flat.offsets, flat.nulls, table, marks, firsts, ids, hash_seeds()
    )
    return Groups(ids, firsts[:count], partitions, flat, table, marks[:count])
