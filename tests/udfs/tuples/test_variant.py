"""Encoding of variants, read back by pyspark's own reader of variants, which is independent of our encoder."""

import datetime
import decimal
import math
from decimal import Decimal
from typing import Any

import msgpack
import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from schemas.layout import table_layout
from schemas.space import Field, Space
from tests.soaked import examples
from tests.udfs.messages import (
    EXACT,
    Pairs,
    binaries,
    datetime_ext,
    decimal_ext,
    interval_ext,
    pack,
    unpack,
    uuid_ext,
)
from udfs.tuples.tuples import decode_tuples

UUID = "64d22e4d-ac92-4a23-899a-e59f34af5479"
LAYOUT = table_layout([Space(1, 1, "s", "memtx", (Field("v", "any", True),))])


def values(array: pa.Array) -> list[Any]:
    """Return pyspark's value of each variant; None for null. It rounds decimals by the current context."""
    with decimal.localcontext(EXACT):
        return [cell and VariantVal(cell["value"], cell["metadata"]).toPython() for cell in array.to_pylist()]


def to_variants(messages: pa.Array) -> pa.Array:
    """Encode values as the one field of tuples; a null tuple gives a null."""
    tuples = [None if raw is None else b"\x91" + raw for raw in messages.to_pylist()]
    decoded = decode_tuples(binaries(tuples), LAYOUT)
    assert decoded.field("_error").null_count == len(decoded)
    return decoded.field("v")


def read(raw: bytes) -> tuple[Any, bool]:
    """Encode one value as a field of a tuple; return pyspark's value of it, and whether it is exact."""
    row = decode_tuples(binaries([b"\x91" + raw]), LAYOUT)
    row.validate(full=True)
    assert row.field("_error").to_pylist() == [None]
    return values(row.field("v"))[0], row.field("_inexact").to_pylist() == [None]


def size(raw: bytes) -> int:
    (cell,) = to_variants(binaries([raw])).to_pylist()
    return len(cell["value"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (-128, -128),
        (128, 128),
        (-32769, -32769),
        (2**31, 2**31),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, Decimal(2**63)),
        (2**64 - 1, Decimal(2**64 - 1)),
        (1.5, 1.5),
        (True, True),
        (False, False),
        ("", ""),
        ("x" * 63, "x" * 63),
        ("x" * 64, "x" * 64),
        ("\U0001f600", "\U0001f600"),
        (b"\x00\xff", b"\x00\xff"),
        ([], []),
        ({}, {}),
        ([1, [2, [3, {}]]], [1, [2, [3, {}]]]),
        ({"a": None}, {"a": None}),
        (list(range(255)), list(range(255))),
        (list(range(300)), list(range(300))),
        ({"z": 1, "a": {"z": 2, "b": [True]}}, {"z": 1, "a": {"z": 2, "b": [True]}}),
        ({f"k{n}": n for n in range(300)}, {f"k{n}": n for n in range(300)}),
        (["y" * 300, "z" * 70000], ["y" * 300, "z" * 70000]),
        (decimal_ext("1.50"), Decimal("1.50")),
        (decimal_ext("-123456789"), Decimal(-123456789)),
        (decimal_ext("1234567890"), Decimal(1234567890)),
        (decimal_ext("0.1234567890"), Decimal("0.1234567890")),
        (decimal_ext("1E+5"), Decimal(100000)),
        (decimal_ext("9" * 38), Decimal("9" * 38)),
        (decimal_ext("-0." + "0" * 37 + "1"), Decimal("-1E-38")),
        (decimal_ext("0"), Decimal(0)),
        (uuid_ext(UUID), UUID),
        (interval_ext(years=1, days=-3), "+1 years, -3 days"),
        (datetime_ext(-1, 999999000), datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC)),
        ({1: "a", -2: "b", 2**64 - 1: "c"}, {"1": "a", "-2": "b", str(2**64 - 1): "c"}),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_value(value: Any, expected: Any) -> None:
    found, exact = read(pack(value))
    assert found == expected
    assert type(found) is type(expected)
    assert exact


def test_a_nil_is_null_but_one_inside_is_a_value() -> None:
    assert read(pack(None)) == (None, True)
    assert values(to_variants(binaries([pack(None), None, pack([None])]))) == [None, None, [None]]


def test_nan_and_infinities() -> None:
    found, exact = read(pack([math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]
    assert exact


def test_a_float_of_four_bytes_is_exact_as_a_double() -> None:
    assert read(b"\xca\x3d\xcc\xcc\xcd") == (0.10000000149011612, True)


@pytest.mark.parametrize(
    "raw",
    [
        pack(msgpack.ExtType(9, b"mine")),
        pack(decimal_ext("1E+38")),
        pack(decimal_ext("9" * 38 + ".5")),
        pack(msgpack.ExtType(1, b"\x00\xaa")),
        pack(msgpack.ExtType(2, b"short")),
        pack(datetime_ext(10**12)),
        pack(msgpack.ExtType(4, b"x")),
        pack(msgpack.ExtType(6, b"\x05")),
        pack(msgpack.ExtType(3, b"\xc1")),
        pack({1.5: "a double as a key"}),
        pack({"a": 1, True: 2}),
        b"\x82\xa1a\x01\x92\x01\x02\x03",
    ],
    ids=lambda raw: raw.hex()[:30],
)
def test_a_value_without_a_variant_type_is_its_messagepack(raw: bytes) -> None:
    assert read(raw) == (raw, True)
    assert read(b"\x93\x01" + raw + b"\x81\xa1k" + raw) == ([1, raw, {"k": raw}], True)


def test_a_string_that_is_not_utf8_is_binary() -> None:
    assert read(b"\xa2\xc3\x28") == (b"\xc3\x28", True)
    found, exact = read(b"\x81\xa3k\xff\x01\x01")
    assert found == {"k\\xff\x01": 1}
    assert not exact


def test_the_last_of_equal_keys_wins() -> None:
    assert read(b"\x83\xa1a\x01\xa1b\x02\xa1a\x03") == ({"a": 3, "b": 2}, False)
    assert read(b"\x82\x01\xa1x\xa11\xa1y") == ({"1": "y"}, False)
    nested = b"\x82\xa1a\x82\xa1a\x01\xa1b\x02\xa1b\x03"
    assert read(nested) == ({"a": {"a": 1, "b": 2}, "b": 3}, True)


def test_dropped_nanoseconds_are_reported() -> None:
    found, exact = read(pack([datetime_ext(0, 1999)]))
    assert found == [datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)]
    assert not exact


def test_an_mp_error_is_its_map() -> None:
    stack = {0: [{0: "ClientError", 1: "a.lua", 2: 7, 3: "no", 4: 0, 5: 32}]}
    found, exact = read(pack([msgpack.ExtType(3, pack(stack)), 5]))
    assert found == [{"0": [{"0": "ClientError", "1": "a.lua", "2": 7, "3": "no", "4": 0, "5": 32}]}, 5]
    assert exact


def test_values_below_the_greatest_depth_are_messagepack() -> None:
    deep: Any = 1
    for _ in range(250):
        deep = [deep]
    found, exact = read(pack(deep))
    depth = 0
    while isinstance(found, list):
        (found,) = found
        depth += 1
    assert depth == 100
    assert unpack(found) == unpack(pack(deep)[100:])
    assert exact
    many = b"\x81\xa1k" * 100 + b"\x90"
    assert read(many)[1]


def test_too_large_a_value_fails_as_a_whole() -> None:
    tuples = binaries([b"\x91" + pack("x" * (128 << 20)), pack(["ok"])])
    before = psutil.Process().memory_info().rss
    row = decode_tuples(tuples, LAYOUT)
    assert psutil.Process().memory_info().rss - before < 1 << 30, "the encoder's memory grows with its keys"
    assert row.field("_error").to_pylist() == ["field v: the value is too large for a variant", None]
    assert values(row.field("v")) == [None, "ok"]


def test_rows_do_not_share_keys() -> None:
    rows = [pack({"a": 1, "b": 2}), pack({"b": 1}), None, pack([]), pack({"c": {"a": 1}}), pack({})]
    cells = to_variants(binaries(rows)).to_pylist()
    assert [cell and cell["metadata"].count(b"b") for cell in cells] == [1, 1, None, 0, 0, 0]
    assert cells[3]["metadata"] == b"\x01\x00\x00"


def test_the_shortest_forms_are_chosen() -> None:
    assert [size(pack(value)) for value in (1, 200, 70000, 2**40, "abc", "x" * 64, [None])] == [
        2,
        3,
        5,
        9,
        4,
        69,
        5,
    ]
    assert size(pack([])) == 3
    assert size(pack({"a": 1})) == 1 + 1 + 1 + 2 + 2


def test_extra_fields_are_one_array() -> None:
    rows: list[bytes | None] = [pack([1]), pack([1, "x", {"k": [1]}, None]), pack([1, *range(300)])]
    decoded = decode_tuples(binaries(rows), LAYOUT)
    assert values(decoded.field("_extra")) == [None, ["x", {"k": [1]}, None], list(range(300))]


TEXTS = st.text(max_size=70) | st.text("ab\ud7ff\ufb00\U0001f600", max_size=3)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=300)
    | st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**20), max_value=10**20)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXTS, inner, max_size=12),
    max_leaves=30,
)


def plain(value: Any) -> Any:
    """Return a value with its decimals as MP_DECIMAL."""
    if isinstance(value, Decimal):
        return decimal_ext(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(TREES, min_size=1, max_size=5))
def test_any_tree_is_read_back(trees: list[Any]) -> None:
    array = to_variants(binaries([pack(plain(tree)) for tree in trees]))
    array.validate(full=True)
    assert values(array) == trees
    for cell, tree in zip(array.to_pylist(), trees, strict=True):
        if isinstance(tree, dict):
            found = VariantVal(cell["value"], cell["metadata"]).toPython()  # its keys, in their order
            assert list(found) == sorted(tree, key=lambda key: key.encode("utf-16-be", "surrogatepass"))


KEYS = st.integers(-3, 3) | st.sampled_from(["1", "-1", "a", "\udcff"]) | st.text(max_size=2)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.tuples(KEYS, st.integers(0, 9) | st.lists(st.integers(0, 9))), max_size=20))
def test_maps_with_any_keys(pairs: list[tuple[Any, Any]]) -> None:
    header = b"\x80" if not pairs else b"\xde" + len(pairs).to_bytes(2, "big")
    raw = header + b"".join(pack(key) + pack(value) for key, value in pairs)
    assert unpack(raw) == Pairs(pairs)
    named = [("\\xff" if key == "\udcff" else str(key), value) for key, value in pairs]
    found, exact = read(raw)
    assert found == dict(named)
    assert exact == (len(dict(named)) == len(named) and "\udcff" not in dict(pairs))
