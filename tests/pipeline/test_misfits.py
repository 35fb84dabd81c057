"""A row never leaves its table because of a type: the column that does not hold a value is null, and is named."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from config.policies import Policy
from pipeline.commit.load import load_state
from pipeline.requests.rebuild import plan_rebuild, write_rebuild
from schemas.layout import MISFITS_COLUMN
from tests.jobs.written import FIELDS, Node
from tests.pipeline.deployment import Deployment
from warehouse.lock.lock import WriterLock
from warehouse.warehouse import Warehouse

BAD = "caf\udce9"
"""`café` in Latin-1, as msgpack packs it with `surrogateescape`."""

BEYOND = 2**64 - 1
TYPED = ("id", "name", "value", "updated")


def packed(*fields: Any) -> bytes:
    data: bytes = msgpack.packb(list(fields), unicode_errors="surrogateescape")
    return data


def rows_of(deployment: Deployment, table: str = "people") -> dict[int, tuple[Any, ...]]:
    """Return of each row its columns `name`, `value`, and `_misfits`, by `id`."""
    found = deployment.rows(table)
    return {int(row["id"]): (row["name"], row["value"], row.get(MISFITS_COLUMN)) for row in found}


def quarantined(deployment: Deployment) -> list[tuple[Any, ...]]:
    """Return (epoch, lsn, misfits, reason) of the rows of `_quarantine`."""
    names = ("epoch", "lsn", "misfits", "reason")
    return sorted((tuple(row[name] for name in names) for row in deployment.rows("_quarantine")), key=repr)


def test_the_columns_that_fit_are_filled(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people")
    node.put(600, 1, "fine", 1, 1).put(600, 2, BAD, 2, 1).put(600, 3, BAD, BEYOND, 1).put(600, 4, "x", BEYOND)
    made = Deployment.aggregated(tmp_path, node)
    assert rows_of(made) == {
        1: ("fine", 1, None),
        2: (None, 2, ["name"]),
        3: (None, None, ["name", "value"]),
        4: ("x", None, ["value"]),
    }
    assert made.tuples("people") == sorted(
        [packed(1, "fine", 1, 1), packed(2, BAD, 2, 1), packed(3, BAD, BEYOND, 1), packed(4, "x", BEYOND)]
    )
    text, number = (
        "field name: the string is not UTF-8; `spaces.strings: {people: binary}` keeps its bytes",
        "field value: a number beyond the range of bigint; `types.integer: precise` keeps it",
    )
    assert [one[2:] for one in quarantined(made)] == [
        (["name"], text),
        (["name", "value"], f"{text}; {number}"),
        (["value"], number),
    ]
    assert not made.rows("_versions")
    state = load_state(Warehouse(None, made.config().warehouse, "aggregator"))
    assert not state.writers["people"].has_unfit


@pytest.mark.parametrize("kind", ["string", "unsigned", "integer"])
def test_a_key_that_its_column_does_not_hold_is_a_key(tmp_path: Path, kind: str) -> None:
    keys: dict[str, tuple[Any, ...]] = {
        "string": ("plain", BAD, "\udcff"),
        "unsigned": (1, BEYOND, 2**63),
        "integer": (-1, BEYOND, 2**63),
    }
    node = Node(tmp_path, "a1").define(600, "people", [("id", kind), ("name", "string")])
    for key in keys[kind]:
        node.put(600, key, "x")
    made = Deployment.aggregated(tmp_path, node, types={"unsigned": "long"})
    node.put(600, keys[kind][1], "changed").put(600, keys[kind][2], BAD).close()
    made.run()
    found = sorted((row["_tuple"], row["id"], row["name"], row["_misfits"]) for row in made.rows("people"))
    assert found == sorted(
        [
            (packed(keys[kind][0], "x"), keys[kind][0], "x", None),
            (packed(keys[kind][1], "changed"), None, "changed", ["id"]),
            (packed(keys[kind][2], BAD), None, None, ["id", "name"]),
        ]
    )
    assert len(made.rows("_quarantine")) == 4


def test_a_version_is_reported_once_and_a_change_that_fits_ends_it(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, BAD, 1, 1).put(600, 2, "x", 1, 1)
    made = Deployment.aggregated(tmp_path, node)
    node.update(600, 2, ["=", 2, 5]).close()
    made.run()
    assert [one[:2] for one in quarantined(made)] == [(0, 4)]
    node.update(600, 1, ["=", 2, 7]).close()
    made.run()
    assert rows_of(made)[1] == (None, 7, ["name"])
    assert [one[:2] for one in quarantined(made)] == [(0, 4), (2, 7)]
    node.update(600, 1, ["=", 1, "good"]).close()
    made.run()
    assert rows_of(made)[1] == ("good", 7, None)
    node.put(600, 1, BAD, 8, 1).delete(600, 1).close()
    made.run()
    assert set(rows_of(made)) == {2}
    assert len(quarantined(made)) == 2


def test_a_version_takes_part_in_the_choice(tmp_path: Path) -> None:
    a, b = Node(tmp_path, "a1").define(600, "people"), Node(tmp_path, "b1").define(600, "people")
    a.put(600, 1, BAD, 1, 1, at=20).put(600, 2, BAD, 1, 1, at=5).close()
    b.put(600, 1, "b", 2, 1, at=10).put(600, 2, "b", 2, 1, at=10)
    made = Deployment.aggregated(tmp_path, a, b)
    assert rows_of(made) == {1: (None, 1, ["name"]), 2: ("b", 2, None)}
    assert [one[1:3] for one in quarantined(made)] == [(4, ["name"])]
    assert sorted(row["loser_tuple"] for row in made.rows("_conflicts")) == [
        packed(1, "b", 2, 1),
        packed(2, BAD, 1, 1),
    ]
    b.delete(600, 2, at=30).close()
    made.run()
    assert rows_of(made)[2] == (None, 1, ["name"])
    assert [one[1:3] for one in quarantined(made)] == [(4, ["name"]), (5, ["name"])]


def test_a_policy_makes_tuples_that_do_not_fit(tmp_path: Path) -> None:
    a, b = Node(tmp_path, "a1").define(600, "people"), Node(tmp_path, "b1").define(600, "people")
    a.put(600, 1, BAD, 2**62, 1, at=20).close()
    b.put(600, 1, "b", 2**62, 1, at=10).close()
    policies = {"default": {"policy": "sum", "columns": ["value"]}}
    made = Deployment.aggregated(tmp_path, a, b, policies=policies)
    assert rows_of(made) == {1: (None, None, ["name", "value"])}
    assert made.tuples("people") == [packed(1, BAD, 2**63, 1)]


def test_strings_of_a_space_or_of_a_field_are_bytes(tmp_path: Path) -> None:
    fields = [*FIELDS, ("more", "string")]
    node = Node(tmp_path, "a1")
    for number, space in enumerate(("old_one", "old_two", "people")):
        node.define(600 + number, space, fields).put(600 + number, 1, BAD, 1, 1, BAD)
    node.close()
    strings = {"old_*": "binary", "people": {"name": "binary", "value": "binary"}}
    made = Deployment.aggregated(tmp_path, node, spaces={"strings": strings})
    for space in ("old_one", "old_two"):
        (row,) = made.rows(space)
        assert (row["name"], row["more"], row["value"], row["_misfits"]) == (b"caf\xe9", b"caf\xe9", 1, None)
    (row,) = made.rows("people")
    assert (row["name"], row["more"], row["value"], row["_misfits"]) == (b"caf\xe9", None, 1, ["more"])


def test_the_choice_of_bytes_writes_a_table_again_with_its_next_change(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, BAD, 1, 1).put(600, 2, "x", 1, 1)
    made = Deployment.aggregated(tmp_path, node)
    node.put(600, 3, "y", 1, 1).close()
    made.settings["spaces"] = {"strings": {"people": "binary"}}
    made.run()
    assert rows_of(made) == {1: (b"caf\xe9", 1, None), 2: (b"x", 1, None), 3: (b"y", 1, None)}
    node.put(600, 4, "z", 1, 1).close()
    made.settings["spaces"] = {}
    made.run()
    assert rows_of(made) == {
        1: (None, 1, ["name"]),
        2: ("x", 1, None),
        3: ("y", 1, None),
        4: ("z", 1, None),
    }


def set_aside(tmp_path: Path) -> tuple[Deployment, Node, Node]:
    """Return a deployment that has set rows aside so far, and does so no longer."""
    a, b = Node(tmp_path, "a1").define(600, "people"), Node(tmp_path, "b1").define(600, "people")
    a.put(600, 1, BAD, 1, 1, at=20).put(600, 2, BAD, 1, 1, at=20).put(600, 3, BAD, 1, 1, at=20)
    a.put(600, 4, BAD, 1, 1, at=20).put(600, 5, "x", 1, 1, at=20).close()
    b.put(600, 1, "b", 2, 1, at=10)
    made = Deployment.aggregated(tmp_path, a, b, spaces={"misfits": {"p*": "quarantine"}})
    return made, a, b


def test_a_space_may_have_them_set_aside(tmp_path: Path) -> None:
    made, a, b = set_aside(tmp_path)
    assert set(rows_of(made)) == {5}
    assert {row["state"] for row in made.rows("_versions") if row["replicaset_id"] == 1} == {"unfit"}
    assert {one[2] for one in quarantined(made)} == {None}
    count = len(quarantined(made))
    b.put(600, 1, "b", 3, 1, at=11).close()
    made.run()
    assert set(rows_of(made)) == {5}
    assert len(quarantined(made)) == count
    a.update(600, 1, ["=", 1, "good"], at=21).close()
    made.run()
    assert rows_of(made)[1] == ("good", 1, None)


def test_rows_that_were_set_aside_come_back_when_their_key_changes(tmp_path: Path) -> None:
    made, a, b = set_aside(tmp_path)
    made.settings["spaces"] = {}
    b.put(600, 1, "b", 3, 1, at=11).close()
    a.update(600, 2, ["=", 2, 9], at=21).delete(600, 3, at=21).close()
    made.run()
    assert rows_of(made) == {1: (None, 1, ["name"]), 2: (None, 9, ["name"]), 5: ("x", 1, None)}
    made.run()
    a.redefine(600, "persons").close()
    b.redefine(600, "persons").close()
    made.run()
    assert rows_of(made, "persons") == {
        1: (None, 1, ["name"]),
        2: (None, 9, ["name"]),
        4: (None, 1, ["name"]),
        5: ("x", 1, None),
    }


def test_a_rebuild_brings_all_of_them_back(tmp_path: Path) -> None:
    made, _, _ = set_aside(tmp_path)
    made.settings["spaces"] = {}
    config = made.config()
    warehouse = Warehouse(None, config.warehouse, config.database)
    for changed in (4, 0):
        with WriterLock(warehouse, "a test"):
            state = load_state(warehouse)
            found = plan_rebuild(warehouse.open_tables, state, config, "people", config.policies.of("people"))
            assert found.changed_keys == changed
            write_rebuild(warehouse.open_tables, state, found, "rebuilt")
        assert rows_of(made) == {
            **{number: (None, 1, ["name"]) for number in (1, 2, 3, 4)},
            5: ("x", 1, None),
        }


def test_a_rebuild_gives_a_table_the_columns_that_are_chosen_now(tmp_path: Path) -> None:
    a, b = (Node(tmp_path, name).define(600, "people") for name in ("a1", "b1"))
    a.put(600, 1, BAD, 1, 1, at=10).put(600, 2, "x", 1, 1, at=10).close()
    b.put(600, 1, "b", 2, 1, at=20)
    made = Deployment.aggregated(tmp_path, a, b)
    assert rows_of(made) == {1: ("b", 2, None), 2: ("x", 1, None)}
    made.settings["spaces"] = {"strings": {"people": "binary"}}
    config, policy = made.config(), Policy(policy="min", column="value")
    warehouse = Warehouse(None, config.warehouse, config.database)
    with WriterLock(warehouse, "a test"):
        state = load_state(warehouse)
        found = plan_rebuild(warehouse.open_tables, state, config, "people", policy)
        write_rebuild(warehouse.open_tables, state, found, "rebuilt")
    assert rows_of(made) == {1: (b"caf\xe9", 1, None), 2: (b"x", 1, None)}


def test_readers_of_a_masked_space_hear_nothing_of_what_they_do_not_see(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people", [*FIELDS, ("more", "string")])
    node.put(600, 1, BAD, BEYOND, 1, "x").put(600, 2, BAD, 1, 1, BAD).put(600, 3, "x", 1, 1, "x").close()
    masks = {"people": {"name": "drop"}}
    made = Deployment.aggregated(tmp_path, node, spaces={"masks": masks})
    found = {int(row["id"]): row["_misfits"] for row in made.rows("people")}
    assert found == {1: ["value"], 2: ["more"], 3: None}
    exact = {int(row["id"]): row["_misfits"] for row in made.rows("_exact_people")}
    assert exact == {1: ["name", "value"], 2: ["name", "more"], 3: None}


def test_a_format_that_changes_keeps_what_does_not_fit(tmp_path: Path) -> None:
    node = (
        Node(tmp_path, "a1").define(600, "people").put(600, 1, BAD, 1, 1, "more").put(600, 2, "x", BEYOND, 1)
    )
    made = Deployment.aggregated(tmp_path, node)
    node.redefine(600, "people", [*FIELDS, ("more", "string")]).put(600, 3, "x", 1, 1, BAD).close()
    made.run()
    found = {int(row["id"]): (row["name"], row["more"], row["_misfits"]) for row in made.rows("people")}
    assert found == {1: (None, "more", ["name"]), 2: ("x", None, ["value"]), 3: ("x", None, ["more"])}
