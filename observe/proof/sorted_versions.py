"""A replicaset's own versions in primary key order, to compare with pages of a server.

A page is a range of keys. Two numbers show whether a whole range is equal: its row count and the sum of its hashes; if
they differ, the page's tuples give the differing keys. No I/O. In memory, a version takes twice its key and 16 bytes.
`observe.proof.epoch_tables` reads the versions, `sources.iproto.space_pages` the server's pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.errors import TupleError
from schemas.space import Space
from udfs.buffers import flatten
from udfs.kernels.values import OVERREAD
from udfs.keys.key_order import KeyOrder, directions_of, key_order, ordered_keys
from udfs.keys.keys import KeyPlan, canonical_keys_by, key_plan
from udfs.keys.row_hash import SEED, hash_bytes_column

_MODULUS = 1 << 64

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


@dataclass(frozen=True)
class SpaceKeys:
    """Makes and orders the keys of one space; made by `keys_of_space`."""

    plan: KeyPlan
    order: KeyOrder

    def of_tuples(self, tuples: pa.Array) -> pa.Array:
        """Return the canonical key of each tuple.

        Raises
        ------
        TupleError
            A tuple has no key.

        """
        found = canonical_keys_by(tuples, self.plan)
        keys, errors = found.field(0), found.field(1)
        if keys.null_count:
            raise TupleError(f"a tuple has no key: {errors.drop_null()[0].as_py()}")
        return keys

    def ordered(self, keys: pa.Array) -> pa.Array:
        """Return sortable bytes for canonical keys, in the order of the space's index."""
        return ordered_keys(keys, self.order, np.zeros(len(keys), np.int32))

    def bound(self, key: bytes) -> bytes:
        """Return the sortable bytes of one key."""
        found: bytes = self.ordered(pa.array([key], pa.binary()))[0].as_py()
        return found


def keys_of_space(space: Space) -> SpaceKeys:
    """Return how to make and order the keys of a space."""
    return SpaceKeys(key_plan([space]), key_order([directions_of(space)]))


@dataclass(frozen=True)
class Page:
    """Some tuples of a server, in key order.

    Parameters
    ----------
    keys : pyarrow.BinaryArray
        Canonical keys.
    hashes : uint64[n]
        Hashes of the tuples.

    """

    keys: pa.Array
    hashes: UInt64s


def page_of(tuples: Iterable[bytes], keys: SpaceKeys) -> Page:
    """Return a page of a server's tuples."""
    found = pa.array(tuples, pa.binary())
    return Page(keys.of_tuples(found), tuple_hashes(found).view(np.uint64))


@dataclass(frozen=True)
class SortedVersions:
    """Versions in index order; made by `sorted_versions`.

    Parameters
    ----------
    keys : pyarrow.LargeBinaryArray
        Canonical keys.
    bounds : pyarrow.LargeBinaryArray
        Their sortable bytes (`SpaceKeys.ordered`).
    hashes : uint64[n]
        Hashes of the tuples.
    sums : uint64[n + 1]
        Sums of the hashes before each version, modulo 2^64.

    """

    keys: pa.Array
    bounds: pa.Array
    hashes: UInt64s
    sums: UInt64s = field(repr=False)

    def __len__(self) -> int:
        return len(self.hashes)

    def range_of(self, after: bytes | None, last: bytes | None) -> tuple[int, int]:
        """Return the index range (begin, end) of the versions after one bound and up to another one, inclusive.

        Parameters
        ----------
        after : bytes or None
            None: from the first version.
        last : bytes or None
            None: up to the last version.

        """
        begin = 0 if after is None else self._behind(after)
        return begin, max(begin, len(self) if last is None else self._behind(last))

    def is_equal(self, begin: int, end: int, rows: int, checksum: int) -> bool:
        """Return whether a range has this row count and this sum of hashes."""
        total = (int(self.sums[end]) - int(self.sums[begin])) % _MODULUS
        return end - begin == rows and total == checksum

    def differing(self, begin: int, end: int, page: Page) -> list[bytes]:
        """Return the keys that are only in the range or only in the page, or have different hashes."""
        here = dict(zip(self.keys[begin:end].to_pylist(), self.hashes[begin:end].tolist(), strict=True))
        there = dict(zip(page.keys.to_pylist(), page.hashes.tolist(), strict=True))
        return [key for key in {**here, **there} if here.get(key) != there.get(key)]

    def _behind(self, bound: bytes) -> int:
        """Return the number of versions up to a bound, inclusive."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.bounds[middle].as_py() <= bound:
                low = middle + 1
            else:
                high = middle
        return low


def sorted_versions(batches: Iterable[tuple[pa.Array, pa.Array]], keys: SpaceKeys) -> SortedVersions:
    """Return versions in index order.

    Parameters
    ----------
    batches : iterable of (pyarrow.BinaryArray, pyarrow.BinaryArray)
        Canonical keys and tuples, in any order.
    keys : SpaceKeys
        The space's.

    """
    canonical, bounds, hashes = [], [], [np.empty(0, np.int64)]
    for some, tuples in batches:
        canonical.append(some.cast(pa.large_binary()))
        bounds.append(keys.ordered(some).cast(pa.large_binary()))
        hashes.append(tuple_hashes(tuples))
    joined = pa.chunked_array(bounds, pa.large_binary()).combine_chunks()
    order = pc.sort_indices(joined)
    sorted_hashes = np.concatenate(hashes).view(np.uint64)[order.to_numpy()]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(sorted_hashes, dtype=np.uint64)])
    whole = pa.chunked_array(canonical, pa.large_binary()).combine_chunks()
    return SortedVersions(whole.take(order), joined.take(order), sorted_hashes, sums)


def tuple_hashes(tuples: pa.Array) -> Int64s:
    """Return XXH64 of each tuple, as the server computes it (`sources.iproto.space_pages`).

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        MessagePack, without nulls.

    """
    hashes: Int64s = np.full(len(tuples), SEED, np.int64)
    flat = flatten(tuples, OVERREAD)
    hash_bytes_column(flat.data, flat.offsets, flat.nulls, hashes)
    return hashes
