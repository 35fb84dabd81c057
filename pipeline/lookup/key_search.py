"""Finds the live rows of data files that have some keys: in the file's key copy, or in the file itself.

A copy is made for a file in which lookups read much, or again and again. Without one, only the row groups are read
whose range of keys may contain a wanted key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.lookup.key_copies import CopyFolder, KeyCopies
from pipeline.lookup.key_copy import CopyName, KeyCopy
from udfs.buffers import BinaryBuffers, as_array
from udfs.keys.grouping import Groups, group
from udfs.keys.key_index import WantedKeys
from warehouse.delta.data_files import DataFile
from warehouse.delta.deletion_vectors import is_deleted
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import FileKeys, NumberedRows, OpenFile, TableFile, open_file
from warehouse.delta.vector_files import vector_reader

MAX_SORTED_KEYS = 200_000
"""Up to this many keys are sorted to find the row groups that may contain one. Of more keys, only the range is used."""

COPY_SHARE = 4
"""A copy is made if a lookup would read more than one in this many of a file's row groups."""

REMOVED_SHARE = 4
"""No copy is made if there are more wanted keys than one in this many rows: the batch removes most of the file."""


FEW_ROWS = 16 * 1024
"""A file of fewer rows gets a copy in any case: new files of random changes may have any key between their ends."""


@dataclass(frozen=True)
class CopiedColumns:
    """The columns of a table that its key copies have."""

    key: str
    names: tuple[str, ...]


SPACE_TABLE = CopiedColumns(
    "_key", ("_key", "_replicaset_id", "_timestamp", "_created", "_tuple", "_global_id", "_lsn")
)
MASKED_TABLE = CopiedColumns("_key", ("_key",))
VERSIONS_TABLE = CopiedColumns(
    "key",
    ("space", "key", "replicaset_id", "tuple", "global_id", "lsn", "timestamp", "created", "state", "epoch"),
)


@dataclass(frozen=True)
class LookupKeys:
    """The keys of a lookup. `bounds` has all keys in order if `is_sorted`, else only the least and the greatest key."""

    keys: pa.Array
    """The distinct keys, in order if `is_sorted`."""
    groups: Groups
    bounds: Sequence[bytes]
    is_sorted: bool
    _by_seeds: dict[bytes, WantedKeys] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, keys: pa.Array) -> LookupKeys:
        """Prepare keys for a lookup."""
        groups = group(np.zeros(len(keys), np.int32), keys)
        distinct = keys.take(pa.array(groups.first_rows))
        if len(distinct) <= MAX_SORTED_KEYS:
            ordered = distinct.take(pc.sort_indices(distinct))
            return cls(ordered, groups, ordered.to_pylist(), True)
        ends = pc.min_max(distinct)
        return cls(distinct, groups, [ends["min"].as_py(), ends["max"].as_py()], False)

    def may_be_between(self, least: bytes | None, greatest: bytes | None) -> bool:
        """Return whether any of the keys may be from `least` to `greatest`; None is an unknown bound."""
        return self.count_between(least, greatest) > 0

    def may_be_in(self, ranges: FileKeys) -> bool:
        """Return whether any of the keys may be in a file with these ranges."""
        return any(map(self.may_be_between, ranges.least, ranges.greatest))

    def count_between(self, least: bytes | None, greatest: bytes | None) -> int:
        """Return how many of the keys may be from `least` to `greatest`; None is an unknown bound."""
        begin, end = self.places_between(least, greatest)
        return end - begin

    def places_between(self, least: bytes | None, greatest: bytes | None) -> tuple[int, int]:
        """Return the first and the last place, itself excluded, of the keys that may be from `least` to `greatest`."""
        if least is None or greatest is None or not self.bounds:
            return 0, len(self.keys)
        if not self.is_sorted:
            is_possible = self.bounds[0] <= greatest and least <= self.bounds[-1]
            return 0, len(self.keys) if is_possible else 0
        begin = bisect_left(self.bounds, least)
        return begin, max(begin, bisect_right(self.bounds, greatest))

    def find_numbers(self, keys: pa.Array) -> NDArray[np.int32]:
        """Return for each key its number among the keys of the lookup, -1 if it is not one of them."""
        return self.groups.find(np.zeros(len(keys), np.int32), keys)

    def hashed(self, seeds: NDArray[np.int64], begin: int, end: int) -> WantedKeys:
        """Return the keys from a place to another one, itself excluded, with their hashes by some seeds."""
        name = seeds.tobytes()
        if name not in self._by_seeds:
            self._by_seeds[name] = WantedKeys.of(self.keys, seeds)
        whole = self._by_seeds[name]
        flat = whole.buffers
        part = BinaryBuffers(flat.data, flat.offsets[begin : end + 1], flat.nulls[begin:end])
        return WantedKeys(part, whole.hashes[begin:end])


@dataclass
class KeySearch:
    """Searches data files for keys, and keeps what it has learned of them. Data files never change."""

    copies: KeyCopies = field(default_factory=KeyCopies)
    _ranges_by_file: dict[tuple[str, str], FileKeys] = field(default_factory=dict)
    _missed: set[CopyName] = field(default_factory=set)

    def find(
        self,
        location: WarehouseLocation,
        table: str,
        file: TableFile,
        wanted: LookupKeys,
        columns: Sequence[str],
        copied: CopiedColumns = SPACE_TABLE,
    ) -> Iterator[NumberedRows]:
        """Yield columns of the live rows that have one of the keys, with their physical numbers."""
        if not len(wanted.keys):
            return
        name = CopyName(location.uri(table), file.path, file.size, copied.key, copied.names)
        copy = self.copies.get(name)
        if copy is None:
            ranges = self._ranges_by_file.get((table, file.path))
            if ranges is not None and not wanted.may_be_in(ranges):
                return
            copy = self._made(location, table, file, wanted, name)
        if copy is None:
            with open_file(location, table, file) as opened:
                yield from self._in_row_groups(opened, table, file, wanted, columns, copied.key)
            return
        begin, end = wanted.places_between(copy.least, copy.greatest)
        if begin == end:
            return
        rows = copy.find(wanted.hashed(copy.seeds, begin, end))[1]
        if file.vector is not None:
            deleted = vector_reader(location).bitmap(table, file.path, file.vector)
            rows = rows[~is_deleted(deleted, rows)]
        rows = np.sort(rows)
        if len(rows):
            yield NumberedRows(rows, copy.take(rows, columns))

    def add_copy(
        self,
        location: WarehouseLocation,
        file: DataFile,
        rows: pa.Table,
        copied: CopiedColumns = SPACE_TABLE,
    ) -> None:
        """Make the copy of a file that was just written with these rows."""
        name = CopyName(location.uri(file.table), file.path, file.size, copied.key, copied.names)
        self.copies.add(name, rows)

    def _made(
        self,
        location: WarehouseLocation,
        table: str,
        file: TableFile,
        wanted: LookupKeys,
        name: CopyName,
    ) -> KeyCopy | None:
        with open_file(location, table, TableFile(file.path, file.size, file.num_records)) as opened:
            ranges = self._ranges(opened, table, file.path, name.key)
            counts = [wanted.count_between(*ends) for ends in zip(ranges.least, ranges.greatest, strict=True)]
            touched, row_count = sum(count > 0 for count in counts), sum(ranges.rows)
            self.copies.counts.missed += touched > 0
            if not touched or (sum(counts) * REMOVED_SHARE > row_count > FEW_ROWS):
                return None
            if touched * COPY_SHARE <= len(counts) and name not in self._missed:
                self._missed.add(name)
                return None
            return self.copies.add(name, opened.read(name.columns))

    def _in_row_groups(
        self,
        opened: OpenFile,
        table: str,
        file: TableFile,
        wanted: LookupKeys,
        columns: Sequence[str],
        key: str,
    ) -> Iterator[NumberedRows]:
        ranges = self._ranges(opened, table, file.path, key)
        for number, ends in enumerate(zip(ranges.least, ranges.greatest, strict=True)):
            if wanted.may_be_between(*ends):
                (key_rows,) = opened.read_row_groups([key], [number])
                matches = np.flatnonzero(wanted.find_numbers(as_array(key_rows.rows[key])) >= 0)
                if len(matches):
                    (group_rows,) = opened.read_row_groups(columns, [number])
                    yield NumberedRows(group_rows.numbers[matches], group_rows.rows.take(pa.array(matches)))

    def _ranges(self, opened: OpenFile, table: str, path: str, key: str) -> FileKeys:
        name = (table, path)
        if name not in self._ranges_by_file:
            self._ranges_by_file[name] = opened.key_ranges(key)
        return self._ranges_by_file[name]


@cache
def key_search_in(folder: CopyFolder) -> KeySearch:
    """Return this process's search with the copies of a folder: tasks of one process share what they have learned."""
    return KeySearch(KeyCopies(None if folder.path is None else Path(folder.path), folder.limit_bytes))
