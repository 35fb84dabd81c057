"""Tuples that a policy has made, and what servers would say of them."""

import uuid
from typing import Any

import msgpack
import pytest

from pipeline.replication_out.definitions import Index, ServedSpace, misfit_reason
from schemas.space import Field, KeyPart

PK = Index(0, "pk", "tree", (KeyPart(0, "unsigned"),))
UUID = msgpack.ExtType(2, uuid.UUID(int=1).bytes)
DECIMAL, DATETIME = msgpack.ExtType(1, b"\x00\x1c"), msgpack.ExtType(4, bytes(8))


def reason(space: ServedSpace, *values: Any) -> str | None:
    return misfit_reason(space, msgpack.packb(values))


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        ("unsigned", [0, 2**64 - 1], [-1, 1.0, "1", True, DECIMAL]),
        ("integer", [-1, 2**63], [1.0, False]),
        ("number", [-1, 1.5, DECIMAL], ["1", True, UUID]),
        ("double", [1.0], [1, DECIMAL]),
        ("decimal", [DECIMAL], [1, 1.0]),
        ("string", ["x"], [b"x", 1]),
        ("varbinary", [b"x"], ["x"]),
        ("boolean", [True], [1]),
        ("uuid", [UUID], ["x", DECIMAL]),
        ("datetime", [DATETIME], [UUID, 1]),
        ("array", [[1]], [{"a": 1}, "x"]),
        ("map", [{"a": 1}], [[1]]),
        ("scalar", [1, "x", UUID, True], [[1], {"a": 1}]),
        ("any", [None, 1, [1], {"a": 1}], []),
        ("unheard", [], [1]),
    ],
)
def test_types(kind: str, taken: list[Any], refused: list[Any]) -> None:
    space = ServedSpace("s", (Field("id", "unsigned"), Field("value", kind)), (PK,))
    assert [reason(space, 1, value) for value in taken] == [None] * len(taken)
    assert [reason(space, 1, value) for value in refused] == [f"field value is not of type {kind}"] * len(
        refused
    )


def test_nulls_and_missing_fields() -> None:
    fields = (Field("id", "unsigned"), Field("name", "string"), Field("more", "string", is_nullable=True))
    space = ServedSpace("s", fields, (PK,))
    assert reason(space, 1, "x") is None
    assert reason(space, 1, "x", None) is None
    assert reason(space, 1, None) == "field name is not of type string"
    assert reason(space, 1) == "field name is not of type string"
    assert reason(ServedSpace("s", fields, (PK,), field_count=3), 1, "x") == "it has 2 fields, not 3"


@pytest.mark.parametrize(("path", "value"), [(".a", {"a": "x"}), ("[2].b", [1, {"b": "x"}])])
def test_parts_of_indexes(path: str, value: Any) -> None:
    index = Index(1, "by", "tree", (KeyPart(1, "string", path),))
    space = ServedSpace("s", (Field("id", "unsigned"),), (PK, index))
    assert reason(space, 1, value) is None
    for other in ({"a": 1}, [1], None, {"c": "x"}, "x"):
        assert reason(space, 1, other) == "a part of index by is not of type string"
    assert reason(space, "1", value) == "field id is not of type unsigned"


def test_what_is_no_tuple() -> None:
    space = ServedSpace("s", (), (PK,))
    assert misfit_reason(space, b"\xc1") is not None
    assert misfit_reason(space, msgpack.packb({"a": 1})) is not None
