"""Finds the rows of a file that have some keys. Only row groups whose range of keys may contain one are read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from udfs.buffers import as_array
from udfs.keys.grouping import Groups, group
from warehouse.data_files import FileKeys, keys_of, read_groups

MAX_SORTED_KEYS = 200_000
"""Up to this many keys are sorted to find the row groups that may contain one. Of more keys, only the range is used."""


@dataclass
class KeyRangeCache:
    """Caches the key ranges of files' row groups in a process, by table and path. Data files never change."""

    ranges_by_file: dict[tuple[str, str], FileKeys] = field(default_factory=dict)

    def key_ranges(self, file: pq.ParquetFile, table: str, path: str, column: str) -> FileKeys:
        """Return the key ranges of an open file's row groups."""
        name = (table, path)
        if name not in self.ranges_by_file:
            self.ranges_by_file[name] = keys_of(file, column)
        return self.ranges_by_file[name]


@dataclass(frozen=True)
class LookupKeys:
    """The keys of a lookup. `bounds` has all keys in order if `is_sorted`, else only the least and the greatest key."""

    groups: Groups
    bounds: Sequence[bytes]
    is_sorted: bool

    @classmethod
    def of(cls, keys: pa.Array) -> LookupKeys:
        """Prepare keys for a lookup."""
        groups = group(np.zeros(len(keys), np.int32), keys)
        distinct = keys.take(pa.array(groups.first_rows))
        if len(distinct) <= MAX_SORTED_KEYS:
            return cls(groups, sorted(distinct.to_pylist()), True)
        ends = pc.min_max(distinct)
        return cls(groups, [ends["min"].as_py(), ends["max"].as_py()], False)

    def may_be_between(self, least: bytes | None, greatest: bytes | None) -> bool:
        """Return whether any of the keys may be from `least` to `greatest`; None is an unknown bound."""
        if least is None or greatest is None:
            return True
        if not self.bounds:
            return False
        if not self.is_sorted:
            return self.bounds[0] <= greatest and least <= self.bounds[-1]
        index = bisect_left(self.bounds, least)
        return index < len(self.bounds) and self.bounds[index] <= greatest

    def find_numbers(self, keys: pa.Array) -> NDArray[np.int32]:
        """Return for each key its number among the keys of the lookup, -1 if it is not one of them."""
        return self.groups.find(np.zeros(len(keys), np.int32), keys)


def row_groups_with_keys(
    wanted: LookupKeys, file: pq.ParquetFile, keys: FileKeys, column: str
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Yield (number, index of its first row in the file, indices in it of the rows with the keys) of each row group."""
    start = 0
    for number, rows in enumerate(keys.rows):
        if wanted.may_be_between(keys.least[number], keys.greatest[number]):
            found = wanted.find_numbers(as_array(read_groups(file, [number], [column])[column]))
            matches = np.flatnonzero(found >= 0)
            if len(matches):
                yield number, start, matches
        start += rows
