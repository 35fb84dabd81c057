"""The story of a key: after its last change it has the server's tuple, in each replicaset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.who import described, lines, who
from observe.key_changes.reader import KeyChangesReader, Story
from observe.log_rows.catalog import LoggedSpace
from schemas.errors import ConfigurationError, WarehouseError
from schemas.names import table_name
from schemas.space import Space
from tests.pipeline.deployment import Deployment
from tests.truth import own
from udfs.before_replace.row import decode
from warehouse.place import Place, place_of

NODES = ("a1", "b1")
A_SPACE = 2
"""Keys of each space that are looked at: the first, the last, and some between."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    sources = {name: own().directory(name) for name in NODES}
    found = Deployment(tmp_path_factory.mktemp("story"), sources)
    found.run(150_000)
    return found


@pytest.fixture(scope="module")
def place(deployment: Deployment) -> Place:
    config = deployment.config()
    return place_of(config.warehouse, config.database)


def some_keys() -> Iterator[tuple[str, str, Space, bytes]]:
    for node in NODES:
        for name, space in own().global_spaces(node).items():
            tuples = own().tuples(node, name)
            chosen = tuples[:: max(1, len(tuples) // A_SPACE)] if space.primary_key else []
            yield from ((node, name, space, data) for data in chosen)


def last_after(story: Story, node: str) -> set[bytes]:
    """Return the tuples of a replicaset under a key; different encodings of an unsigned key are different keys."""
    uuid = own().info(node).replicaset_uuid
    found: dict[Any, bytes | None] = {}
    for step in story.steps:
        row = step.row
        if story.replicasets[row["replicaset_id"]] == uuid:
            definition = story.space.of(row["epoch"], row["replicaset_id"], row["space_id"])
            assert definition is not None or row["type"] in ("TRUNCATE", "DROP")
            if definition is not None:
                found[definition.key_of(row["key"], row["tuple"])] = step.after
            else:
                found.clear()
    return {data for data in found.values() if data is not None}


def test_the_last_tuple_of_each_key_is_the_servers(deployment: Deployment, place: Place) -> None:
    refused = {row["name"] for row in deployment.rows("_schema") if row["state"].startswith("refused")}
    reader, seen = KeyChangesReader(place), 0
    for node, name, space, data in some_keys():
        if name in refused:
            continue
        values = LoggedSpace(space).values_in(data)
        assert values is not None
        story = reader.story(name, [one if isinstance(one, bytes) else text(one) for one in values])
        assert data in last_after(story, node), (node, name, values)
        assert story.steps[-1].is_known
        seen += 1
    assert seen > 50


def test_operations_are_applied_by_the_rules_of_the_rows_server(place: Place) -> None:
    """Tarantool 2.6 refuses an operation that 2.8 accepts, so the two leave different tuples."""
    held = next(data for data in own().tuples("a1", "counters") if decode(data)[0] == "ups")
    assert last_after(KeyChangesReader(place).story("counters", ["ups"]), "a1") == {held}


def text(value: Any) -> Any:
    """Return a value in the form of a command line argument."""
    return value if isinstance(value, str | int | float) or value is None else str(value)


def contended(deployment: Deployment) -> dict[str, Any]:
    """Return a decision about a key of accounts."""
    rows = [row for row in deployment.rows("_conflicts") if row["space"] == "accounts"]
    return next(row for row in rows if row["winner_tuple"] and row["loser_tuple"])


def test_a_decision_names_both_sides_and_why(deployment: Deployment, place: Place) -> None:
    row = contended(deployment)
    key = decode(row["key"])
    found = described(KeyChangesReader(place).story("accounts", key))
    decision = next(one for one in found["decisions"] if one["winner"]["lsn"] == row["winner_lsn"])
    assert decision["loser"]["lsn"] == row["loser_lsn"]
    assert decision["why"].startswith(f"{row['policy']} by {row['sequence']}: ")
    assert {one["replicaset"] for one in found["changes"]} == {own().info(n).replicaset_uuid for n in NODES}
    held = deployment.table("accounts")[row["key"]]
    assert found["current"]["lsn"] == held["_lsn"]
    assert found["current"]["tuple"]["id"] == key[0]
    told = lines(found)
    assert any(line.startswith("  won: ") for line in told)
    assert told[-1].startswith("now: {")


def test_neighbours_are_the_other_rows_of_a_transaction(deployment: Deployment, place: Place) -> None:
    rows = deployment.rows("_changelog", ["tsn", "lsn", "space", "type", "key", "tuple", "global_id", "file"])
    row = next(
        one
        for one in sorted(rows, key=lambda one: one["lsn"] or 0)
        if one["space"] == "accounts" and one["tsn"] and one["lsn"] != one["tsn"] and one["tuple"]
    )
    others = {
        one["lsn"]
        for one in rows
        if (one["tsn"], one["global_id"]) == (row["tsn"], row["global_id"]) and one["lsn"] != row["lsn"]
    }
    story = KeyChangesReader(place).story("accounts", decode(row["tuple"])[:1])
    step = next(
        s for s in story.steps if s.row["lsn"] == row["lsn"] and s.row["global_id"] == row["global_id"]
    )
    assert {one["lsn"] for one in step.neighbours} >= others
    assert others


def test_a_table_name_means_its_space(deployment: Deployment, place: Place) -> None:
    name = next(one for one in own().global_spaces("a1") if table_name(one) != one)
    assert deployment.rows(table_name(name)) or True
    reader = KeyChangesReader(place)
    assert reader.story(name, [1]).space == reader.story(table_name(name), [1]).space


def test_a_missing_space_or_key_is_reported(
    place: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert who(place, "accounts", [987654321], as_json=True) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["changes"] == []
    assert "no row of accounts has the key [987654321]" in said.err
    with pytest.raises(ConfigurationError, match="no replicaset has a space 'nobody'"):
        who(place, "nobody", [1])
    with pytest.raises(ConfigurationError, match="has 1 parts, not 2"):
        who(place, "accounts", [1, 2])
    with pytest.raises(WarehouseError, match="no batch is done yet"):
        who(place_of(str(tmp_path), "aggregator"), "accounts", [1])
