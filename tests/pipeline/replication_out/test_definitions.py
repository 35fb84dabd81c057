"""One definition of a space out of several: every tuple of each replicaset fits it."""

from typing import Any

import msgpack
import pytest

from pipeline.replication_out.definitions import (
    ReplicasetSpace,
    ServedSpace,
    assign_space_ids,
    merge_definitions,
    space_from_rows,
)
from schemas.errors import TupleError

UNSIGNED, STRING = {"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}
PK = [512, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]]
NAME = [512, 1, "name", "tree", {"unique": True}, [[1, "string"]]]


def definition(fields: list[Any], *indexes: Any, engine: str = "memtx", count: int = 0) -> ReplicasetSpace:
    space = [512, 1, "s", engine, count, {}, fields]
    return ReplicasetSpace(msgpack.packb(space), {row[1]: msgpack.packb(row) for row in (indexes or (PK,))})


def fields_of(space: ServedSpace) -> list[tuple[str, str, bool]]:
    return [(one.name, one.type, one.is_nullable) for one in space.fields]


@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        ([[UNSIGNED, STRING]] * 2, [("id", "unsigned", False), ("name", "string", False)]),
        ([[UNSIGNED, STRING], [UNSIGNED]], [("id", "unsigned", False), ("name", "any", True)]),
        (
            [[UNSIGNED, STRING], [UNSIGNED, STRING | {"type": "scalar"}]],
            [("id", "unsigned", False), ("name", "any", False)],
        ),
        (
            [[UNSIGNED, STRING | {"is_nullable": True}], [UNSIGNED, STRING]],
            [("id", "unsigned", False), ("name", "string", True)],
        ),
        ([[UNSIGNED, STRING], [UNSIGNED, {"name": "age", "type": "string"}]], [("id", "unsigned", False)]),
        ([[STRING], [UNSIGNED]], []),
        ([[], [UNSIGNED, STRING]], [("id", "unsigned", False), ("name", "any", True)]),
    ],
)
def test_formats(formats: list[list[Any]], expected: list[tuple[str, str, bool]]) -> None:
    found = merge_definitions("s", [definition(fields) for fields in formats])
    assert fields_of(found.space) == expected


@pytest.mark.parametrize(
    ("types", "widest"),
    [
        (("unsigned", "unsigned"), "unsigned"),
        (("unsigned", "integer"), "integer"),
        (("unsigned", "number"), "number"),
        (("integer", "double", "decimal"), "number"),
        (("unsigned", "string"), "scalar"),
    ],
)
def test_types_of_keys(types: tuple[str, ...], widest: str) -> None:
    space = merge_definitions(
        "s",
        [definition([UNSIGNED | {"type": t}], [*PK[:5], [{"field": 0, "type": t}]]) for t in types],
    ).space
    assert [part.type for part in space.primary.parts] == [widest]
    assert space.fields[0].type == widest


def test_secondary_indexes_are_not_unique() -> None:
    found = merge_definitions("s", [definition([UNSIGNED, STRING], PK, NAME)])
    name = found.space.indexes[1]
    assert found.space.index_tuple(name) == [
        *(0, 1, "name", "tree", {"unique": False}),
        [{"field": 1, "type": "string"}],
    ]
    assert found.space.index_tuple(found.space.primary)[4] == {"unique": True}
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ([512, 1, "f", "tree", {"unique": True, "func": 66}, [[0, "string"]]], "computed by a function"),
        (
            [512, 1, "f", "tree", {}, [{"field": 1, "type": "string", "collation": 7}]],
            "its collation is not one of",
        ),
        ([512, 1, "f", "art", {}, [[1, "string"]]], "its type is art"),
        (
            [512, 1, "f", "tree", {}, [{"field": 1, "type": "string", "exclude_null": True}]],
            "leaves out nulls",
        ),
    ],
)
def test_indexes_that_are_left_out(index: list[Any], why: str) -> None:
    found = merge_definitions("s", [definition([UNSIGNED, STRING], PK, index)])
    assert len(found.space.indexes) == 1
    assert why in found.left_out[0]


def test_an_index_that_only_one_replicaset_has() -> None:
    both = [definition([UNSIGNED, STRING], PK, NAME), definition([UNSIGNED, STRING])]
    for definitions in (both, both[::-1]):
        found = merge_definitions("s", definitions)
        assert len(found.space.indexes) == 1
        assert found.left_out == ("index name: not all replicasets have it alike",)


def test_an_index_over_a_field_that_may_be_missing() -> None:
    nullable = [
        512,
        1,
        "name",
        "tree",
        {"unique": False},
        [{"field": 1, "type": "string", "is_nullable": True}],
    ]
    found = merge_definitions(
        "s",
        [
            definition([UNSIGNED, STRING], PK, NAME),
            definition([UNSIGNED, STRING | {"is_nullable": True}], PK, nullable),
        ],
    ).space
    assert found.fields[1].is_nullable
    assert found.indexes[1].parts[0].is_nullable


def test_an_index_other_than_a_tree_has_no_nulls() -> None:
    """Servers refuse such an index over a field that may be null, which one is that a format does not reach."""
    geo = [512, 1, "geo", "rtree", {"unique": False}, [[1, "array"]]]
    shape = {"name": "shape", "type": "array"}
    found = merge_definitions(
        "s", [definition([UNSIGNED, shape], PK, geo), definition([UNSIGNED], PK, geo)]
    ).space
    assert fields_of(found)[1] == ("shape", "array", False)
    assert not found.indexes[1].parts[0].is_nullable


def test_what_is_served_is_read_back() -> None:
    geo = [512, 2, "geo", "rtree", {"dimension": 3, "unique": False}, [[2, "array"]]]
    path = [512, 1, "name", "hash", {"unique": True}, [{"field": 3, "type": "string", "path": ".a"}]]
    fields = [UNSIGNED, STRING, {"name": "box", "type": "array"}, {"name": "map", "type": "map"}]
    space = merge_definitions("s", [definition(fields, PK, path, geo, engine="vinyl", count=4)]).space
    assert space.space_tuple()[3:5] == ["memtx", 4]
    assert [index.type for index in space.indexes] == ["tree", "tree", "rtree"]
    rows = {index.id: space.index_tuple(index) for index in space.indexes}
    assert space_from_rows(space.space_tuple(), rows) == space


def test_keys_that_differ_are_refused() -> None:
    with pytest.raises(TupleError, match="not the same in all replicasets"):
        merge_definitions("s", [definition([UNSIGNED]), definition([UNSIGNED], [*PK[:5], [[1, "unsigned"]]])])


def test_ids() -> None:
    space = merge_definitions("s", [definition([UNSIGNED])]).space
    spaces = dict.fromkeys(("a", "b", "c", "d"), space)
    assert assign_space_ids(spaces, {"b": 600}, {"a": 512, "c": 600, "d": 512}) == {
        "a": 512,
        "b": 600,
        "c": 601,
        "d": 602,
    }
