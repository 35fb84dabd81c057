"""Sorts the versions of a replicaset by primary key, to compare them with pages of a server.

A page is a range of keys. The row count and the sum of the hashes show whether a range is equal on both sides; if it is
not, the tuples of the page show which keys differ. In memory, a version needs twice the size of its key and 16 bytes.
No I/O. `observe.proof.epoch_tables` reads the versions, `sources.iproto.space_pages` the server's pages.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.errors import TupleError
from schemas.space import Space
from udfs.buffers import flatten
from udfs.kernels.values import OVERREAD_BYTES
from udfs.keys.key_order import KeyOrder, directions_of, key_order, ordered_keys
from udfs.keys.keys import KeyPlan, canonical_keys_with_plan, key_plan
from udfs.keys.row_hash import FIRST_SEED, hash_bytes_column

_HASH_SUM_MODULUS = 1 << 64

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


@dataclass(frozen=True)
class SpaceKeyFunctions:
    """Functions for the keys of one space: their canonical form and their order. `space_key_functions` returns them."""

    plan: KeyPlan
    """How a tuple's key is computed."""
    order: KeyOrder
    """How keys are compared in the primary index."""

    def canonical_keys(self, tuples: pa.Array) -> pa.Array:
        """Return the canonical key of each tuple; raise TupleError if a tuple has none."""
        result = canonical_keys_with_plan(tuples, self.plan)
        keys, errors = result.field(0), result.field(1)
        if keys.null_count:
            raise TupleError(f"a tuple has no key: {errors.drop_null()[0].as_py()}")
        return keys

    def sortable_keys(self, keys: pa.Array) -> pa.Array:
        """Return the sortable bytes of canonical keys: they sort as the primary index sorts the keys."""
        return ordered_keys(keys, self.order, np.zeros(len(keys), np.int32))

    def sortable_key(self, key: bytes) -> bytes:
        """Return the sortable bytes of one canonical key."""
        found: bytes = self.sortable_keys(pa.array([key], pa.binary()))[0].as_py()
        return found


def space_key_functions(space: Space) -> SpaceKeyFunctions:
    """Return the functions for keys of a space."""
    return SpaceKeyFunctions(key_plan([space]), key_order([directions_of(space)]))


@dataclass(frozen=True)
class ServerPage:
    """A page of a space on a server: the keys and hashes of its tuples."""

    keys: pa.Array
    """Canonical keys."""
    hashes: UInt64s
    """Hash of each key's tuple (uint64[n])."""


def server_page(tuples: Iterable[bytes], keys: SpaceKeyFunctions) -> ServerPage:
    """Return a page with the keys and hashes of a server's tuples."""
    data = pa.array(tuples, pa.binary())
    return ServerPage(keys.canonical_keys(data), hash_tuples(data).view(np.uint64))


@dataclass(frozen=True)
class SortedVersions:
    """A replicaset's versions in the order of the primary index; `sorted_versions` returns them."""

    keys: pa.Array
    """Canonical keys."""
    sortable_keys: pa.Array
    """The sortable bytes of the keys (`SpaceKeyFunctions.sortable_keys`)."""
    hashes: UInt64s
    """Hashes of the tuples (uint64[n])."""
    cumulative_hashes: UInt64s = field(repr=False)
    """Cumulative sums of `hashes`, modulo 2^64, starting with 0 (uint64[n + 1])."""

    def __len__(self) -> int:
        return len(self.hashes)

    def index_range(self, after: bytes | None, last: bytes | None) -> tuple[int, int]:
        """Return the indexes (begin, end) of the versions after the key `after`, up to the key `last` inclusive."""
        begin = 0 if after is None else self._count_up_to(after)
        return begin, max(begin, len(self) if last is None else self._count_up_to(last))

    def range_has_checksum(self, begin: int, end: int, rows: int, checksum: int) -> bool:
        """Return whether there are `rows` versions from index `begin` to `end`, and `checksum` is their hash sum."""
        total = (int(self.cumulative_hashes[end]) - int(self.cumulative_hashes[begin])) % _HASH_SUM_MODULUS
        return end - begin == rows and total == checksum

    def differing_keys(self, begin: int, end: int, page: ServerPage) -> list[bytes]:
        """Return the canonical keys whose tuples differ between a page and the versions from `begin` to `end`."""
        tables = dict(zip(self.keys[begin:end].to_pylist(), self.hashes[begin:end].tolist(), strict=True))
        server = dict(zip(page.keys.to_pylist(), page.hashes.tolist(), strict=True))
        return [key for key in {**tables, **server} if tables.get(key) != server.get(key)]

    def _count_up_to(self, sortable_key: bytes) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.sortable_keys[middle].as_py() <= sortable_key:
                low = middle + 1
            else:
                high = middle
        return low


def sorted_versions(batches: Iterable[tuple[pa.Array, pa.Array]], keys: SpaceKeyFunctions) -> SortedVersions:
    """Return versions in the order of the primary index, with their hashes."""
    canonical_parts, sortable_parts, hashes = [], [], [np.empty(0, np.int64)]
    for canonical, tuples in batches:
        canonical_parts.append(canonical.cast(pa.large_binary()))
        sortable_parts.append(keys.sortable_keys(canonical).cast(pa.large_binary()))
        hashes.append(hash_tuples(tuples))
    sortable_keys = pa.chunked_array(sortable_parts, pa.large_binary()).combine_chunks()
    order = pc.sort_indices(sortable_keys)
    sorted_hashes = np.concatenate(hashes).view(np.uint64)[order.to_numpy()]
    cumulative_hashes = np.concatenate([np.zeros(1, np.uint64), np.cumsum(sorted_hashes, dtype=np.uint64)])
    all_keys = pa.chunked_array(canonical_parts, pa.large_binary()).combine_chunks()
    return SortedVersions(all_keys.take(order), sortable_keys.take(order), sorted_hashes, cumulative_hashes)


def range_of_versions(
    batches: Iterable[tuple[pa.Array, pa.Array]],
    keys: SpaceKeyFunctions,
    after: bytes | None,
    last: bytes | None,
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the versions whose sortable keys are after `after`, up to `last` inclusive; None is no bound."""
    for canonical, tuples in batches:
        sortable = keys.sortable_keys(canonical)
        is_inside = pa.repeat(True, len(canonical))
        if after is not None:
            is_inside = pc.and_(is_inside, pc.greater(sortable, pa.scalar(after, sortable.type)))
        if last is not None:
            is_inside = pc.and_(is_inside, pc.less_equal(sortable, pa.scalar(last, sortable.type)))
        yield canonical.filter(is_inside), tuples.filter(is_inside)


def hash_tuples(tuples: pa.Array) -> Int64s:
    """Return the XXH64 of each tuple, which equals the hash of the server's Lua code (`sources.iproto.space_pages`)."""
    hashes: Int64s = np.full(len(tuples), FIRST_SEED, np.int64)
    flat = flatten(tuples, OVERREAD_BYTES)
    hash_bytes_column(flat.data, flat.offsets, flat.nulls, hashes)
    return hashes
