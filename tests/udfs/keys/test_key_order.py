"""Keys as comparable bytes, against an independently written order."""

import itertools
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from schemas.space import KeyPart, Space
from tests.oracle.keys import bound_of, order_of, parts_of, searched
from tests.udfs.messages import decimal_ext, uuid_ext
from udfs.keys.key_order import directions_of, key_order, ordered_keys
from udfs.keys.keys import canonical_prefixes, key_plan

NUMBERS = [
    0,
    1,
    -1,
    127,
    128,
    -128,
    2**53 + 1,
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    -0.5,
    0.3,
    1e300,
    float("-inf"),
    2.0,
]
NUMBERS += [decimal_ext(Decimal(text)) for text in ("0.3", "0.25", "-1.5", "12345678901234567890.5", "1")]
TEXTS = ["", "\0", "a", "a\0", "ab", "b", "я", b"", b"a", b"\0\1"]
OTHERS = [True, False, uuid_ext("64d22e4d-ac92-4a23-899a-e59f34af5479")]


def ordered(keys: list[list[Any]], *parts: KeyPart) -> list[bytes]:
    space = Space(1, 1, "s", "memtx", (), parts)
    found = canonical_prefixes(pa.array([msgpack.packb(key) for key in keys]), key_plan([space]))
    assert found.field("error").null_count == len(keys)
    order = key_order([directions_of(space)])
    return list(ordered_keys(found.field("key"), order, np.zeros(len(keys), np.int32)).to_pylist())


def test_a_scalar_part_orders_by_class_and_value() -> None:
    values = [*NUMBERS, *TEXTS, *OTHERS]
    found = ordered([[value] for value in values], KeyPart(0, "scalar"))
    own = parts_of([[0, "scalar"]])
    orders = [order_of(searched(msgpack.packb([value]), own)) for value in values]
    for one, other in itertools.product(range(len(values)), repeat=2):
        expected = (orders[one] > orders[other]) - (orders[one] < orders[other])
        assert (found[one] > found[other]) - (found[one] < found[other]) == expected, (
            values[one],
            values[other],
        )


def test_first_parts_are_at_or_below_their_keys_and_above_those_before() -> None:
    parts = (KeyPart(0, "integer"), KeyPart(1, "string"))
    own = parts_of([[0, "integer"], [1, "string"]])
    keys: list[Any] = [[number, text] for number in (-1, 0, 1, 300) for text in ("", "a", "b")]
    bounds: list[Any] = [[], *([number] for number in (-1, 0, 1, 2, 300)), *keys]
    found, edges = ordered(keys, *parts), ordered(bounds, *parts)
    for (key, order), (bound, edge) in itertools.product(
        zip(keys, found, strict=True), zip(bounds, edges, strict=True)
    ):
        key_bytes, first = order_of(searched(msgpack.packb(key), own)), bound_of(msgpack.packb(bound), own)
        assert (order >= edge) == (key_bytes[: len(first)] >= first), (key, bound)


@pytest.mark.parametrize("is_descending", [True, False])
def test_a_descending_part_is_the_other_way_round(is_descending: bool) -> None:
    parts = (KeyPart(0, "string", is_descending=is_descending), KeyPart(1, "unsigned"))
    keys: list[Any] = [["b", 1], ["b", 2], ["ab", 1], ["a", 1], ["a", 9], ["", 0]]
    found = ordered(keys, *parts)
    expected = sorted(keys, key=lambda key: key[1])
    expected = sorted(expected, key=lambda key: key[0], reverse=is_descending)
    assert [key for _, key in sorted(zip(found, keys, strict=True))] == expected


def test_keys_without_a_definition_are_left_out() -> None:
    order = key_order([(False,)])
    keys = pa.array([msgpack.packb([1]), None, msgpack.packb([1])], pa.binary())
    found = ordered_keys(keys, order, np.array([0, 0, -1], np.int32))
    assert [one is None for one in found.to_pylist()] == [False, True, True]
