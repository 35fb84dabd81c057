"""The pattern finds every encoding of a key at the beginning of a tuple, and no other key."""

import re
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.space import KeyPart
from udfs.before_replace.row import encode
from udfs.keys.key_patterns import Value, begins_with_key, key_pattern


def found(values: list[Any], kinds: list[str], data: bytes) -> bool:
    pattern = key_pattern(values, [KeyPart(index, kind) for index, kind in enumerate(kinds)])
    assert pattern is not None
    return re.match(pattern, data.hex()) is not None


NUMBERS = st.integers(-(2**63), 2**64 - 1)


@given(NUMBERS, st.lists(NUMBERS, max_size=20))
def test_an_integer_is_found_in_the_usual_encoding(value: int, more: list[int]) -> None:
    assert found([value], ["integer"], msgpack.packb([value, *more]))


@given(st.text(), NUMBERS)
def test_several_parts_are_found_together(name: str, number: int) -> None:
    assert found([name, number], ["string", "integer"], msgpack.packb([name, number, "more"]))
    other = msgpack.packb([name, number ^ 1, "more"])
    assert not found([name, number], ["string", "integer"], other)


@pytest.mark.parametrize(
    "data", ["9107", "91cc07", "91cd0007", "91ce00000007", "91cf0000000000000007", "91d007"]
)
def test_every_encoding_of_a_number_is_found(data: str) -> None:
    assert found([7], ["unsigned"], bytes.fromhex(data))
    assert not found([8], ["unsigned"], bytes.fromhex(data))


@pytest.mark.parametrize(
    ("value", "kind", "encodings"),
    [
        (0, "unsigned", ["00", "cc00", "d000"]),
        (127, "unsigned", ["7f", "cc7f", "d07f", "d1007f"]),
        (128, "unsigned", ["cc80", "cd0080", "d10080"]),
        (256, "unsigned", ["cd0100", "d10100"]),
        (2**15 - 1, "unsigned", ["cd7fff", "d17fff"]),
        (2**64 - 1, "unsigned", ["cfffffffffffffffff"]),
        (-32, "integer", ["e0", "d0e0"]),
        (-33, "integer", ["d0df", "d1ffdf"]),
        (-129, "integer", ["d1ff7f"]),
        (-128, "integer", ["d080", "d1ff80", "d2ffffff80", "d3ffffffffffffff80"]),
        (False, "boolean", ["c2"]),
        ("ab", "string", ["a26162"]),
        ("x" * 31, "string", ["bf" + "78" * 31, "d91f" + "78" * 31, "da001f" + "78" * 31]),
        ("x" * 32, "string", ["d920" + "78" * 32, "db00000020" + "78" * 32]),
        (b"x" * 255, "varbinary", ["c4ff" + "78" * 255, "c500ff" + "78" * 255, "c6000000ff" + "78" * 255]),
        (b"x" * 256, "varbinary", ["c50100" + "78" * 256, "c600000100" + "78" * 256]),
        ((5, b"\x07\x08"), "any", ["c7020507" + "08", "d5050708"]),
    ],
)
def test_each_encoding_of_a_value_is_found(value: Value, kind: str, encodings: list[str]) -> None:
    assert all(found([value], [kind], bytes.fromhex("91" + one)) for one in encodings)


@pytest.mark.parametrize(
    ("values", "kinds", "data"),
    [
        ([128], ["unsigned"], "9180"),  # an empty map
        ([-33], ["integer"], "91df"),  # a map
        (["x" * 32], ["string"], "91a0" + "78" * 32),  # an empty text
        ([1, 5], ["unsigned", "unsigned"], "920106"),
        ([False], ["boolean"], "91c3"),
        ([3], ["unsigned"], encode([Decimal(3)]).hex()),
        (["1.5"], ["string"], encode([Decimal("1.5")]).hex()),
        (["2024-01-01"], ["string"], "91d704" + "00" * 8),
        (["a0000000-0000-4000-8000-000000000001"], ["string"], "91d802a00000000000400080" + "00" * 7 + "01"),
    ],
)
def test_what_only_looks_like_the_key_is_not_found(values: list[Value], kinds: list[str], data: str) -> None:
    assert not found(values, kinds, bytes.fromhex(data))


@pytest.mark.parametrize("data", ["91d704" + "00" * 8, "91d804" + "00" * 16, "91c70c04" + "00" * 12])
def test_a_datetime_is_found_whatever_its_text(data: str) -> None:
    assert found(["2024-01-01", 7], ["datetime", "unsigned"], bytes.fromhex(data))


def test_the_first_parts_of_a_key_are_found_without_the_others() -> None:
    assert found([7], ["unsigned", "string"], msgpack.packb([7, "more"]))


@pytest.mark.parametrize(
    ("asked", "kind", "value"),
    [
        (2, "number", 2.0),
        (2.5, "double", 2.5),
        ("1.5", "decimal", Decimal("1.50")),
        (3, "number", Decimal(3)),
        ("a0000000-0000-4000-8000-000000000001", "uuid", UUID("a0000000-0000-4000-8000-000000000001")),
        (b"\x00\xff", "varbinary", b"\x00\xff"),
        (True, "boolean", True),
        (None, "scalar", None),
    ],
)
def test_values_of_every_type_are_found(asked: Value, kind: str, value: Any) -> None:
    assert found([asked], [kind], encode([value, "x"]))


def test_only_a_key_at_the_beginning_of_the_tuple_leads() -> None:
    assert begins_with_key([KeyPart(0, "unsigned"), KeyPart(1, "string")])
    assert not begins_with_key([KeyPart(1, "unsigned")])
    assert not begins_with_key([KeyPart(0, "map", ".id")])
