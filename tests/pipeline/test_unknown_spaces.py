"""Rows of a space that is not known yet wait under its name, and are applied once it is defined, on every cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from pipeline.batch import MakeDistributed
from schemas.iproto import BodyKey, RequestType, SystemSpace
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

S = 600
REASON = "space 600 is not known: no row of _space has defined it"


def waiting(deployment: Deployment) -> list[tuple[str, int]]:
    return sorted((row["reason"], row["lsn"]) for row in deployment.rows("_pending", ["reason", "lsn"]))


def changelog(deployment: Deployment) -> list[dict[str, Any]]:
    rows = deployment.rows("_changelog", ["replicaset_id", "lsn", "space"])
    return sorted((row for row in rows if row["replicaset_id"] == 1), key=lambda row: int(row["lsn"]))


class TableVersions(Node):
    """A member that begins a file with each row."""

    def _row(self, kind: int, body: bytes, at: float) -> Self:
        found = super()._row(kind, body, at)
        self.close()
        return found


def early(folder: Path, kind: type[Node] = Node) -> Node:
    """Return a log in which rows come before the definition of their space, as two origins' rows may be merged."""
    node = kind(folder, "a1").define(S + 1, "other").put(S + 1, 1, "known", 1, 1)
    node.put(S, 1, "early", 1, 1).put(S, 2, "early", 1, 1).update(S, 1, ["=", 1, "updated"]).delete(S, 2)
    return node.put(S, 3, "early", 1, 1).put(S + 1, 2, "known", 1, 1)


def test_rows_wait_under_the_name_of_their_space_and_hold_no_others(
    tmp_path: Path, executor: MakeDistributed | None
) -> None:
    node = early(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node, distributed=executor)
    assert waiting(deployment) == [(REASON, lsn) for lsn in range(5, 10)]
    assert [row[0] for row in deployment.fields("other")] == [1, 2]
    assert [row["lsn"] for row in changelog(deployment)] == list(range(1, 11))
    assert deployment.rows("s") == []


@pytest.mark.parametrize("budget", [None, 1, 400])
def test_they_are_applied_when_the_space_is_defined_later(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    node = early(tmp_path, TableVersions)
    node.define(S, "s").put(S, 3, "late", 1, 1).update(S, 1, ["+", 2, 5])
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    assert (deployment.run(budget) > 1) == (budget is not None)
    assert deployment.fields() == [[1, "updated", 6, 1], [3, "late", 1, 1]]
    assert waiting(deployment) == []
    assert [row["lsn"] for row in changelog(deployment)] == list(range(1, 15))
    spaces = {row["lsn"]: row["space"] for row in changelog(deployment)}
    assert {lsn: spaces[lsn] for lsn in (5, 9, 13)} == {5: None, 9: None, 13: "s"}


@pytest.mark.parametrize("budget", [None, 1])
def test_a_range_that_waits_is_deleted_when_the_space_is_defined(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    node = early(tmp_path, TableVersions).put(S, 9, "early", 1, 1)
    node.delete_range(S, [2], [9]).put(S, 5, "behind", 1, 1).define(S, "s")
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    deployment.run(budget)
    assert [row[:2] for row in deployment.fields()] == [[1, "updated"], [5, "behind"], [9, "early"]]
    assert waiting(deployment) == []


def test_a_start_remembers_what_waits(tmp_path: Path) -> None:
    node = early(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    node.put(S, 4, "between", 1, 1).close()
    deployment.run()
    assert len(waiting(deployment)) == 6
    node.define(S, "s").close()
    deployment.run()
    assert [row[:2] for row in deployment.fields()] == [[1, "updated"], [3, "early"], [4, "between"]]
    assert waiting(deployment) == []
    node.put(S, 5, "after", 1, 1).close()
    deployment.run()
    assert len(deployment.fields()) == 4


def dropped(node: Node) -> Node:
    return node.drop(S)


def truncated(node: Node) -> Node:
    return node.truncate(S)


@pytest.mark.parametrize("end", [dropped, truncated])
@pytest.mark.parametrize("budget", [None, 1])
def test_what_was_dropped_or_truncated_meanwhile_is_not_applied(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None, end: Callable[[Node], Node]
) -> None:
    node = (
        end(early(tmp_path, TableVersions)).put(S, 7, "behind", 1, 1).define(S, "s").put(S, 8, "late", 1, 1)
    )
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    deployment.run(budget)
    assert [row[:2] for row in deployment.fields()] == [[7, "behind"], [8, "late"]]
    assert waiting(deployment) == []


@pytest.mark.parametrize("budget", [None, 1])
def test_a_changed_definition_does_not_make_a_space_known(tmp_path: Path, budget: int | None) -> None:
    """Rows from before the log are missing: a table without them would lack rows in silence."""
    node = TableVersions(tmp_path, "a1").put(S, 1, "early", 1, 1).redefine(S, "s").rekey(S, (0, "unsigned"))
    node.put(S, 2, "late", 1, 1)
    deployment = Deployment.of(tmp_path, node)
    deployment.run(budget)
    assert deployment.rows("s") == []
    assert [reason for reason, _ in waiting(deployment)] == [REASON] * 2


def described(folder: Path, kind: type[Node] = TableVersions) -> Node:
    """Return a log in which a REPLACE describes a space of which nothing was read before."""
    return kind(folder, "a1").put(S, 1, "early", 1, 1).redefine(S, "s")


def with_key(node: Node) -> Node:
    """Insert the primary index of the space."""
    index = [S, 0, "i0", "tree", {"unique": True}, [{"field": 0, "type": "unsigned"}]]
    return node.row(RequestType.INSERT, SystemSpace.INDEX, {int(BodyKey.TUPLE): index})


def without_key(node: Node) -> Node:
    """Delete the primary index of the space."""
    return node.row(RequestType.DELETE, SystemSpace.INDEX, {int(BodyKey.KEY): [S, 0]})


@pytest.mark.parametrize("budget", [None, 1])
def test_a_new_primary_index_makes_a_described_space_known(tmp_path: Path, budget: int | None) -> None:
    """A space has no tuples before: whether the REPLACE has created it, or has changed it, all its rows are here."""
    node = with_key(without_key(described(tmp_path)).redefine(S, "t").redefine(S, "s"))
    node.put(S, 2, "late", 1, 1)
    deployment = Deployment.of(tmp_path, node)
    deployment.run(budget)
    assert [row[:2] for row in deployment.fields()] == [[2, "late"]]
    assert waiting(deployment) == []


def test_a_start_remembers_what_describes_a_space(tmp_path: Path) -> None:
    node = TableVersions(tmp_path, "a1").redefine(S, "s")
    deployment = Deployment.aggregated(tmp_path, node)
    assert [row["state"] for row in deployment.rows("_schema", ["state"])] == ["described"]
    with_key(node).put(S, 2, "late", 1, 1)
    deployment.run()
    assert [row[:2] for row in deployment.fields()] == [[2, "late"]]
    assert waiting(deployment) == []


def test_a_start_forgets_a_described_space_that_was_dropped(tmp_path: Path) -> None:
    node = TableVersions(tmp_path, "a1").redefine(S, "s")
    deployment = Deployment.aggregated(tmp_path, node)
    node.drop(S)
    deployment.run()
    assert sorted(row["state"] for row in deployment.rows("_schema", ["state"])) == ["described", "dropped"]
    with_key(node).put(S, 2, "late", 1, 1)
    deployment.run()
    assert [reason for reason, _ in waiting(deployment)] == [REASON]


def test_a_space_that_is_left_out_waits_for_nothing(tmp_path: Path) -> None:
    node = early(tmp_path, TableVersions).define(S, "s").put(S, 4, "late", 1, 1)
    deployment = Deployment.of(tmp_path, node, spaces={"exclude": ["s"]})
    deployment.run(1)
    assert waiting(deployment) == []
    assert deployment.rows("s") == []
