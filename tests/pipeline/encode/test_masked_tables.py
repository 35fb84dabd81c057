"""Tables of masked spaces without a stream: what readers see when formats, types and masks change."""

import hmac
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.written import FIELDS, Node
from tests.pipeline.deployment import Deployment

KEY = "not a guess: 6c1f0be2"
ID, NAME, VALUE, UPDATED = FIELDS


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", KEY)


def deployed(folder: Path, node: Node, **masks: str) -> Deployment:
    return Deployment.aggregated(folder, node, spaces=masked(**masks))


def masked(**masks: str) -> dict[str, Any]:
    return {"masks": {"people": masks}, "mask_key_env": "MASK_KEY"}


def shown(made: Deployment, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in made.rows("people"))


def hashed(text: str) -> str:
    return hmac.new(KEY.encode(), text.encode(), "sha256").hexdigest()


def test_a_row_changes_together_with_the_type_of_a_field(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, "Ann", 1, 1).put(600, 2, "Bob", 2, 2)
    node.close()
    made = deployed(tmp_path, node, name="drop")
    node.redefine(600, "people", [ID, NAME, VALUE, ("updated", "integer")]).put(600, 1, "Ann", 1, -5).close()
    made.run()
    assert shown(made, "id", "value", "updated") == [(1, 1, -5), (2, 2, 2)]


def test_readers_see_nowhere_that_a_value_which_they_do_not_see_is_inexact(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people", [ID, ("name", "number"), ("value", "number")])
    large = 2**63 + 1
    node.put(600, 1, large, 1).put(600, 2, 1, large).put(600, 3, large, large).put(600, 4, 1, 1).close()
    made = deployed(tmp_path, node, name="drop")
    assert [row[1] for row in shown(made, "id", "_inexact")] == [None, "value", "value", None]
    exact = sorted((row["id"], row["_inexact"]) for row in made.rows("_exact_people"))
    assert [row[1] for row in exact] == ["name", "value", "name,value", None]


def test_the_hash_of_a_value_of_any_type_is_that_of_its_json(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people", [ID, ("name", "any"), VALUE])
    node.put(600, 1, 5, 5).put(600, 2, {"x": [1, "y"]}, None).put(600, 3, None, 1).close()
    made = deployed(tmp_path, node, name="hash", value="hash")
    expected = [
        (1, hashed("5"), hashed("5")),
        (2, hashed('{"x":[1,"y"]}'), None),
        (3, None, hashed("1")),
    ]
    assert shown(made, "id", "name", "value") == expected
    made.settings["spaces"] = masked(name="hash")
    made.run()
    assert [row[:2] for row in shown(made, "id", "name")] == [row[:2] for row in expected]


def test_another_mask_comes_together_with_other_columns(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, "Ann", 1, 1).put(600, 2, "Bob", 2, 2)
    node.close()
    made = deployed(tmp_path, node, value="drop")
    made.settings["spaces"] = {**masked(updated="drop"), "strings": {"people": "binary"}}
    made.run()
    assert shown(made, "id", "name", "value") == [(1, b"Ann", 1), (2, b"Bob", 2)]
    node.put(600, 1, "Cid", 3, 1).close()
    made.run()
    assert shown(made, "id", "name", "value") == [(1, b"Cid", 3), (2, b"Bob", 2)]
