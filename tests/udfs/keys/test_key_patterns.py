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


@pytest.mark.parametrize("data", ["91d080", "91d1ff80", "91d2ffffff80", "91d3ffffffffffffff80"])
def test_the_least_number_of_a_size_is_found(data: str) -> None:
    assert found([-128], ["integer"], bytes.fromhex(data))


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
