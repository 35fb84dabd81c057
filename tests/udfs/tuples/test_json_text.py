"""Nested values as JSON text, against Python's `json` and the values that the msgpack library decodes."""

import datetime
import json
import math
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observe.log_rows.row_format import to_json_value
from schemas.layout import TableLayout, TypeOptions, table_layout
from schemas.space import Field, Space
from tests.soaked import examples
from tests.udfs.messages import binaries, datetime_ext, decimal_ext, interval_ext, pack, uuid_ext
from udfs.before_replace.row import decode
from udfs.tuples.tuples import decode_tuples

JSON = TypeOptions(nested="json")
UUID = "64d22e4d-ac92-4a23-899a-e59f34af5479"


def layout_of(*kinds: str) -> TableLayout:
    fields = tuple(Field(f"f{number}", kind, True) for number, kind in enumerate(kinds))
    return table_layout([Space(512, 1, "s", "memtx", fields)], options=JSON)


def texts(*raws: bytes) -> list[str | None]:
    """Return the JSON of values, each of which is the field of a tuple of its own."""
    decoded = decode_tuples(binaries([b"\x91" + raw for raw in raws]), layout_of("any"))
    decoded.validate(full=True)
    assert decoded.field("_error").null_count == len(raws)
    found: list[str | None] = decoded.field("f0").to_pylist()
    return found


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (pack({"a": [1, -5, 2**64 - 1, -(2**63)], "b": {}, "c": []}), None),
        (pack({"true": True, "false": False, "null": None}), None),
        (pack('"\\\b\f\n\r\t\x00\x1f/\x7f é\u20ac\U0001f600'), None),
        (pack([1.0, 0.1, 0.1 + 0.2, 1e300, 5e-324, -0.0, 1e15, 123456789.123]), None),
        (b"\xca" + struct.pack(">f", 0.1), struct.unpack(">f", struct.pack(">f", 0.1))[0]),
        (pack([math.nan, math.inf, -math.inf]), ["nan", "inf", "-inf"]),
        (pack([b"", b"\xff", b"\xff\x00", b"abc"]), None),
        (pack(["\udcff"]), [{"base64": "/w=="}]),
        (pack([decimal_ext("12.50"), decimal_ext("0." + "3" * 76), decimal_ext("1E+50")]), None),
        (pack(uuid_ext(UUID)), UUID),
        (pack(interval_ext(years=1, days=-3)), "+1 years, -3 days"),
        (pack([datetime_ext(0), datetime_ext(-1, 5000), datetime_ext(253402300799)]), None),
        (pack(datetime_ext(1700000000, 123456789)), "2023-11-14T22:13:20.123456789+00:00"),
        (pack(datetime_ext(-62135596800)), "0001-01-01T00:00:00+00:00"),
        (pack(datetime_ext(10**12)), {"ext": 4, "base64": "ABCl1OgAAAA="}),
        (pack(msgpack.ExtType(9, b"mine")), {"ext": 9, "base64": "bWluZQ=="}),
        (b"\xc7\x00\xfe", {"ext": -2, "base64": ""}),
        (pack(msgpack.ExtType(2, b"short")), {"ext": 2, "base64": "c2hvcnQ="}),
        (pack({5: 1, -1: 2, 1.5: 3, True: 4, None: 5}), {"5": 1, "-1": 2, "1.5": 3, "true": 4, "null": 5}),
        (b"\x81\x91\x01\x02", {'{"base64":"kQE="}': 2}),
        (pack(msgpack.ExtType(3, pack({"stack": [1]}))), {"stack": [1]}),
        (b"\x91" * 99 + b"\x90", None),
    ],
    ids=repr,
)
def test_a_value_as_json(raw: bytes, expected: Any) -> None:
    (text,) = texts(raw)
    assert text is not None
    assert json.loads(text) == (to_json_value(decode(raw)) if expected is None else expected)


def test_what_is_nested_too_deep_is_its_messagepack() -> None:
    (text,) = texts(b"\x91" * 101 + b"\x07")
    assert text == "[" * 100 + '{"base64":"kQc="}' + "]" * 100


def test_a_repeated_key_is_repeated() -> None:
    assert texts(b"\x82\xa1a\x01\xa1a\x02") == ['{"a":1,"a":2}']


def test_fields_past_the_format_and_nulls() -> None:
    rows = [pack([1, None, "x", {"y": 2}]), pack([1]), pack([None, [], 5]), None, pack(["z", 1])]
    found = decode_tuples(binaries(rows), layout_of("any", "any"))
    found.validate(full=True)
    assert found.field("f0").to_pylist() == ["1", "1", None, None, '"z"']
    assert found.field("f1").to_pylist() == [None, None, "[]", None, "1"]
    assert found.field("_extra").to_pylist() == ['["x",{"y":2}]', None, "[5]", None, None]


def test_a_tuple_without_a_format_is_one_array() -> None:
    found = decode_tuples(binaries([pack([1, "a", {"b": [True]}])]), layout_of())
    assert found.field("_extra").to_pylist() == ['[1,"a",{"b":[true]}]']


@pytest.mark.parametrize(
    "raw", [b"\x92\x01", b"\x81\xa1a", b"\x81", b"\x91\xc1", b"\x91\xa5ab", b"\x81\xc1\x01"]
)
def test_a_value_that_is_cut_short_is_no_tuple(raw: bytes) -> None:
    decoded = decode_tuples(binaries([b"\x92" + raw]), layout_of("any", "any")).to_pylist()
    assert "is not MessagePack at field" in decoded[0]["_error"]


@pytest.mark.parametrize(
    "raw",
    [
        pack("\x01" * 70_000),
        pack(["\x01"] * 30_000),
        pack([None] * 70_000),
        pack([-0.1234567890123456] * 5000),
        pack([interval_ext(years=-(2**60), months=-(2**60), weeks=-(2**60), days=-(2**60))] * 500),
        pack({f"\x01{k}": {-k: b""} for k in range(5000)}),
        b"\xdc\x27\x10" + b"\xc7\x00\x80" * 10_000,
    ],
    ids=range(7),
)
def test_text_that_is_much_longer_than_its_messagepack_has_room(raw: bytes) -> None:
    small = pack("x")
    found = texts(small, raw, small, raw)
    assert found[0] == found[2] == '"x"'
    assert found[1] == found[3]
    assert json.loads(str(found[1])) is not None


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**20), max_value=10**20).map(
        decimal_ext
    )
    | st.datetimes(timezones=st.just(datetime.UTC)).map(
        lambda at: datetime_ext(math.floor(at.replace(microsecond=0).timestamp()), at.microsecond * 1000)
    )
)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**64 - 1), inner, max_size=20)
    ),
    max_leaves=50,
)


@given(st.lists(_values, min_size=1, max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_values_of_any_shape(values: list[Any]) -> None:
    raws = [pack(value) for value in values]
    for raw, text in zip(raws, texts(*raws), strict=True):
        value = to_json_value(decode(raw))
        assert value is None if text is None else json.loads(text) == json.loads(json.dumps(value))
