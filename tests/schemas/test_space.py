"""Which parts of secondary indexes a space has: those that decide how a sum is encoded."""

from typing import Any

import msgpack
import pytest

from schemas.space import KeyPart, space_of_rows

SPACE = [600, 1, "s", "memtx", 0, {}, [["id", "unsigned"], ["n", "number"], ["d", "double"], ["s", "string"]]]
PRIMARY = [600, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]]


def index(number: int, *parts: Any, **options: Any) -> list[Any]:
    return [600, number, f"i{number}", "tree", {"unique": False, **options}, list(parts)]


def parts_of_rows(*indexes: list[Any]) -> tuple[KeyPart, ...]:
    rows = {one[1]: msgpack.packb(one) for one in (*indexes, PRIMARY)}
    return space_of_rows(SPACE, rows).secondary_parts


def test_only_parts_of_fields_that_are_a_floating_point_number_somewhere_are_kept() -> None:
    of_double, of_string = index(1, [2, "number"], [1, "number"]), index(2, [3, "string"])
    assert parts_of_rows(of_double, of_string) == (KeyPart(2, "number"),)
    narrow = index(3, {"field": 1, "type": "double", "is_nullable": True}, {"field": 3, "type": "string"})
    expected = (KeyPart(2, "number"), KeyPart(1, "number"), KeyPart(1, "double"))
    assert parts_of_rows(narrow, of_string, of_double) == expected


@pytest.mark.parametrize(
    "ignored",
    [
        pytest.param(index(1, [1, "double"], func=65), id="functional"),
        pytest.param([600, 1, "i1"], id="cut off"),
        pytest.param(index(1, "double"), id="malformed"),
    ],
)
def test_an_index_that_says_nothing_of_fields_is_ignored(ignored: list[Any]) -> None:
    assert parts_of_rows(ignored) == ()
    assert parts_of_rows(ignored, index(2, [1, "double"])) == (KeyPart(1, "double"),)
