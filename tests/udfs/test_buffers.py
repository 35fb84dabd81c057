"""Arrow arrays as flat buffers: slices, nulls, offsets of 64 bits, and the bytes past the end."""

import numpy as np
import pyarrow as pa
import pytest

from udfs.buffers import binary_array, flatten, index_per_row, null_mask, validity_bitmap, with_readable_end

PAGE = 4096
OVERREAD = 9


def at_distance(distance: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return bytes that end a number of bytes before the end of a page."""
    room = np.zeros(3 * PAGE + size, np.uint8)
    start = -(room.ctypes.data + size + distance) % PAGE
    data = room[start : start + size]
    data[:] = np.arange(size, dtype=np.uint8)
    assert (data.ctypes.data + size + distance) % PAGE == 0
    return data


@pytest.mark.parametrize("distance", [0, 1, 8])
def test_a_buffer_that_ends_near_its_page_end_is_copied(distance: int) -> None:
    data = at_distance(distance, 100)
    found = with_readable_end(data, OVERREAD)
    assert found.ctypes.data != data.ctypes.data
    assert found.tobytes() == data.tobytes()


@pytest.mark.parametrize("distance", [9, 10, 2000])
def test_any_other_buffer_is_not_copied(distance: int) -> None:
    data = at_distance(distance, 100)
    found = with_readable_end(data, OVERREAD)
    assert found.ctypes.data == data.ctypes.data
    assert not found.flags.writeable
    assert data.flags.writeable, "the caller's own view stays as it was"


def test_an_empty_buffer_can_be_read_past_its_end() -> None:
    found = with_readable_end(np.zeros(0, np.uint8), OVERREAD)
    assert len(found) == 0
    assert found.base is not None


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()])
def test_a_slice_keeps_its_rows(kind: pa.DataType) -> None:
    values = [b"a", None, b"", b"bcd", None, b"e" * 20]
    whole = pa.array(values, pa.binary()).cast(kind)
    for first in range(7):
        for last in range(first, 7):
            flat = flatten(whole.slice(first, last - first), OVERREAD)
            rows = [
                None if missing else flat.data[begin:end].tobytes()
                for begin, end, missing in zip(flat.offsets, flat.offsets[1:], flat.nulls, strict=False)
            ]
            assert rows == values[first:last]


def test_nulls_of_a_slice() -> None:
    array = pa.array([1, None, 3, None] * 5)
    assert null_mask(array.slice(3, 9)).tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert null_mask(array.slice(2, 1)).tolist() == [0]


def test_indexes_are_their_own_memory() -> None:
    array = pa.array([3, None, 5], pa.int64())
    found = index_per_row(array, 3)
    assert found.tolist() == [3, -1, 5]
    assert found.flags.writeable
    assert index_per_row(7, 2).tolist() == [7, 7]


def test_there_is_a_bitmap_only_if_there_are_nulls() -> None:
    assert validity_bitmap(np.array([True, True])) == (None, 0)
    buffer, missing = validity_bitmap(np.array([True, False, True]))
    assert (buffer is not None, missing) == (True, 1)
    array = binary_array(
        pa.string(),
        np.array([0, 1, 1, 3], np.int32),
        np.frombuffer(b"abc", np.uint8),
        np.array([True, False, True]),
    )
    assert array.to_pylist() == ["a", None, "bc"]
