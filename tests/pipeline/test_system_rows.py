"""One odd row of a system space: it refuses its space or is set aside by name; the job and all else goes on.

Whoever can write a source's files can write any row; no server writes these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas.iproto import BodyKey, RequestType, SystemSpace
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment

S, GOOD = 600, 601
KEY, TUPLE, OPERATIONS = int(BodyKey.KEY), int(BodyKey.TUPLE), int(BodyKey.OPS)
FORMAT = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string", "is_nullable": True}]
PARTS = [{"field": 0, "type": "unsigned"}]

INDEX = [S, 0, "pk", "tree", {"unique": True}, PARTS]


def space_tuple(**changed: Any) -> list[Any]:
    names = ("id", "owner", "name", "engine", "field_count", "flags", "format")
    row = dict(zip(names, [S, 1, "odd", "memtx", 0, {}, FORMAT], strict=True)) | changed
    return list(row.values())


def field(**changed: Any) -> list[Any]:
    return [FORMAT[0], {**FORMAT[1], **changed}]


ODD_SPACES: dict[str, list[Any]] = {
    "short": [S, 1, "odd"],
    "owner": space_tuple(owner="x"),
    "name": space_tuple(name=5),
    "name_nil": space_tuple(name=None),
    "name_bytes": space_tuple(name="odd\udcff"),
    "engine": space_tuple(engine={}),
    "format_number": space_tuple(format=7),
    "format_map": space_tuple(format={"name": "x"}),
    "format_of_numbers": space_tuple(format=[1, 2]),
    "format_of_empty": space_tuple(format=[[]]),
    "field_twice": space_tuple(format=[FORMAT[0]] * 2),
    "field_type": space_tuple(format=field(type=1)),
    "field_type_unknown": space_tuple(format=field(type="hyperreal")),
    "field_name": space_tuple(format=field(name=[1])),
    "field_name_bytes": space_tuple(format=field(name="\udcff")),
    "field_name_long": space_tuple(format=field(name="x" * 70_000)),
    "many_fields": space_tuple(format=[["f%d" % i, "any"] for i in range(20_000)]),
}

ODD_INDEXES: dict[str, list[Any]] = {
    "short": INDEX[:5],
    "parts_number": [*INDEX[:5], 5],
    "parts_none": [*INDEX[:5], [None]],
    "parts_empty_part": [*INDEX[:5], [[]]],
    "part_without_field": [*INDEX[:5], [{"type": "unsigned"}]],
    "part_field_text": [*INDEX[:5], [{"field": "id", "type": "unsigned"}]],
    "part_field_negative": [*INDEX[:5], [{"field": -1, "type": "unsigned"}]],
    "part_field_huge": [*INDEX[:5], [{"field": 2**63, "type": "unsigned"}]],
    "part_type": [*INDEX[:5], [{"field": 0, "type": 9}]],
    "part_type_unknown": [*INDEX[:5], [{"field": 0, "type": "map"}]],
    "part_path": [*INDEX[:5], [{"field": 0, "type": "unsigned", "path": 5}]],
    "part_path_bad": [*INDEX[:5], [{"field": 0, "type": "unsigned", "path": "[[["}]],
    "part_path_bytes": [*INDEX[:5], [{"field": 0, "type": "unsigned", "path": ".\udcff"}]],
    "part_collation": [*INDEX[:5], [{"field": 1, "type": "string", "collation": {}}]],
    "part_twice": [*INDEX[:5], PARTS * 2],
    "many_parts": [*INDEX[:5], [{"field": i, "type": "unsigned"} for i in range(300)]],
}


def good(folder: Path, name: str) -> Node:
    """Return a replicaset with a space that nothing is wrong with."""
    return Node(folder, name).define(GOOD, "good").put(GOOD, 1, name, 1, 1)


def insert(node: Node, space_id: int, fields: Any) -> Node:
    return node.row(RequestType.INSERT, space_id, {TUPLE: fields})


def done(folder: Path, a: Node, **settings: Any) -> Deployment:
    """Return what two replicasets gave, after a second start too."""
    b = good(folder, "b1")
    a.put(GOOD, 2, "behind", 1, 1)
    a.close()
    b.close()
    settings = {"policies": {"default": {"policy": "last_write_wins"}}, **settings}
    deployment = Deployment(folder, {"a1": a.path, "b1": b.path}, replicasets_of("a1", "b1"), **settings)
    deployment.run()
    a.put(GOOD, 3, "later", 1, 1).put(S, 9, "later")
    a.close()
    deployment.run()
    assert sorted(row["id"] for row in deployment.rows("good", ["id"])) == [1, 2, 3], "the others go on"
    return deployment


def state_of(deployment: Deployment, space_id: int = S) -> tuple[str, str]:
    rows = sorted(deployment.rows("_schema"), key=lambda row: row["epoch"])
    return next((row["name"], row["state"]) for row in reversed(rows) if row["space_id"] == space_id)


def quarantined(deployment: Deployment) -> list[tuple[str, str]]:
    return [(row["space"], row["reason"]) for row in deployment.rows("_quarantine", ["space", "reason"])]


def logged(deployment: Deployment) -> list[int]:
    """Return the ids of the rows of the odd space in `_changelog`."""
    rows = deployment.rows("_changelog", ["space_id", "tuple"])
    return sorted(msgpack.unpackb(row["tuple"])[0] for row in rows if row["space_id"] == S)


@pytest.mark.parametrize("odd", ODD_SPACES)
def test_a_space_that_cannot_be_understood_is_refused(tmp_path: Path, odd: str) -> None:
    a = insert(insert(good(tmp_path, "a1"), SystemSpace.SPACE, ODD_SPACES[odd]), SystemSpace.INDEX, INDEX)
    a.put(S, 1, "x")
    deployment = done(tmp_path, a)
    name, state = state_of(deployment)
    assert state.startswith("refused: ")
    assert name
    assert logged(deployment) == [1, 9]
    assert deployment.rows("odd") == []
    assert deployment.rows("_pending") == []


@pytest.mark.parametrize("odd", ODD_INDEXES)
def test_a_primary_key_that_cannot_be_understood_refuses_its_space(tmp_path: Path, odd: str) -> None:
    a = insert(good(tmp_path, "a1"), SystemSpace.SPACE, space_tuple())
    insert(a, SystemSpace.INDEX, ODD_INDEXES[odd]).put(S, 1, "x")
    deployment = done(tmp_path, a)
    name, state = state_of(deployment)
    assert name == "odd"
    assert state.startswith("refused: ")
    assert logged(deployment) == [1, 9]
    assert deployment.rows("odd") == []
    assert deployment.rows("_pending") == []


@pytest.mark.parametrize("odd", [*ODD_SPACES, *(f"index_{name}" for name in ODD_INDEXES)])
def test_a_space_that_had_a_table_is_followed_no_longer(tmp_path: Path, odd: str) -> None:
    """Its rows so far stay; the batch after that, and a start, find the odd definition in the state."""
    a = insert(insert(good(tmp_path, "a1"), SystemSpace.SPACE, space_tuple()), SystemSpace.INDEX, INDEX)
    a.put(S, 1, "x")
    a.close()
    is_index = odd.startswith("index_")
    fields = ODD_INDEXES[odd.removeprefix("index_")] if is_index else ODD_SPACES[odd]
    a.row(RequestType.REPLACE, SystemSpace.INDEX if is_index else SystemSpace.SPACE, {TUPLE: fields})
    a.put(S, 2, "y")
    a.close()
    deployment = done(tmp_path, a)
    assert state_of(deployment)[1].startswith("refused: ")
    assert [row["id"] for row in deployment.rows("odd", ["id"])] == [1]
    assert logged(deployment) == [1, 2, 9]


@pytest.mark.parametrize(
    ("space_id", "content"),
    [
        (SystemSpace.SPACE, {TUPLE: ["x", 1, "odd", "memtx", 0, {}, []]}),
        (SystemSpace.SPACE, {TUPLE: []}),
        (SystemSpace.SPACE, {TUPLE: [2**40, 1, "odd", "memtx", 0, {}, []]}),
        (SystemSpace.SPACE, {TUPLE: [-1, 1, "odd", "memtx", 0, {}, []]}),
        (SystemSpace.SPACE, {TUPLE: [{"a": 1}]}),
        (SystemSpace.SPACE, {TUPLE: [True, 1, "odd", "memtx", 0, {}, []]}),
        (SystemSpace.SPACE, {}),
        (SystemSpace.INDEX, {TUPLE: ["x", 0, "pk", "tree", {}, []]}),
        (SystemSpace.INDEX, {TUPLE: []}),
        (SystemSpace.TRUNCATE, {TUPLE: ["x", 1]}),
        (SystemSpace.TRUNCATE, {TUPLE: [None]}),
        (SystemSpace.CLUSTER, {TUPLE: [2, "5"]}),
        (SystemSpace.CLUSTER, {TUPLE: [2, None]}),
        (SystemSpace.CLUSTER, {TUPLE: [2]}),
        (SystemSpace.CLUSTER, {TUPLE: ["2", "a0000000-0000-4000-8000-000000000002"]}),
        (SystemSpace.CLUSTER, {TUPLE: [99, "a0000000-0000-4000-8000-000000000002"]}),
        (SystemSpace.CLUSTER, {TUPLE: [0, "a0000000-0000-4000-8000-000000000002"]}),
        (SystemSpace.CLUSTER, {TUPLE: [2, "{a0000000-0000-4000-8000-000000000002}"]}),
        (SystemSpace.CLUSTER, {TUPLE: [2, "\udcff"]}),
    ],
)
def test_a_system_row_of_nothing_is_set_aside(
    tmp_path: Path, space_id: int, content: dict[int, Any]
) -> None:
    a = good(tmp_path, "a1").row(RequestType.REPLACE, space_id, content)
    deployment = done(tmp_path, a)
    ((space, reason),) = quarantined(deployment)
    assert space == SystemSpace(space_id).name.lower().join(["_", ""])
    assert reason
    uuids = {row["uuid"] for row in deployment.rows("_cluster", ["uuid"])}
    assert not uuids & {"5", None, ""}


def test_a_changed_definition_that_cannot_be_computed_refuses_its_space(tmp_path: Path) -> None:
    a = insert(insert(good(tmp_path, "a1"), SystemSpace.SPACE, space_tuple()), SystemSpace.INDEX, INDEX)
    a.put(S, 1, "x")
    a.row(RequestType.UPDATE, SystemSpace.SPACE, {KEY: [S], TUPLE: [["+", 2, 1]]}).put(S, 2, "y")
    deployment = done(tmp_path, a)
    assert state_of(deployment)[1].startswith("refused: ")
    assert "odd" in state_of(deployment)[0]
    assert [space for space, _ in quarantined(deployment)] == ["_space"]
    assert logged(deployment) == [1, 2, 9]


def test_a_definition_that_changes_its_id_refuses_its_space(tmp_path: Path) -> None:
    a = insert(insert(good(tmp_path, "a1"), SystemSpace.SPACE, space_tuple()), SystemSpace.INDEX, INDEX)
    a.put(S, 1, "x").row(RequestType.UPDATE, SystemSpace.SPACE, {KEY: [S], TUPLE: [["=", 0, GOOD]]})
    deployment = done(tmp_path, a)
    assert state_of(deployment)[1].startswith("refused: ")
    assert state_of(deployment, GOOD) == ("good", "present")


def test_a_refused_space_is_followed_again_once_it_is_dropped_and_sound(tmp_path: Path) -> None:
    a = insert(insert(good(tmp_path, "a1"), SystemSpace.SPACE, ODD_SPACES["name"]), SystemSpace.INDEX, INDEX)
    a.put(S, 1, "x").row(RequestType.DELETE, SystemSpace.INDEX, {KEY: [S, 0]})
    a.row(RequestType.DELETE, SystemSpace.SPACE, {KEY: [S]})
    insert(insert(a, SystemSpace.SPACE, space_tuple()), SystemSpace.INDEX, INDEX).put(S, 2, "y")
    deployment = done(tmp_path, a)
    assert state_of(deployment) == ("odd", "present")
    assert sorted(row["id"] for row in deployment.rows("odd", ["id"])) == [2, 9]


def test_a_refused_space_that_is_excluded_is_named_nowhere(tmp_path: Path) -> None:
    a = insert(insert(good(tmp_path, "a1"), SystemSpace.SPACE, space_tuple(format=7)), SystemSpace.INDEX, INDEX)
    a.put(S, 1, "x")
    deployment = done(tmp_path, a, spaces={"exclude": ["odd"]})
    assert state_of(deployment)[1] == "present"


@pytest.mark.parametrize("body", [{2: "x", 3: 1}, {2: 1, 3: {}}, [1], 5, {2: [], 3: None}, {(1, 2): 3}])
def test_a_row_that_settles_nothing_it_can_name_holds_its_replicaset(tmp_path: Path, body: Any) -> None:
    a, b = good(tmp_path, "a1"), good(tmp_path, "b1")
    a._row(RequestType.RAFT_CONFIRM, msgpack.packb(body), 1.0)  # noqa: SLF001 (no body that is not a map)
    a.put(GOOD, 2, "behind", 1, 1)
    a.close()
    b.put(GOOD, 3, "x", 1, 1)
    b.close()
    deployment = Deployment(tmp_path, {"a1": a.path, "b1": b.path}, replicasets_of("a1", "b1"))
    deployment.run()
    assert sorted(row["id"] for row in deployment.rows("good", ["id"])) == [1, 3]
    reasons = {row["reason"] for row in deployment.rows("_pending", ["reason"])}
    assert len(reasons) == 1
    assert "RAFT_CONFIRM" in reasons.pop()
