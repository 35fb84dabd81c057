"""Masked fields in the main job: readers see none of them, and results are the same as without masks."""

import hmac
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from schemas.errors import UnsupportedError
from tests.jobs.deployment import Deployment
from tests.jobs.written import FIELDS, Node, replicasets_of

KEY = "not a guess: 6c1f0be2"
PEOPLE, OTHER = 700, 701
MASKS: dict[str, Any] = {"peo*": {"name": "drop", "value": "hash", "elsewhere": "drop"}}
SECRETS = ("Ann", "Bob", "Cid", "Dan", 1000, 1007, 2000, 2009, 3000)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", KEY)


def hashed(text: Any) -> str:
    return hmac.new(KEY.encode(), str(text).encode(), "sha256").hexdigest()


class Case:
    """Two replicasets with people, and the views of readers and of the aggregator."""

    def __init__(self, folder: Path, masks: dict[str, Any], **settings: Any) -> None:
        self.nodes = {name: Node(folder, name) for name in ("a1", "b1")}
        for node in self.nodes.values():
            node.define(PEOPLE, "people").define(OTHER, "other")
        spaces = {"masks": masks, "mask_key_env": "MASK_KEY"}
        sources = {name: node.path for name, node in self.nodes.items()}
        policies = {"spaces": {"people": {"sequence": ["value"]}}}
        own = {"policies": policies, "spaces": spaces, **settings}
        self.deployment = Deployment(folder, sources, replicasets_of(*sources), **own)

    def run(self, **changes: Any) -> None:
        for node in self.nodes.values():
            if node.is_open:
                node.close()
        self.deployment.write(**changes)

    def with_masks(self, masks: dict[str, Any]) -> dict[str, Any]:
        return {"spaces": {"masks": masks, "mask_key_env": "MASK_KEY"}}

    def shown(self, table: str = "people") -> list[dict[str, Any]]:
        return sorted(self.deployment.rows(table), key=lambda row: int(row["id"]))

    def tuples(self, table: str = "_exact_people") -> list[Any]:
        return self.deployment.fields(table)

    def columns(self, table: str = "people") -> list[str]:
        path = self.deployment.folder / "warehouse" / f"{self.deployment.database}.db" / table
        return [field.name for field in DeltaTable(str(path)).schema().fields]


OWN = ("_key", "_global_id", "_replicaset_id", "_lsn", "_timestamp", "_created")


def test_readers_see_no_masked_field_and_operations_do(tmp_path: Path) -> None:
    case = Case(tmp_path, MASKS)
    a, b = case.nodes["a1"], case.nodes["b1"]
    a.put(PEOPLE, 1, "Ann", 1000, 1).put(PEOPLE, 2, "Bob", 2000, 1).put(PEOPLE, 4, "Dan", None, 1, "past")
    a.put(OTHER, 1, "Ann", 1000, 1)
    b.put(PEOPLE, 3, "Cid", 3000, 1)
    case.run()
    assert case.columns() == ["id", "value", "updated", "_inexact", "_misfits", *OWN]
    assert {"_tuple", "_extra", "name"} <= set(case.columns("other"))
    assert [row["value"] for row in case.shown()] == [hashed(1000), hashed(2000), hashed(3000), None]
    # What is added to and compared is the value, not its hash: B's version of 2 is the greater one.
    a.update(PEOPLE, 1, ["+", 2, 7], at=5).delete(PEOPLE, 4, at=5)
    b.put(PEOPLE, 2, "Bob", 2008, 1, at=4).update(PEOPLE, 2, ["+", 2, 1], at=5)
    case.run()
    exact = [[1, "Ann", 1007, 1], [2, "Bob", 2009, 1], [3, "Cid", 3000, 1]]
    assert case.tuples() == exact
    assert [(int(row["id"]), row["value"], row["_replicaset_id"]) for row in case.shown()] == [
        (1, hashed(1007), 1),
        (2, hashed(2009), 2),
        (3, hashed(3000), 2),
    ]
    same = ("id", "updated", *OWN[1:])
    held = sorted(case.deployment.rows("_exact_people", same), key=lambda row: int(row["id"]))
    assert [{name: row[name] for name in same} for row in case.shown()] == held
    assert not [value for row in case.shown() for value in row.values() if value in SECRETS]


@pytest.mark.soak
def test_masks_are_added_changed_and_removed_without_new_rows(tmp_path: Path) -> None:
    case = Case(tmp_path, {})
    case.nodes["a1"].put(PEOPLE, 1, "Ann", 1000, 1)
    case.run()
    assert case.tuples("people") == [[1, "Ann", 1000, 1]]
    case.run(**case.with_masks(MASKS))
    assert ("_tuple" in case.columns(), case.shown()[0]["value"]) == (False, hashed(1000))
    case.run(**case.with_masks({"people": {"value": "drop", "name": "hash"}}))
    assert "value" not in case.columns()
    assert case.shown()[0]["name"] == hashed("Ann")
    case.nodes["a1"].update(PEOPLE, 1, ["+", 2, 1], at=2)
    case.run(**case.with_masks({}))
    assert case.tuples("people") == [[1, "Ann", 1001, 1]]
    assert case.tuples() == []
    epochs = case.deployment.rows("_epochs", ["epoch", "query_id"])
    assert [row["query_id"] for row in sorted(epochs, key=lambda row: row["epoch"])].count("masked") == 3


@pytest.mark.soak
def test_a_field_that_comes_later_is_masked_from_its_first_row(tmp_path: Path) -> None:
    case = Case(tmp_path, {"people": {"phone": "hash"}})
    a = case.nodes["a1"].put(PEOPLE, 1, "Ann", 1000, 1)
    case.run()
    assert case.tuples("people") == [[1, "Ann", 1000, 1]]
    a.redefine(PEOPLE, "people", [*FIELDS, ("phone", "string")]).put(PEOPLE, 2, "Bob", 1, 1, "+1")
    case.run()
    assert [row["phone"] for row in case.shown()] == [None, hashed("+1")]
    assert case.tuples() == [[1, "Ann", 1000, 1], [2, "Bob", 1, 1, "+1"]]


@pytest.mark.soak
def test_a_masked_key_is_refused_by_name(tmp_path: Path) -> None:
    case = Case(tmp_path, {"people": {"id": "hash"}})
    case.nodes["a1"].put(PEOPLE, 1, "Ann", 1000, 1)
    case.run()
    assert case.deployment.refused_spaces() == {"people"}
    assert case.columns("other")
    # Where it has a table already, nothing continues as if it were masked.
    other = Case(tmp_path / "other", {})
    other.nodes["a1"].put(PEOPLE, 1, "Ann", 1000, 1)
    other.run()
    with pytest.raises(UnsupportedError, match="id: a field of the primary key cannot be masked"):
        other.run(**other.with_masks({"people": {"id": "drop"}}))


@pytest.mark.soak
def test_a_space_that_is_renamed_takes_its_mask_along_or_stops(tmp_path: Path) -> None:
    case = Case(
        tmp_path, {"peo*": {"name": "drop", "value": "hash"}, "staff": {"name": "drop", "value": "hash"}}
    )
    a = case.nodes["a1"].put(PEOPLE, 1, "Ann", 1000, 1).put(PEOPLE, 2, "Bob", 2000, 1)
    case.nodes["b1"].put(OTHER, 3, "Cid", 3000, 1)
    case.run()
    a.put(PEOPLE, 1, "Ann", 1007, 1, at=2).redefine(PEOPLE, "staff").delete(PEOPLE, 2, at=3)
    a.put(PEOPLE, 4, "Dan", 3000, 1, at=3).update(PEOPLE, 1, ["+", 2, 2], at=4)
    case.run()
    assert case.tuples("_exact_staff") == [[1, "Ann", 1009, 1], [4, "Dan", 3000, 1]]
    assert [(int(row["id"]), row["value"]) for row in case.shown("staff")] == [
        (1, hashed(1009)),
        (4, hashed(3000)),
    ]
    assert not {"name", "_tuple"} & set(case.columns("staff"))
    # Under a name without a mask, nothing of it is written, and what was there is not shown again.
    a.redefine(PEOPLE, "open").put(PEOPLE, 5, "Dan", 1000, 1, at=5)
    case.run()
    assert case.deployment.refused_spaces() == {"open"}
    assert case.deployment.rows("open") == []
    assert case.tuples("_exact_staff") == [[1, "Ann", 1009, 1], [4, "Dan", 3000, 1]]
    shown = [row for table in ("people", "staff") for row in case.shown(table)]
    assert not [value for row in shown for value in row.values() if value in SECRETS]
