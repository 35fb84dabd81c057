"""Canonical keys, case by case: forms, JSON paths, many spaces at once, faults, and what is refused."""

import math
import pickle
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import UnsupportedError
from schemas.space import KeyPart, Space
from tests.soaked import examples
from tests.udfs.messages import EXACT, binaries, datetime_ext, decimal_ext, pack, uuid_ext
from udfs.keys.keys import canonical_keys, canonical_keys_with_plan, key_plan

UUID = "64d22e4d-ac92-4a23-899a-e59f34af5479"


def space(*parts: KeyPart, name: str = "things") -> Space:
    return Space(512, 1, name, "memtx", (), parts)


def key_of(raw: bytes, kind: str = "scalar") -> bytes:
    """Return the canonical form of one part."""
    (row,) = canonical_keys(binaries([b"\x91" + raw]), [space(KeyPart(0, kind))]).to_pylist()
    assert row["error"] is None, row
    assert row["key"][0] == 0x91
    key: bytes = row["key"][1:]
    return key


def double(value: float) -> bytes:
    return b"\xcb" + struct.pack(">d", value)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x05", b"\x05"),
        (b"\xcd\x00\x05", b"\x05"),
        (b"\xd3" + bytes(7) + b"\x05", b"\x05"),
        (double(5.0), b"\x05"),
        (b"\xca" + struct.pack(">f", 5.0), b"\x05"),
        (pack(decimal_ext("5.00")), b"\x05"),
        (pack(decimal_ext("0.5E+1")), b"\x05"),
        (double(-0.0), b"\x00"),
        (pack(decimal_ext("-0.00")), b"\x00"),
        (b"\xd1\xff\xff", b"\xff"),
        (double(-1.0), b"\xff"),
        (pack(200), b"\xcc\xc8"),
        (pack(-200), b"\xd1\xff\x38"),
        (pack(-(2**31) - 1), b"\xd3" + struct.pack(">q", -(2**31) - 1)),
        (double(2.0**63), b"\xcf\x80" + bytes(7)),
        (double(-(2.0**63)), b"\xd3\x80" + bytes(7)),
        (pack(2**64 - 1), b"\xcf" + b"\xff" * 8),
        (pack(decimal_ext("18446744073709551615")), b"\xcf" + b"\xff" * 8),
        (pack(decimal_ext("-9223372036854775807")), b"\xd3\x80" + bytes(6) + b"\x01"),
        (pack(decimal_ext("18446744073709551616")), pack(decimal_ext("18446744073709551616"))),
        (double(2.0**64), double(2.0**64)),
        (double(1e20), pack(decimal_ext("1E+20"))),
        (pack(decimal_ext("100000000000000000000")), pack(decimal_ext("1E+20"))),
        (double(0.1), pack(decimal_ext("0.1"))),
        (pack(decimal_ext("0.100")), pack(decimal_ext("0.1"))),
        (double(-23.42), pack(decimal_ext("-23.42"))),
        (double(1e-30), pack(decimal_ext("1E-30"))),
        (double(1.5e37), pack(decimal_ext("1.5E+37"))),
        (double(1 / 3), double(1 / 3)),
        (double(1e300), double(1e300)),
        (double(5e-324), double(5e-324)),
        (double(math.inf), double(math.inf)),
        (double(-math.inf), double(-math.inf)),
        (b"\xcb\xff\xf8" + bytes(5) + b"\x07", b"\xcb\x7f\xf8" + bytes(6)),
        (b"\xcb\x7f\xf0" + bytes(5) + b"\x07", b"\xcb\x7f\xf0" + bytes(5) + b"\x01"),
        (b"\xc7\x03\x01\x00\x01\x2c", pack(12)),
        (b"\xd9\x01a", b"\xa1a"),
        (b"\xdb" + (32).to_bytes(4, "big") + b"x" * 32, b"\xd9\x20" + b"x" * 32),
        (pack("x" * 256), b"\xda\x01\x00" + b"x" * 256),
        (pack("x" * 65536), b"\xdb\x00\x01\x00\x00" + b"x" * 65536),
        (b"\xc5\x00\x01a", b"\xc4\x01a"),
        (b"\xa2\xc3\x28", b"\xa2\xc3\x28"),
        (pack(True), b"\xc3"),
        (pack(uuid_ext(UUID)), pack(uuid_ext(UUID))),
        (pack(datetime_ext(7, 0, 180, 947)), pack(datetime_ext(7))),
        (pack(datetime_ext(7, 5, 180)), pack(datetime_ext(7, 5))),
    ],
    ids=lambda raw: raw.hex()[:24],
)
def test_a_part(raw: bytes, expected: bytes) -> None:
    assert key_of(raw) == expected
    if expected[0] not in (0xD8, 0xC7) or raw == expected:
        assert key_of(expected) == expected, "a canonical key is its own canonical form"


@pytest.mark.parametrize("kind", ["number", "scalar"])
@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        *(("9007199254740994", True), ("-9223372036854775808", True), ("1152921504606846976", True)),
        *(("1000000000000001", True), ("-9007199254740990", False), ("9007199254740995", False)),
        *(("18446744073709549568", True), ("18446744073709551615", False), ("18446744073709551616", False)),
        *(("-9223372036854777856", False), ("999999999999999", False), ("9007199254740994.5", False)),
    ],
)
def test_a_decimal_that_is_one_key_with_an_integer_but_not_with_the_double(
    text: str, is_refused: bool, kind: str
) -> None:
    """The server compares a decimal with a double by 15 digits, and either one with an integer exactly."""
    raw = b"\x91" + pack(decimal_ext(text))
    found = canonical_keys(binaries([raw, raw]), [space(KeyPart(0, kind))]).to_pylist()
    assert [row["key"] is None for row in found] == [is_refused] * 2
    assert not is_refused or "two keys" in found[0]["error"]
    as_decimal = canonical_keys(binaries([raw]), [space(KeyPart(0, "decimal"))]).to_pylist()
    assert as_decimal[0]["error"] is None


@pytest.mark.parametrize("kind", ["number", "scalar", "decimal"])
@pytest.mark.parametrize("text", ["2", "2.0", "0.5"])
def test_a_decimal_in_a_hash_index_is_refused(text: str, kind: str) -> None:
    """The server has three rows for the keys 2, decimal 2 and decimal 2.0 (`test_mixed_numbers_live`)."""
    hashed = replace(space(KeyPart(0, kind)), is_hashed=True)
    raw = b"\x91" + pack(decimal_ext(text))
    (found,) = canonical_keys(binaries([raw]), [hashed]).to_pylist()
    assert found["key"] is None
    assert "a HASH index takes equal decimals of different digits for different keys" in found["error"]
    if kind != "decimal":
        (whole,) = canonical_keys(binaries([pack([2.0])]), [hashed]).to_pylist()
        assert whole["key"] == pack([2])


def test_unsigned_keys_keep_their_encoding_as_the_index_compares_it() -> None:
    assert [key_of(raw, "unsigned") for raw in (b"\x02", b"\xcd\x00\x02")] == [b"\x02", b"\xcd\x00\x02"]
    assert [key_of(raw, "integer") for raw in (b"\x02", b"\xcd\x00\x02")] == [b"\x02", b"\x02"]


def test_double_keys_compare_as_doubles() -> None:
    assert key_of(pack(2**53 + 1), "double") == key_of(double(2.0**53), "double") == pack(2**53)
    assert key_of(pack(2**64 - 1), "double") == double(2.0**64)
    assert key_of(pack(2**53 + 1), "number") != key_of(double(2.0**53), "number")


def test_many_parts_in_the_order_of_the_key() -> None:
    parts = [
        KeyPart(3, "string"),
        KeyPart(0, "unsigned"),
        KeyPart(2, "string", "[2].x"),
        KeyPart(1, "boolean"),
    ]
    tuples = binaries([pack([7, True, [1, {"x": "t"}], "s", "more"])])
    (row,) = canonical_keys(tuples, [space(*parts)]).to_pylist()
    assert row == {"key": pack(["s", 7, "t", True]), "error": None}
    assert canonical_keys(binaries([row["key"]]), [space(*parts)], from_tuple=False).to_pylist() == [row]


def test_more_than_fifteen_parts() -> None:
    parts = [KeyPart(field, "unsigned") for field in range(20)]
    (row,) = canonical_keys(binaries([pack(list(range(20)))]), [space(*parts)]).to_pylist()
    assert msgpack.unpackb(row["key"]) == list(range(20))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".a", {"b": 1, "a": "x"}),
        ("a", {"a": "x"}),
        ("[2]", ["no", "x"]),
        ('["a b"]', {"a": "no", "a b": "x"}),
        ("['ключ'][1].z", {"ключ": [{"z": "x"}]}),
        (".a[2][1]", {"a": [0, ["x"]]}),
        (".a.b.c", {1: 2, "a": {"b": {"c": "x"}}}),
    ],
)
def test_a_json_path(path: str, value: Any) -> None:
    parts = space(KeyPart(1, "string", path), KeyPart(0, "unsigned"))
    (row,) = canonical_keys(binaries([pack([5, value])]), [parts]).to_pylist()
    assert row == {"key": pack(["x", 5]), "error": None}


@pytest.mark.parametrize("value", [{}, {"b": 1}, [], ["x"], "x", 5, {b"a": "x"}, {"a": []}, None])
def test_a_json_path_that_leads_nowhere(value: Any) -> None:
    (row,) = canonical_keys(binaries([pack([value])]), [space(KeyPart(0, "string", ".a[1]"))]).to_pylist()
    assert row == {"key": None, "error": "space things: key part 1 (field 1.a[1]) is missing"}


@pytest.mark.parametrize(
    ("raw", "from_tuple", "reason"),
    [
        (b"", True, "not a MessagePack array, bytes that are not MessagePack found"),
        (b"\x81\x01\x02", True, "not a MessagePack array, map found"),
        (pack([1]), True, "key part 2 (field 2) is missing"),
        (pack([1, 2]), True, "key part 2 (field 2): string expected, unsigned found"),
        (pack([None, "a"]), True, "key part 1 (field 1): unsigned expected, nil found"),
        (pack([1, b"a"]), False, "key part 2 (field 2): string expected, varbinary found"),
        (pack([1]), False, "the key has 1 parts, the primary key 2"),
        (pack([1, "a", 2]), False, "the key has 3 parts, the primary key 2"),
        (b"\x92\x01\xa5abc", True, "not a MessagePack array, bytes that are not MessagePack found"),
        (b"\x92\xc1\xa1a", True, "not a MessagePack array, bytes that are not MessagePack found"),
    ],
)
def test_a_row_without_a_key(raw: bytes, from_tuple: bool, reason: str) -> None:
    things = space(KeyPart(0, "unsigned"), KeyPart(1, "string"))
    rows = canonical_keys(binaries([pack([1, "a"]), raw, pack([2, "b"])]), [things], from_tuple=from_tuple)
    assert rows.to_pylist()[1] == {"key": None, "error": f"space things: {reason}"}
    assert rows.field("key").to_pylist()[::2] == [pack([1, "a"]), pack([2, "b"])]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal", msgpack.ExtType(1, b"\x00\xaa")),
        ("uuid", msgpack.ExtType(2, b"short")),
        ("datetime", msgpack.ExtType(4, b"short")),
        ("scalar", datetime_ext(0, 10**9)),
    ],
)
def test_an_extension_that_is_not_valid(kind: str, value: Any) -> None:
    (row,) = canonical_keys(binaries([pack([value])]), [space(KeyPart(0, kind))]).to_pylist()
    assert row["key"] is None
    assert row["error"].endswith("is not valid")


def test_rows_of_many_spaces_at_once() -> None:
    spaces = [space(KeyPart(0, "unsigned")), space(KeyPart(1, "string"), name="other"), space(name="bare")]
    rows: list[bytes | None] = [
        pack([1, "a"]),
        pack([1, "a"]),
        pack([9]),
        None,
        pack([1]),
        pack([1]),
        pack(["k"]),
    ]
    which = pa.array([0, 1, 0, 0, 2, 7, 1], pa.int32())
    whole = pa.array([True, True, False, True, True, True, False])
    found = canonical_keys(binaries(rows), spaces, which, whole)
    assert found.field("key").to_pylist() == [
        pack([1]),
        pack(["a"]),
        pack([9]),
        None,
        None,
        None,
        pack(["k"]),
    ]
    assert found.field("error").to_pylist() == [
        *[None] * 4,
        "there is no primary key with index 2",
        "there is no primary key with index 7",
        None,
    ]
    sliced = canonical_keys(binaries(rows).slice(1, 5), spaces, which.slice(1, 5), whole.slice(1, 5))
    assert sliced.to_pylist() == found.to_pylist()[1:6]


def test_a_missing_index_is_an_error_not_a_guess() -> None:
    found = canonical_keys(
        binaries([pack([1])]), [space(KeyPart(0, "unsigned"))], pa.array([None], pa.int32())
    )
    assert found.to_pylist() == [{"key": None, "error": "there is no primary key with index -1"}]


def test_no_rows() -> None:
    found = canonical_keys(binaries([]), [space(KeyPart(0, "unsigned"))])
    assert len(found) == 0


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (KeyPart(1, "string", collation=2), "the primary key compares field 2 by collation 2"),
        (KeyPart(0, "scalar", collation=1), "the primary key compares field 1 by collation 1"),
        (KeyPart(0, "map"), "a primary key part of type map is not known"),
        (KeyPart(0, "polygon"), "a primary key part of type polygon is not known"),
        (KeyPart(0, "string", path=".a[*]"), "the JSON path .a[*] of an index part has several values"),
        (KeyPart(0, "string", path=".a["), "the JSON path .a[ of an index part is not valid"),
    ],
)
def test_unsupported_keys_are_refused_by_name(part: KeyPart, reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        key_plan([space(KeyPart(0, "unsigned")), space(part, name="odd")])
    assert caught.value.reason == reason
    assert caught.value.fields["space"] == "odd"


@pytest.mark.parametrize("collation", [None, 0, 3])
def test_collations_that_compare_bytes(collation: int | None) -> None:
    text = canonical_keys(binaries([pack(["É"])]), [space(KeyPart(0, "string", collation=collation))])
    number = canonical_keys(binaries([pack([7])]), [space(KeyPart(0, "unsigned", collation=2))])
    assert [text[0].as_py()["key"], number[0].as_py()["key"]] == [pack(["É"]), pack([7])]


def test_a_plan_travels_to_workers() -> None:
    plan = pickle.loads(pickle.dumps(key_plan([space(KeyPart(0, "string", ".a"))])))
    assert canonical_keys_with_plan(binaries([pack([{"a": "x"}])]), plan).to_pylist() == [
        {"key": pack(["x"]), "error": None}
    ]


REALS = (
    st.floats(allow_nan=False)
    | st.integers(-(2**70), 2**70).map(float)
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**15), max_value=10**15).map(float)
)


def said_by(real: float) -> Decimal | float:
    """Return the number that a double equals: an integer, a decimal of 15 digits, or only itself."""
    if math.isfinite(real):
        if real.is_integer() and -(2.0**63) <= real < 2.0**64:
            return EXACT.create_decimal(int(real))
        text = f"{real:.15g}"
        if float(text) == real and 1e-38 <= abs(real) < 1e38:
            return EXACT.normalize(Decimal(text))
    return real


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(REALS | st.floats(1e-38, 1e-20) | st.floats(1e20, 1e38), min_size=1, max_size=50))
def test_doubles_against_python(reals: list[float]) -> None:
    keys = canonical_keys(binaries([b"\x91" + double(real) for real in reals]), [space(KeyPart(0, "number"))])
    for real, key in zip(reals, keys.field("key").to_pylist(), strict=True):
        expected = said_by(real)
        if isinstance(expected, float):
            assert key == b"\x91" + double(real)
        else:
            assert key[1:] == key_of(pack(decimal_ext(expected)), "decimal"), (real, expected)


NUMBERS = st.decimals(
    allow_nan=False, allow_infinity=False, min_value=Decimal("-1E+37"), max_value=Decimal("1E+37")
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(NUMBERS.filter(lambda number: len(number.as_tuple().digits) <= 38), min_size=1, max_size=30))
def test_equal_numbers_are_equal_keys(numbers: list[Decimal]) -> None:
    longer = [
        EXACT.quantize(number, Decimal((0, (1,), min(int(number.as_tuple().exponent), 0))))
        for number in numbers
    ]
    rows = [decimal_ext(number) for number in numbers] + [
        decimal_ext(same) for same in longer if len(same.as_tuple().digits) <= 38
    ]
    values = numbers + [same for same in longer if len(same.as_tuple().digits) <= 38]
    keys = canonical_keys(binaries([pack([row]) for row in rows]), [space(KeyPart(0, "decimal"))])
    assert keys.field("error").null_count == len(rows)
    by_value: dict[Decimal, set[bytes]] = {}
    for value, key in zip(values, keys.field("key").to_pylist(), strict=True):
        by_value.setdefault(EXACT.normalize(value) + 0, set()).add(key)
    assert all(len(found) == 1 for found in by_value.values())
    assert len(set().union(*by_value.values())) == len(by_value)
