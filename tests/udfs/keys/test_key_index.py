"""The index of a file's keys finds exactly the rows that have a wanted key."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.buffers import flatten
from udfs.kernels.keyed_hash import hash_seeds
from udfs.kernels.values import OVERREAD_BYTES
from udfs.keys.key_index import KeyIndex, WantedKeys, build_index, find_in_index

KEYS = st.binary(max_size=12)


def found(index: KeyIndex, keys: list[bytes], wanted: list[bytes]) -> set[tuple[bytes, int]]:
    flat = flatten(pa.array(keys, pa.binary()), OVERREAD_BYTES)
    numbers, rows = find_in_index(index, flat, WantedKeys.of(pa.array(wanted, pa.binary()), hash_seeds()))
    return {(wanted[number], row) for number, row in zip(numbers.tolist(), rows.tolist(), strict=True)}


@settings(deadline=None)
@given(st.lists(KEYS, max_size=200), st.sets(KEYS, max_size=20))
def test_the_rows_of_all_wanted_keys_are_found(keys: list[bytes], others: set[bytes]) -> None:
    # Keys may be in a file twice, if others have deleted and inserted them again.
    wanted = list(others | set(keys[::3]))
    index = build_index(pa.array(keys, pa.binary()), hash_seeds())
    assert found(index, keys, wanted) == {(key, row) for row, key in enumerate(keys) if key in wanted}


def test_keys_with_one_hash_are_told_apart() -> None:
    keys = [b"a", b"b", b"c", b"a"]
    index = build_index(pa.array(keys, pa.binary()), np.zeros_like(hash_seeds()))
    flat = flatten(pa.array(keys, pa.binary()), OVERREAD_BYTES)
    wanted = WantedKeys.of(pa.array([b"c", b"a"], pa.binary()), np.zeros_like(hash_seeds()))
    numbers, rows = find_in_index(index, flat, wanted)
    assert sorted(zip(numbers.tolist(), rows.tolist(), strict=True)) == [(0, 2), (1, 0), (1, 3)]


def test_a_slice_of_keys_has_rows_from_zero_on() -> None:
    keys = pa.array([f"{i:03}".encode() for i in range(100)], pa.binary())
    part = keys.slice(40, 20)
    index = build_index(part, hash_seeds())
    wanted = WantedKeys.of(pa.array([b"041", b"099"], pa.binary()), hash_seeds())
    numbers, rows = find_in_index(index, flatten(part, OVERREAD_BYTES), wanted)
    assert (numbers.tolist(), rows.tolist()) == ([0], [1])
