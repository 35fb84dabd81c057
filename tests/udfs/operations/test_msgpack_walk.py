"""Walking and writing MessagePack, against the msgpack library; the search in large containers, against the loops."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TupleError
from tests.fuzz import draw as made
from tests.fuzz.draw import Draw
from tests.udfs import generated
from tests.udfs.generated import steady
from udfs.operations import msgpack_walk
from udfs.operations.msgpack_kinds import INT, KIND, SIZE, UINT
from udfs.operations.msgpack_walk import (
    encode_array,
    encode_integer,
    encode_map,
    encode_string,
    find_string_key,
    join_tuple,
    read_header,
    read_integer,
    skip,
    skip_many,
    split_tuple,
    string_bounds,
)


@steady
@given(st.lists(generated.values, max_size=20), st.binary(max_size=3))
def test_a_tuple_splits_into_its_fields_and_joins_again(fields: list[bytes], rest: bytes) -> None:
    data = encode_array(len(fields)) + b"".join(fields)
    assert split_tuple(data) == fields
    assert join_tuple(fields) == data
    assert skip(data + rest, 0) == len(data)
    if rest:
        with pytest.raises(TupleError):
            split_tuple(data + rest)


@steady
@given(generated.values)
def test_a_value_that_is_cut_short_is_an_error(value: bytes) -> None:
    assert skip(value, 0) == len(value)
    for end in range(len(value)):
        with pytest.raises(TupleError) as caught:
            skip(value[:end], 0)
        assert caught.value.fields["code"] == 20


@steady
@given(
    st.one_of(st.integers(-(2**63), 2**64 - 1), st.sampled_from([*generated.EDGES, -32, -33, -129, -(2**31)]))
)
def test_integers_are_written_as_the_library_writes_them(value: int) -> None:
    encoded = encode_integer(value)
    assert encoded == msgpack.packb(value)
    assert read_integer(encoded, 0) == (value, len(encoded))
    assert KIND[encoded[0]] == (UINT if value >= 0 else INT)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integers_beyond_64_bits_are_not_written(value: int) -> None:
    with pytest.raises(OverflowError):
        encode_integer(value)


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_headers_are_as_short_as_they_can_be(size: int) -> None:
    assert encode_string(b"x" * size) == msgpack.packb("x" * size)
    assert encode_array(size) == msgpack.Packer().pack_array_header(size)
    assert encode_map(size) == msgpack.Packer().pack_map_header(size)
    assert read_header(encode_array(size), 0) == (size, len(encode_array(size)))
    assert read_header(encode_map(size), 0) == (size, len(encode_map(size)))


@steady
@given(st.one_of(st.text(), st.binary()), st.binary(max_size=5))
def test_bytes_of_strings_binaries_and_extensions_are_found(value: str | bytes, rest: bytes) -> None:
    content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    for packed in (
        msgpack.packb(content, use_bin_type=isinstance(value, bytes)),
        msgpack.packb(msgpack.ExtType(5, content)),
    ):
        start, end = string_bounds(packed + rest, 0)
        assert packed[start:end] == content


def test_every_first_byte_has_a_kind_and_the_size_that_the_library_takes() -> None:
    for code in range(256):
        if code == 0xC1 or SIZE[code] == 0:
            continue
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(bytes((code,)) + b"\0" * 40)
        unpacker.skip()
        assert unpacker.tell() == SIZE[code], hex(code)


@pytest.mark.parametrize("data", [b"\xdc\x00", b"\x05", b"", b"\xdf\0\0\0"])
def test_a_value_that_is_not_a_container_has_no_header(data: bytes) -> None:
    with pytest.raises(TupleError):
        read_header(data, 0)


def outcome(step: Any, *given: Any) -> Any:
    try:
        return step(*given)
    except (TupleError, IndexError) as error:
        return type(error)


def both(monkeypatch: pytest.MonkeyPatch, step: Any, *given: Any) -> Any:
    """Return the result of the compiled loop, which equals that of the other one."""
    answers = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(msgpack_walk, "MANY_ELEMENTS", least)
        monkeypatch.setattr(msgpack_walk, "MANY_BYTES", least)
        answers.append(outcome(step, *given))
    assert answers[0] == answers[1], given
    return answers[0]


@pytest.mark.parametrize("seed", range(40))
def test_both_find_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw, found = Draw(f"elements {seed}"), 0
    for _ in range(25):
        keys = [
            draw.choice((made.value(draw), msgpack.packb(draw.text(), unicode_errors="surrogateescape")))
            for _ in range(9)
        ]
        pairs = b"".join(key + made.value(draw) for key in keys)
        data = b"\x89" + pairs
        data = made.mutated(draw, data) if draw.chance(3) else data
        for name in (b"", b"a", b"name", *(one[1:] for one in keys[:3])):
            answer = both(monkeypatch, find_string_key, data, 1, len(data), 9, name)
            found += isinstance(answer, tuple)
            both(monkeypatch, find_string_key, data, 1, len(data) // 2, 9, name)
        both(monkeypatch, skip_many, data, 1, draw.randrange(20))
    assert found > 5


def test_a_large_map_and_array(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"n{number}" * (1 + number % 90): number for number in range(3000)}
    data = msgpack.packb(names)
    count, pos = read_header(data, 0)
    for name, number in list(names.items())[::97]:
        answer = both(monkeypatch, find_string_key, data, pos, len(data), count, name.encode())
        assert msgpack.unpackb(data[answer[1] : skip_many(data, answer[1], 1)]) == number
    assert both(monkeypatch, find_string_key, data, pos, len(data), count, b"none") is None
    assert both(monkeypatch, skip_many, data, pos, 2 * count) == len(data)
    assert both(monkeypatch, skip_many, data, pos, 2 * count + 1) is TupleError
    assert both(monkeypatch, skip_many, data[:-1], pos, 2 * count) is TupleError
