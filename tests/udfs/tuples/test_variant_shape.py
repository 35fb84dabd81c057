"""Variants of rows that share a shape have the same bytes as each row decoded alone."""

import struct
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from schemas.layout import table_layout
from schemas.space import Field, Space
from tests.udfs.generated import numbers, others, steady, strings, values
from tests.udfs.messages import binaries, datetime_ext, decimal_ext, pack, uuid_ext
from udfs.tuples.tuples import decode_tuples

LAYOUT = table_layout([Space(1, 1, "s", "memtx", (Field("v", "any"), Field("end", "unsigned")))])
UUID = "64d22e4d-ac92-4a23-899a-e59f34af5479"

HOLE = object()
"""Where a shape has a value of any kind."""


def decoded(raws: list[bytes]) -> list[dict[str, Any]]:
    array = decode_tuples(binaries([b"\x92" + raw + b"\x07" for raw in raws]), LAYOUT)
    array.validate(full=True)
    rows: list[dict[str, Any]] = array.to_pylist()
    return rows


def check(raws: list[bytes]) -> list[dict[str, Any]]:
    """Decode rows together; each must have the same bytes as alone."""
    together = decoded(raws)
    assert together == [decoded([raw])[0] for raw in raws]
    return together


def fill(shape: Any, draw: st.DrawFn, leaves: st.SearchStrategy[bytes]) -> bytes:
    """Return the MessagePack of a shape with drawn values in its holes."""
    if shape is HOLE:
        return draw(leaves)
    head = (0x80 if isinstance(shape, dict) else 0x90) | len(shape)
    if isinstance(shape, dict):
        return bytes((head,)) + b"".join(key + fill(one, draw, leaves) for key, one in shape.items())
    return bytes((head,)) + b"".join(fill(one, draw, leaves) for one in shape)


_keys = st.one_of(
    st.sampled_from(["a", "b", "city", "a longer key of a field", "ключ", "\ue000", "\U0001f600"]).map(pack),
    st.sampled_from([b"\xd9\x01a", b"\xa1\xff", b"\x01", b"\xc3", b"\xc0"]),
)
_shapes = st.recursive(
    st.just(HOLE),
    lambda inside: st.one_of(
        st.dictionaries(_keys, inside, max_size=5),
        st.lists(inside, max_size=4),
        st.lists(inside, min_size=15, max_size=15),
    ),
    max_leaves=20,
)
_leaves = st.one_of(
    numbers,
    strings,
    others,
    st.booleans().map(pack),
    st.integers(-40, 140).map(pack),
    st.sampled_from([pack("x" * size) for size in (20, 31, 32, 63, 64, 250, 300, 70_000)]),
    st.sampled_from(
        [pack(datetime_ext(5, 1)), pack(datetime_ext(5)), pack(decimal_ext("1.5")), pack(uuid_ext(UUID))]
    ),
)


@st.composite
def documents(draw: st.DrawFn) -> list[bytes]:
    """Draw rows of one or two shapes; some have a container or another type in place of a value."""
    shapes = draw(st.lists(_shapes, min_size=1, max_size=2))
    found = []
    for _ in range(draw(st.integers(2, 12))):
        odd = draw(st.sampled_from([False, False, False, True]))
        found.append(fill(draw(st.sampled_from(shapes)), draw, values if odd else _leaves))
    return found


@given(documents())
@steady
def test_rows_of_one_shape_decode_as_each_does_alone(raws: list[bytes]) -> None:
    check(raws)


@given(documents(), st.data())
@steady
def test_damage_in_one_row_does_not_affect_others(raws: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(raws) - 1))
    where = data.draw(st.integers(0, len(raws[index]) - 1))
    raws[index] = raws[index][:where] + data.draw(st.binary(max_size=2)) + raws[index][where + 1 :]
    check(raws)


def test_every_truncation_of_a_row_of_a_known_shape() -> None:
    whole = pack({"items": [{"sku": "A-17", "price": 12.5, "n": 300}] * 2, "note": "ж" * 20, "gift": None})
    rows = [b"\x92" + whole + b"\x07", *(b"\x92" + whole[:size] for size in range(len(whole)))]
    array = decode_tuples(binaries(list(rows)), LAYOUT)
    assert array.field("_error").null_count == 1
    assert array.field("v").null_count == len(whole)


def test_widths_of_offsets_are_the_narrowest() -> None:
    """The same keys with strings of 1 byte to 100 000: the sizes of the objects cross 2^8 and 2^16, up and down."""
    sizes = [1, 100, 240, 250, 300, 1, 65_000, 66_000, 100_000, 66_000, 3, 2**24, 2]
    rows = check([pack({"b": {"text": "x" * size}, "a": [size]}) for size in sizes])
    assert [row["end"] for row in rows] == [7] * len(sizes)


def test_rows_without_a_common_shape_decode_after_many_misses() -> None:
    raws = [pack({f"k{number % 37}": [number] * (number % 5), "n": number}) for number in range(300)]
    raws += [pack({"k": number, "n": {"a": number}}) for number in range(100)]
    check(raws)


def test_containers_that_no_shape_can_describe() -> None:
    deep: Any = 1
    for _ in range(14):
        deep = [deep]
    long = struct.pack(">BH", 0xDC, 2) + b"\x01\x02"
    error = pack(msgpack.ExtType(3, b"\x81\x00\x90"))
    repeated = b"\x82\xa1a\x01\xa1a\x02"
    wide = pack({f"k{number}": number for number in range(16)})
    for raw in (
        pack(deep),
        long,
        error,
        repeated,
        wide,
        b"\x91" + error,
        b"\x82\xa1a" + error + b"\xa1b\x01",
        pack([]),
    ):
        check([raw, raw, pack({"a": 1}), raw])
