"""One odd row of a system space: it refuses its space or is set aside by name; the job and all else continues.

Whoever can write a source's files can write any row; no server writes these.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas.iproto import BodyKey, RequestType, SystemSpace
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment

S, GOOD = 600, 601
KEY, TUPLE, OPERATIONS = int(BodyKey.KEY), int(BodyKey.TUPLE), int(BodyKey.OPS)
FORMAT: list[dict[str, Any]] = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string", "is_nullable": True},
]
PARTS: list[dict[str, Any]] = [{"field": 0, "type": "unsigned"}]

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
    "many_fields": space_tuple(format=[[f"f{i}", "any"] for i in range(20_000)]),
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


def done(
    folder: Path,
    a: Node,
    odd: Sequence[int] = (S,),
    origins: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> Deployment:
    """Return what two replicasets gave, after a second start too, with one more row in each odd space."""
    b = good(folder, "b1")
    a.put(GOOD, 2, "behind", 1, 1).close()
    b.close()
    sources, replicasets = {"a1": a.path, "b1": b.path}, replicasets_of("a1", "b1")
    deployment = Deployment(folder, sources, replicasets, origins=origins or {}, **settings)
    deployment.run()
    a.put(GOOD, 3, "later", 1, 1)
    for number in odd:
        a.put(number, 9, "later")
    a.close()
    deployment.run()
    assert sorted(row["id"] for row in deployment.rows("good", ["id"])) == [1, 2, 3], "the others continue"
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


def all_odd() -> dict[int, tuple[str, list[Any], list[Any]]]:
    """Return a space for each odd row: by id what is odd, and the rows of `_space` and `_index`."""
    found = {}
    for number, (name, row) in enumerate(ODD_SPACES.items(), start=700):
        found[number] = (f"space: {name}", [number, *row[1:]], [number, *INDEX[1:]])
    for number, (name, row) in enumerate(ODD_INDEXES.items(), start=800):
        sound = space_tuple(id=number, name=f"index_{name}")
        found[number] = (f"index: {name}", sound, [number, *row[1:]])
    return found


def check_refused(deployment: Deployment, rows: list[int]) -> None:
    """Check that all odd spaces are refused by name, and that their rows are in `_changelog` alone."""
    log: dict[int, list[int]] = {}
    for row in deployment.rows("_changelog", ["space_id", "tuple", "replicaset_id"]):
        if row["space_id"] is not None and row["space_id"] >= 700:
            log.setdefault(row["space_id"], []).append(msgpack.unpackb(row["tuple"])[0])
    states = {
        row["space_id"]: row for row in sorted(deployment.rows("_schema"), key=lambda row: row["epoch"])
    }
    for number, (what, _, _) in all_odd().items():
        assert states[number]["state"].startswith("refused: "), what
        assert states[number]["name"], what
        assert sorted(log[number]) == rows, what
    assert deployment.rows("_pending") == []


def test_spaces_that_cannot_be_understood_are_refused(tmp_path: Path) -> None:
    a = good(tmp_path, "a1")
    for number, (_, space, index) in all_odd().items():
        insert(insert(a, SystemSpace.SPACE, space), SystemSpace.INDEX, index).put(number, 1, "x")
    deployment = done(tmp_path, a, [*all_odd()])
    check_refused(deployment, [1, 9])
    tables = {row["table_name"] for row in deployment.rows("_schema", ["table_name"])}
    assert tables == {"good", None}


def test_spaces_that_had_a_table_are_followed_no_longer(tmp_path: Path) -> None:
    """Their rows so far stay; the batch after that, and a start, find the odd definition in the state."""
    a = good(tmp_path, "a1")
    for number in all_odd():
        insert(a, SystemSpace.SPACE, space_tuple(id=number, name=f"s{number}"))
        insert(a, SystemSpace.INDEX, [number, *INDEX[1:]]).put(number, 1, "x")
    a.close()
    for number, (what, space, index) in all_odd().items():
        row = (SystemSpace.SPACE, space) if what.startswith("space") else (SystemSpace.INDEX, index)
        a.row(RequestType.REPLACE, row[0], {TUPLE: row[1]}).put(number, 2, "y")
    a.close()
    deployment = done(tmp_path, a, [*all_odd()])
    check_refused(deployment, [1, 2, 9])
    for number, (what, _, _) in all_odd().items():
        assert [row["id"] for row in deployment.rows(f"s{number}", ["id"])] == [1], what


ODD_ROWS: tuple[tuple[SystemSpace, dict[int, Any]], ...] = (
    (SystemSpace.SPACE, {TUPLE: ["x", 1, "odd", "memtx", 0, {}, []]}),
    (SystemSpace.SPACE, {TUPLE: []}),
    (SystemSpace.SPACE, {TUPLE: [2**40, 1, "odd", "memtx", 0, {}, []]}),
    (SystemSpace.SPACE, {TUPLE: [-1, 1, "odd", "memtx", 0, {}, []]}),
    (SystemSpace.SPACE, {TUPLE: [{"a": 1}]}),
    (SystemSpace.SPACE, {TUPLE: [{(1, 2): 1}]}),
    (SystemSpace.SPACE, {TUPLE: [True, 1, "odd", "memtx", 0, {}, []]}),
    (SystemSpace.SPACE, {}),
    (SystemSpace.INDEX, {TUPLE: ["x", 0, "pk", "tree", {}, []]}),
    (SystemSpace.INDEX, {TUPLE: [GOOD, "x", "pk", "tree", {}, []]}),
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
)


def test_system_rows_of_nothing_are_set_aside(tmp_path: Path) -> None:
    a = good(tmp_path, "a1")
    first = 6
    for space_id, content in ODD_ROWS:
        a.row(RequestType.REPLACE, space_id, content)
    deployment = done(tmp_path, a)
    found = sorted(deployment.rows("_quarantine"), key=lambda row: row["lsn"])
    names = [f"_{space_id.name.lower()}" for space_id, _ in ODD_ROWS]
    assert [row["space"] for row in found] == names
    assert all(row["reason"] and row["file"] and row["position"] and row["replicaset_id"] for row in found)
    assert found[0]["lsn"] < first
    uuids = {row["uuid"] for row in deployment.rows("_cluster", ["uuid"])}
    assert len(uuids) == 3, "the aggregator's own, and one of each replicaset"


def test_odd_rows_of_the_schema_name_no_version(tmp_path: Path) -> None:
    node = good(tmp_path, "a1")
    odd: Sequence[list[Any]] = ([], ["x", 1, 1], [2, -1, 0], [99999, 0, 0], [[], {}, None], [True, 1, 1])
    for numbers in odd:
        node.row(RequestType.REPLACE, SystemSpace.SCHEMA, {TUPLE: ["version", *numbers]})
    deployment = done(tmp_path, node.update(GOOD, 1, ["=", 1, "changed"]), odd=())
    rows = deployment.rows("_changelog", ["server_version", "space_id"])
    assert {row["server_version"] for row in rows if row["space_id"] == GOOD} == {"2.6.0"}


@pytest.mark.parametrize("origins", [False, True])
def test_a_source_with_odd_members_is_read(tmp_path: Path, origins: bool) -> None:
    """A whitelist, and a source that is new to its replicaset, ask the files for `_cluster` themselves."""
    a = good(tmp_path, "a1")
    for space_id, content in ODD_ROWS:
        if space_id == SystemSpace.CLUSTER:
            a.row(RequestType.REPLACE, space_id, content)
    a.close()
    settings = {"a1": [a.uuid]} if origins else {}
    done(tmp_path, a, origins=settings)


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
    a = insert(
        insert(good(tmp_path, "a1"), SystemSpace.SPACE, space_tuple(format=7)), SystemSpace.INDEX, INDEX
    )
    a.put(S, 1, "x")
    deployment = done(tmp_path, a, spaces={"exclude": ["odd"]})
    assert state_of(deployment)[1] == "present"


@pytest.mark.parametrize("body", [{2: "x", 3: 1}, {2: 1, 3: {}}, [1], 5, {2: [], 3: None}, {(1, 2): 3}])
def test_a_row_that_settles_nothing_it_can_name_holds_its_replicaset(tmp_path: Path, body: Any) -> None:
    a, b = good(tmp_path, "a1"), good(tmp_path, "b1")
    a._row(RequestType.RAFT_CONFIRM, msgpack.packb(body), 1.0)
    a.put(GOOD, 2, "behind", 1, 1).close()
    b.put(GOOD, 3, "x", 1, 1)
    deployment = Deployment.aggregated(tmp_path, a, b)
    assert sorted(row["id"] for row in deployment.rows("good", ["id"])) == [1, 3]
    reasons = {row["reason"] for row in deployment.rows("_pending", ["reason"])}
    assert len(reasons) == 1
    assert "RAFT_CONFIRM" in reasons.pop()


@pytest.mark.parametrize("space_id", [SystemSpace.SPACE, SystemSpace.CLUSTER, SystemSpace.TRUNCATE])
def test_a_row_of_an_unknown_type_in_a_system_space_holds_its_replicaset(
    tmp_path: Path, space_id: SystemSpace
) -> None:
    a, b = good(tmp_path, "a1"), good(tmp_path, "b1")
    a.row(27, space_id, {0x99: [S]}).put(GOOD, 2, "behind", 1, 1).close()
    b.put(GOOD, 3, "x", 1, 1)
    deployment = Deployment.aggregated(tmp_path, a, b)
    assert sorted(row["id"] for row in deployment.rows("good", ["id"])) == [1, 3]
    reasons = {row["reason"] for row in deployment.rows("_pending", ["reason"])}
    assert len(reasons) == 1
    assert f"TYPE_27 in the system space {int(space_id)}" in reasons.pop()
