"""The format of deletion vectors: what is written is read again, damage is named, and Delta's own readers agree."""

import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from schemas.errors import WarehouseError
from warehouse.delta import deletion_vectors as vectors
from warehouse.delta.deletion_vectors import Descriptor

NAME = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")


def bitmap(numbers: Any) -> BitMap64:
    return vectors.bitmap_of(np.array(list(numbers), np.int64))


def test_the_name_of_a_file_is_the_one_of_the_protocol() -> None:
    # The example of the Delta protocol, "Deletion Vector Descriptor Schema".
    descriptor = Descriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
    assert descriptor.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert descriptor.id == "uab^-aqEH.-t@S}K{vb[*k^@4"


def test_a_vector_in_the_log_itself_is_read() -> None:
    data = vectors.encode(bitmap([3, 4, 7, 11, 18, 29]))
    padded = data + b"\0" * (-len(data) % 4)
    descriptor = Descriptor("i", vectors._to_z85(padded), len(data), 6)
    assert list(vectors.decode_inline(descriptor)) == [3, 4, 7, 11, 18, 29]
    assert (descriptor.path, descriptor.id) == (None, f"i{descriptor.place}")


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(0, 200_000), min_size=1), min_size=1, max_size=5))
def test_each_vector_of_a_file_is_read_again(sets: list[set[int]]) -> None:
    content, descriptors = vectors.encode_file(NAME, [bitmap(one) for one in sets])
    for wanted, descriptor in zip(sets, descriptors, strict=True):
        assert descriptor.offset is not None
        found = vectors.decode_stored(content[descriptor.offset :], descriptor)
        assert vectors.rows_of(found).tolist() == sorted(wanted)
        assert descriptor.cardinality == len(wanted)
        assert Descriptor.of_action({"deletionVector": descriptor.as_action()}) == descriptor


def test_each_changed_byte_of_a_vector_is_noticed() -> None:
    content, (descriptor,) = vectors.encode_file(NAME, [bitmap([1, 5, 70_000])])
    for position in range(1, len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(WarehouseError, match="deletion vector is damaged"):
            vectors.decode_stored(bytes(damaged[1:]), descriptor)
    with pytest.raises(WarehouseError, match="length"):
        vectors.decode_stored(content[1:-1], descriptor)


@settings(deadline=None)
@given(st.sets(st.integers(0, 300)), st.lists(st.integers(0, 300)))
def test_deleted_rows_are_asked_for(deleted: set[int], asked: list[int]) -> None:
    rows = np.array(asked, np.int64)
    assert vectors.is_deleted(bitmap(deleted), rows).tolist() == [one in deleted for one in asked]
    assert not vectors.is_deleted(None, rows).any()
