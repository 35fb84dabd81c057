"""MessagePack walked without decoding, against the msgpack library; at the edge of readable memory."""

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sources.xlog.format.kernels import skip as kernels
from tests.sources.xlog.samples import guarded

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
)
OBJECTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.integers(-9, 2**40), inner, max_size=20),
    max_leaves=40,
)
LARGE = [
    "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65535, "x" * 65536, b"x" * 255, b"x" * 256, b"x" * 65536,
    list(range(15)), list(range(16)), list(range(65535)), list(range(65536)),
    {k: k for k in range(15)}, {k: k for k in range(16)}, {k: k for k in range(65536)},
    *(msgpack.ExtType(5, b"x" * size) for size in (1, 2, 3, 4, 8, 16, 17, 255, 256, 65536)),
]  # fmt: skip


def skipped(data: bytes) -> int:
    return int(kernels.skip(guarded(data).ctypes.data, 0, len(data)))


def uint(data: bytes) -> tuple[int, int]:
    value, position = kernels.load_uint(guarded(data).ctypes.data, 0, len(data))
    return int(value), int(position)


def map_head(data: bytes) -> tuple[int, int]:
    pairs, position = kernels.load_map_size(guarded(data).ctypes.data, 0, len(data))
    return int(pairs), int(position)


def array_there(data: bytes) -> bool:
    return bool(kernels.is_array(guarded(data).ctypes.data, 0, len(data)))


@given(OBJECTS, st.binary(max_size=9))
def test_the_position_behind_any_object(value: object, rest: bytes) -> None:
    data = msgpack.packb(value)
    assert skipped(data + rest) == len(data)


@pytest.mark.parametrize("value", LARGE, ids=lambda value: f"{type(value).__name__}{len(value)}")
def test_the_position_behind_large_objects(value: object) -> None:
    data = msgpack.packb(value)
    assert skipped(data) == len(data)


@given(OBJECTS)
def test_an_incomplete_object_has_no_end_position(value: object) -> None:
    data = msgpack.packb(value)
    for size in range(len(data)):
        assert skipped(data[:size]) == -1


def library_skips(data: bytes) -> int:
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data)
    try:
        unpacker.skip()
    except (msgpack.OutOfData, msgpack.FormatError, ValueError):
        return -1
    return int(unpacker.tell())


@given(st.binary(min_size=1, max_size=60))
@example(b"\xdd\xff\xff\xff\xff" * 3)
@example(b"\xdf\xff\xff\xff\xff" * 3)
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\xc1")
@example(b"\x92\xc1\x00")
def test_any_bytes_are_skipped_or_refused_as_the_library_does(data: bytes) -> None:
    assert skipped(data) == library_skips(data)


@pytest.mark.parametrize("head", [0xC6, 0xC9, 0xDB, 0xDD, 0xDF])
def test_the_largest_length_is_not_there(head: int) -> None:
    data = bytes([head]) + b"\xff\xff\xff\xff" + bytes(20)
    assert skipped(data) == -1


def test_deep_nesting_costs_no_stack() -> None:
    data = b"\x91" * 1_000_000 + b"\x01"
    assert skipped(data) == len(data)


@pytest.mark.parametrize("head", [0xCC, 0xCD, 0xCE, 0xCF])
@given(value=st.integers(0, 2**64 - 1))
def test_numbers_of_any_width(head: int, value: int) -> None:
    size = 1 << (head - 0xCC)
    value %= 1 << (8 * size)
    data = bytes([head]) + value.to_bytes(size, "big")
    found, position = uint(data)
    assert (found % 2**64, position) == (value, len(data))
    for cut in range(len(data)):
        assert uint(data[:cut])[1] == -1


@pytest.mark.parametrize("value", [-1, -(2**31), 1.5, "1", None, True, [1], {1: 1}, b"1"])
def test_what_is_no_unsigned_number_is_refused(value: object) -> None:
    data = msgpack.packb(value)
    assert uint(data)[1] == -1


@pytest.mark.parametrize("pairs", [0, 1, 15, 16, 65535, 65536])
def test_a_map_says_how_many_pairs(pairs: int) -> None:
    data = msgpack.Packer().pack_map_header(pairs)
    assert map_head(data) == (pairs, len(data))
    for cut in range(len(data)):
        assert map_head(data[:cut])[1] == -1


@pytest.mark.parametrize("value", [[], 5, "x", None, 1.5, b""])
def test_what_is_no_map_is_refused(value: object) -> None:
    data = msgpack.packb(value)
    assert map_head(data)[1] == -1


@given(OBJECTS)
def test_only_arrays_are_arrays(value: object) -> None:
    data = msgpack.packb(value)
    assert array_there(data) == isinstance(value, list)


def test_no_array_is_read_after_the_end() -> None:
    assert not array_there(b"")
