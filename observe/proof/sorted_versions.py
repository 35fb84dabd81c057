"""A replicaset's own versions in the order of their primary key, ready to be compared with pages of a server.

A page is a range of keys. Whether a whole range is equal needs two numbers only, its rows and the sum of their hashes;
where it is not, the keys that differ are found from the page's tuples. Pure. In memory, a version takes its key twice
and 16 bytes. Not here: where versions come from (`observe.proof.epoch_tables`), the server's pages
(`sources.iproto.space_pages`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from observe.proof.hashes import tuple_hashes
from schemas.errors import TupleError
from schemas.space import Space
from udfs.keys.key_order import KeyOrder, directions_of, key_order, ordered_keys
from udfs.keys.keys import KeyPlan, canonical_keys_by, key_plan

_MODULUS = 1 << 64

UInt64s = NDArray[np.uint64]


@dataclass(frozen=True)
class SpaceKeys:
    """How the keys of one space are made and ordered; made by `keys_of_space`."""

    plan: KeyPlan
    order: KeyOrder

    def of_tuples(self, tuples: pa.Array) -> pa.Array:
        """Return the canonical key of each tuple.

        Raises
        ------
        TupleError
            A tuple has none.

        """
        found = canonical_keys_by(tuples, self.plan)
        keys, errors = found.field(0), found.field(1)
        if keys.null_count:
            raise TupleError(f"a tuple has no key: {errors.drop_null()[0].as_py()}")
        return keys

    def ordered(self, keys: pa.Array) -> pa.Array:
        """Return bytes of canonical keys that compare as the space's index compares the keys."""
        return ordered_keys(keys, self.order, np.zeros(len(keys), np.int32))

    def bound(self, key: bytes) -> bytes:
        """Return such bytes of one key."""
        found: bytes = self.ordered(pa.array([key], pa.binary()))[0].as_py()
        return found


def keys_of_space(space: Space) -> SpaceKeys:
    """Return how the keys of a space are made and ordered."""
    return SpaceKeys(key_plan([space]), key_order([directions_of(space)]))


@dataclass(frozen=True)
class Page:
    """Some tuples of a server, in the order of their keys.

    Parameters
    ----------
    keys : pyarrow.BinaryArray
        Canonical keys.
    hashes : uint64[n]
        Of the tuples.

    """

    keys: pa.Array
    hashes: UInt64s


def page_of(tuples: Iterable[bytes], keys: SpaceKeys) -> Page:
    """Return a page of tuples as a server gave them."""
    found = pa.array(tuples, pa.binary())
    return Page(keys.of_tuples(found), tuple_hashes(found).view(np.uint64))


@dataclass(frozen=True)
class SortedVersions:
    """Versions in the order of the index; made by `sorted_versions`.

    Parameters
    ----------
    keys : pyarrow.LargeBinaryArray
        Canonical keys.
    bounds : pyarrow.LargeBinaryArray
        The same as `SpaceKeys.ordered` gives them.
    hashes : uint64[n]
        Of the tuples.
    sums : uint64[n + 1]
        Of the hashes before each version, modulo 2^64.

    """

    keys: pa.Array
    bounds: pa.Array
    hashes: UInt64s
    sums: UInt64s = field(repr=False)

    def __len__(self) -> int:
        return len(self.hashes)

    def range_of(self, after: bytes | None, last: bytes | None) -> tuple[int, int]:
        """Return the first and the end place of the versions behind a bound up to another one, which is included.

        Parameters
        ----------
        after : bytes or None
            None begins with the first version.
        last : bytes or None
            None ends with the last one.

        """
        begin = 0 if after is None else self._behind(after)
        return begin, max(begin, len(self) if last is None else self._behind(last))

    def is_equal(self, begin: int, end: int, rows: int, checksum: int) -> bool:
        """Whether a range has so many versions, whose hashes have this sum."""
        total = (int(self.sums[end]) - int(self.sums[begin])) % _MODULUS
        return end - begin == rows and total == checksum

    def differing(self, begin: int, end: int, page: Page) -> list[bytes]:
        """Return the keys that only the range or only the page has, or whose tuples have different hashes."""
        here = dict(zip(self.keys[begin:end].to_pylist(), self.hashes[begin:end].tolist(), strict=True))
        there = dict(zip(page.keys.to_pylist(), page.hashes.tolist(), strict=True))
        return [key for key in {**here, **there} if here.get(key) != there.get(key)]

    def _behind(self, bound: bytes) -> int:
        """Return how many versions are at or before a bound."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.bounds[middle].as_py() <= bound:
                low = middle + 1
            else:
                high = middle
        return low


def sorted_versions(batches: Iterable[tuple[pa.Array, pa.Array]], keys: SpaceKeys) -> SortedVersions:
    """Return versions in the order of the index.

    Parameters
    ----------
    batches : iterable of (pyarrow.BinaryArray, pyarrow.BinaryArray)
        Canonical keys and tuples, in any order.
    keys : SpaceKeys
        Of their space.

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
