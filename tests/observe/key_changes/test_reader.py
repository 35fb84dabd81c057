"""The history of a key: its last tuple is the server's, in each replicaset."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.who import history_as_json, history_lines, who
from observe.key_changes.reader import KeyChangesReader, KeyHistory
from observe.log_rows.catalog import LoggedSpace
from schemas.errors import ConfigurationError, WarehouseError
from schemas.names import table_name
from schemas.space import Space
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from tests.soaked import IS_SOAK
from tests.truth import own
from udfs.before_replace.row import decode
from warehouse.delta.location import WarehouseLocation, location_of

NODES = ("a1", "b1")
KEYS_OF_A_SPACE = 2 if IS_SOAK else 1
"""Approximate number of keys of each space that are read."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    sources = {name: own().directory(name) for name in NODES}
    deployment = Deployment(tmp_path_factory.mktemp("history"), sources)
    deployment.run(150_000)
    return deployment


@pytest.fixture(scope="module")
def location(deployment: Deployment) -> WarehouseLocation:
    return deployment.location


def some_keys() -> Iterator[tuple[str, str, Space, bytes]]:
    for node in NODES:
        for name, space in own().global_spaces(node).items():
            tuple_expression = own().tuples(node, name)
            chosen = (
                tuple_expression[:: max(1, len(tuple_expression) // KEYS_OF_A_SPACE)]
                if space.primary_key
                else []
            )
            yield from ((node, name, space, data) for data in chosen)


def last_after(history: KeyHistory, node: str) -> set[bytes]:
    """Return the last tuples of a key in a replicaset; each encoding of an unsigned key is a key."""
    uuid = own().info(node).replicaset_uuid
    found: dict[Any, bytes | None] = {}
    for step in history.changes:
        row = step.row
        if history.replicaset_uuids[row["replicaset_id"]] == uuid:
            definition = history.space.definition_at(row["epoch"], row["replicaset_id"], row["space_id"])
            assert definition is not None or row["type"] in ("TRUNCATE", "DROP")
            if definition is not None:
                found[definition.hashable_key(row["key"], row["tuple"])] = step.tuple_after
            else:
                found.clear()
    return {data for data in found.values() if data is not None}


def test_the_last_tuple_of_each_key_is_the_servers(
    deployment: Deployment, location: WarehouseLocation
) -> None:
    refused = {row["name"] for row in deployment.rows("_schema") if row["state"].startswith("refused")}
    reader, seen = KeyChangesReader(location), 0
    for node, name, space, data in some_keys():
        if name in refused:
            continue
        values = LoggedSpace(space).key_values_in_tuple(data)
        assert values is not None
        history = reader.history(name, [one if isinstance(one, bytes) else text(one) for one in values])
        assert data in last_after(history, node), (node, name, values)
        assert history.changes[-1].is_tuple_known
        seen += 1
    assert seen > 25 * KEYS_OF_A_SPACE


def test_operations_are_applied_by_the_rules_of_the_rows_server(location: WarehouseLocation) -> None:
    """Tarantool 2.6 refuses an operation that 2.8 accepts, so the two leave different tuples."""
    expected = next(data for data in own().tuples("a1", "counters") if decode(data)[0] == "ups")
    assert last_after(KeyChangesReader(location).history("counters", ["ups"]), "a1") == {expected}


def text(value: Any) -> Any:
    """Return a value as it is written on the command line."""
    return value if isinstance(value, str | int | float) or value is None else str(value)


def contended(deployment: Deployment) -> dict[str, Any]:
    """Return a decision about a key of accounts."""
    rows = [row for row in deployment.rows("_conflicts") if row["space"] == "accounts"]
    return next(row for row in rows if row["winner_tuple"] and row["loser_tuple"])


def test_a_decision_names_both_sides_and_why(deployment: Deployment, location: WarehouseLocation) -> None:
    row = contended(deployment)
    key = decode(row["key"])
    found = history_as_json(KeyChangesReader(location).history("accounts", key))
    decision = next(one for one in found["decisions"] if one["winner"]["lsn"] == row["winner_lsn"])
    assert decision["loser"]["lsn"] == row["loser_lsn"]
    assert decision["why"].startswith(f"{row['policy']} by {row['sequence']}: ")
    assert {one["replicaset"] for one in found["changes"]} == {own().info(n).replicaset_uuid for n in NODES}
    row_in_table = deployment.table("accounts")[row["key"]]
    assert found["current"]["lsn"] == row_in_table["_lsn"]
    assert found["current"]["tuple"]["id"] == key[0]
    printed = history_lines(found)
    assert any(line.startswith("  won: ") for line in printed)
    assert printed[-1].startswith("now: {")
    uuid = own().info("a1").replicaset_uuid
    assert f"replicaset a1 ({uuid[:8]})" in printed


def test_a_change_has_the_other_rows_of_its_transaction(
    deployment: Deployment, location: WarehouseLocation
) -> None:
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
    history = KeyChangesReader(location).history("accounts", decode(row["tuple"])[:1])
    step = next(
        s for s in history.changes if s.row["lsn"] == row["lsn"] and s.row["global_id"] == row["global_id"]
    )
    assert {one["lsn"] for one in step.transaction_rows} >= others
    assert others


def test_a_table_name_means_its_space(deployment: Deployment, location: WarehouseLocation) -> None:
    name = next(one for one in own().global_spaces("a1") if table_name(one) != one)
    assert deployment.rows(table_name(name)) or True
    reader = KeyChangesReader(location)
    assert reader.history(name, [1]).space == reader.history(table_name(name), [1]).space


def test_a_missing_space_or_key_is_reported(
    location: WarehouseLocation, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert who(location, "accounts", [987654321], as_json=True) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["changes"] == []
    assert "no row of accounts has the key [987654321]" in output.err
    with pytest.raises(ConfigurationError, match="no replicaset has a space 'nobody'"):
        who(location, "nobody", [1])
    with pytest.raises(ConfigurationError, match="has 1 parts, not 2"):
        who(location, "accounts", [1, 2])
    with pytest.raises(ConfigurationError, match=r'has the type unsigned, which \["abc"\] has not'):
        who(location, "accounts", ["abc"])
    with pytest.raises(WarehouseError, match="no batch is done yet"):
        who(location_of(str(tmp_path), "aggregator"), "accounts", [1])


def story(deployment: Deployment, space: str, *key: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """Return type, lsn and the tuple after each change of a key, and its tuple of now."""
    found = history_as_json(KeyChangesReader(deployment.location).history(space, key))
    changes = [(one["type"], one["lsn"], one["after"] and one["after"]["name"]) for one in found["changes"]]
    return changes, found["current"] and found["current"]["tuple"]["name"]


def test_a_renamed_space_brings_its_changes(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, "x", 5, 1)
    node.close()
    deployment = Deployment.of(tmp_path, node)
    deployment.run()
    node.redefine(600, "folk").put(600, 2, "y", 5, 1).close()
    deployment.run()
    assert story(deployment, "folk", 1) == ([("REPLACE", 4, "x")], "x")
    assert story(deployment, "folk", 2) == ([("REPLACE", 6, "y")], "y")
    assert story(deployment, "people", 1) == ([("REPLACE", 4, "x")], None)


def test_truncations_are_of_the_space_that_has_the_id_then(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").define(601, "folk")
    node.put(601, 1, "f", 5, 1).put(600, 1, "x", 5, 1).close()
    deployment = Deployment.of(tmp_path, node)
    deployment.run()
    node.redefine(600, "other").redefine(601, "people").redefine(600, "folk").close()
    deployment.run()
    node.truncate(600).update(601, 1, ["=", 2, 7]).close()
    deployment.run()
    node.drop(600).define(600, "new").put(600, 1, "n", 1, 1).close()
    deployment.run()
    changes, now = story(deployment, "people", 1)
    assert changes == [("REPLACE", 6, "f"), ("REPLACE", 7, "x"), ("UPDATE", 12, "f")]
    assert now == "f"
    assert story(deployment, "new", 1) == ([("REPLACE", 16, "n")], "n")


def test_a_key_that_the_space_got_later(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, "x", 5, 1)
    node.close()
    deployment = Deployment.of(tmp_path, node)
    deployment.run()
    node.rekey(600, (0, "unsigned"), (1, "string")).close()
    deployment.run()
    assert story(deployment, "people", 1, "x") == ([("REPLACE", 4, "x")], "x")
    assert story(deployment, "people", 1) == ([("REPLACE", 4, "x")], None)


def test_a_key_of_a_masked_space(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, "x", 5, 1)
    node.close()
    deployment = Deployment.of(tmp_path, node, spaces={"masks": {"people": {"name": "drop"}}})
    deployment.run()
    assert story(deployment, "people", 1) == ([("REPLACE", 4, "x")], "x")
