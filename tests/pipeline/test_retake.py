"""One space read again from a snapshot: alone, with the rows since, whatever kept it out before."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pipeline.requests.snapshots import newly_included_spaces, read_spaces_again
from schemas.errors import SourceError
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

S = 600


def states(deployment: Deployment) -> dict[str, str]:
    rows = sorted(deployment.rows("_schema", ["epoch", "name", "state"]), key=lambda row: int(row["epoch"]))
    return {row["name"]: row["state"] for row in rows}


def asked(deployment: Deployment, *spaces: str, source: str | None = None) -> str:
    with deployment.writer() as (warehouse, writer):
        name = f"snapshot {writer.state.epoch}"
        return read_spaces_again(deployment.config(), warehouse, writer, spaces, source, name)


def wanted_now(deployment: Deployment) -> Mapping[str, Sequence[str]]:
    with deployment.writer() as (_, writer):
        return newly_included_spaces(deployment.config(), writer.state)


def begun(folder: Path) -> Node:
    node = Node(folder, "a1").define(S, "s").define(S + 1, "other")
    return node.put(S, 1, "first", 1, 1).put(S, 2, "first", 1, 1).put(S + 1, 1, "first", 1, 1)


def continued(node: Node) -> list[list[object]]:
    """Take a snapshot and continue; returns what `s` holds at the end."""
    node.snapshot({S: [(1, "first", 1, 1), (2, "first", 1, 1)], S + 1: [(1, "first", 1, 1)]})
    node.update(S, 1, ["=", 1, "since"]).delete(S, 2).put(S, 3, "since", 1, 1).put(S + 1, 2, "since", 1, 1)
    node.close()
    return [[1, "since", 1, 1], [3, "since", 1, 1]]


def test_a_space_that_include_leaves_out_is_refused_by_name_once_it_is_wanted(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.of(tmp_path, node, spaces={"include": ["other"]})
    holds = continued(node)
    deployment.run()
    assert wanted_now(deployment) == {}
    deployment.settings["spaces"] = {"include": ["*"]}
    assert list(wanted_now(deployment).values()) == [["s"]]
    node.put(S, 4, "wanted", 1, 1).close()
    deployment.run()
    assert deployment.rows("s") == [], "a table would lack the earlier rows"
    assert states(deployment)["s"].startswith("refused: it was left out before")
    assert list(wanted_now(deployment).values()) == [["s"]]
    asked(deployment, "s")
    assert deployment.fields() == [*holds, [4, "wanted", 1, 1]]
    assert states(deployment)["s"] == "present"
    assert wanted_now(deployment) == {}
    node.put(S, 5, "later", 1, 1).close()
    deployment.run()
    assert len(deployment.fields()) == 4


def test_only_that_space_changes(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.of(tmp_path, node)
    holds = continued(node)
    deployment.run()
    before = {name: deployment.rows(name) for name in ("s", "other", "_cluster", "_applier_map", "_gaps")}
    message = asked(deployment, "s")
    assert "s read from 00000000000000000008.snap" in message
    assert "3 later rows applied again" in message
    assert deployment.fields() == holds
    for name, rows in before.items():
        assert deployment.rows(name) == rows or name == "s"
    now = {row["id"]: (row["_created"], row["_timestamp"]) for row in deployment.rows("s")}
    assert now == {row["id"]: (row["_created"], row["_timestamp"]) for row in before["s"]}
    node.put(S, 5, "later", 1, 1).put(S + 1, 5, "later", 1, 1).close()
    deployment.run()
    assert len(deployment.fields()) == len(deployment.fields("other")) == 3


def test_what_a_table_has_and_the_server_has_not_goes(tmp_path: Path) -> None:
    node = begun(tmp_path)
    node.put(S, 9, "wrong", 1, 1)
    deployment = Deployment.aggregated(tmp_path, node)
    node.snapshot({S: [(1, "right", 1, 1)], S + 1: [(7, "right", 1, 1)]})
    asked(deployment, "s")
    assert deployment.fields() == [[1, "right", 1, 1]]
    assert deployment.fields("other") == [[1, "first", 1, 1]]


def test_a_space_whose_definition_is_in_no_file_is_taken_up(tmp_path: Path) -> None:
    whole = Node(tmp_path, "a1")
    whole.close()
    whole.define(S, "s").define(S + 1, "other").put(S, 1, "first", 1, 1).put(S, 2, "first", 1, 1)
    whole.put(S + 1, 1, "first", 1, 1)
    defining = whole.close()
    holds = continued(whole)
    defining.unlink()
    (snapshot,) = whole.path.glob("*.snap")
    snapshot.rename(tmp_path / snapshot.name)
    deployment = Deployment.aggregated(tmp_path, whole, on_gap="skip")
    assert {row["reason"] for row in deployment.rows("_pending", ["reason"])} == {
        f"space {space} is not known: no row of _space has defined it" for space in (S, S + 1)
    }
    (tmp_path / snapshot.name).rename(snapshot)
    asked(deployment, "s")
    assert deployment.fields() == holds
    assert {row["space_id"] for row in deployment.rows("_pending", ["space_id"])} == {S + 1}
    asked(deployment, "other")
    assert deployment.fields("other") == [[1, "first", 1, 1], [2, "since", 1, 1]]
    assert deployment.rows("_pending") == []


def test_a_refused_space_that_can_be_followed_now_is_taken_up(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.of(tmp_path, node, spaces={"rename": {"other": "s"}})
    holds = continued(node)
    deployment.run()
    assert states(deployment)["other"].startswith("refused: another space")
    deployment.settings["spaces"] = {}
    deployment.run()
    asked(deployment, "other")
    assert deployment.fields() == holds
    assert deployment.fields("other") == [[1, "first", 1, 1], [2, "since", 1, 1]]


def test_a_space_that_still_cannot_be_followed_says_so(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.of(tmp_path, node, spaces={"rename": {"other": "s"}})
    continued(node)
    deployment.run()
    assert "other is refused: another space of its replicaset" in asked(deployment, "other")


def test_the_newest_snapshot_that_the_tables_have_come_to_is_taken(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    with pytest.raises(SourceError, match="there is no complete snapshot that the tables"):
        asked(deployment, "s")
    node.snapshot({S: [(1, "first", 1, 1), (2, "first", 1, 1)], S + 1: [(1, "first", 1, 1)]})
    node.put(S, 3, "since", 1, 1).close()
    node.snapshot({S: [(1, "not yet", 1, 1)]})
    assert "00000000000000000008.snap" in asked(deployment, "s", source="a1")
    assert [row[1] for row in deployment.fields()] == ["first", "first"]


def test_what_cannot_be_taken_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    node = begun(tmp_path)
    node.close()
    node.snapshot({S: [(1, "first", 1, 1)], S + 1: []})
    node.truncate(S)
    deployment = Deployment.aggregated(tmp_path, node)
    with pytest.raises(SourceError, match="a space was truncated"):
        asked(deployment, "s")
    with pytest.raises(SourceError, match="none of the spaces nobody"):
        asked(deployment, "nobody")
    asked(deployment, "other")
    assert deployment.fields("other") == []
