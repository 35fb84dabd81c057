"""What is recorded of contended keys: of versions that took part, not of those that are gone."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.commit.load import load_state
from pipeline.requests.rebuild import plan_rebuild
from tests.jobs.written import BEGAN, Node, replicasets_of
from tests.pipeline.deployment import Deployment
from warehouse.lock.lock import WriterLock
from warehouse.warehouse import Warehouse

NAMES = ("a1", "b1", "c1")


def thirteen(old: Any, new: Any, _change: Any) -> Any:
    """Add the values, but refuse 13."""
    if new.value == 13:
        raise ValueError("not 13")
    return new.update(value=old.value + new.value)


def newest(_old: Any, new: Any, _change: Any) -> Any:
    """Keep the later version, also where it is a deletion."""
    return new


def contended(folder: Path, count: int, **policy: Any) -> tuple[Deployment, list[Node]]:
    """Return a deployment in which so many replicasets have key 1, inserted one second after another."""
    nodes = [Node(folder, name).define(600, "people") for name in NAMES[:count]]
    for number, node in enumerate(nodes):
        node.put(600, 1, "x", number + 1, 1, at=10 + number).close()
    made = Deployment(
        folder,
        {node.path.name: node.path for node in nodes},
        replicasets_of(*NAMES[:count]),
        policies={"spaces": {"people": policy}},
    )
    made.run()
    return made, nodes


@pytest.mark.parametrize("is_cut", [False, True], ids=["in one batch", "in two batches"])
def test_a_made_row_began_with_the_earliest_version_that_is_there(tmp_path: Path, is_cut: bool) -> None:
    made, (a, *_) = contended(tmp_path, 3, policy="sum", columns=["value"])
    a.delete(600, 1, at=20)
    if is_cut:
        a.close()
        made.run()
    a.put(600, 1, "x", 5, 1, at=30).close()
    made.run()
    (row,) = made.rows("people")
    assert (row["value"], row["_created"].timestamp()) == (10, BEGAN + 11)


def test_a_truncated_version_has_no_part_in_when_a_made_row_began(tmp_path: Path) -> None:
    made, (a, *_) = contended(tmp_path, 3, policy="sum", columns=["value"])
    a.truncate(600, at=20).close()
    made.run()
    (row,) = made.rows("people")
    assert (row["value"], row["_created"].timestamp()) == (5, BEGAN + 11)


def test_a_version_that_was_truncated_loses_no_conflict(tmp_path: Path) -> None:
    made, (a, *_) = contended(tmp_path, 3, policy="last_write_wins")
    before = made.rows("_conflicts")
    a.truncate(600, at=20).close()
    made.run()
    assert len(made.rows("_conflicts")) == len(before)


def test_what_cannot_be_decided_names_versions_and_not_the_row_before(tmp_path: Path) -> None:
    function = f"{__name__}:thirteen"
    made, (_, b) = contended(tmp_path, 2, policy="custom", function=function)
    assert [row["_replicaset_id"] for row in made.rows("people")] == [-2]
    b.put(600, 1, "x", 13, 1, at=12).close()
    made.run()
    assert not made.rows("people")
    assert sorted(row["replicaset_id"] for row in made.rows("_quarantine")) == [1, 2]


@pytest.mark.parametrize("policy", ["last_write_wins", "custom"])
def test_a_rebuild_by_the_same_policy_changes_nothing_where_a_deletion_won(
    tmp_path: Path, policy: str
) -> None:
    function = {"function": f"{__name__}:newest"} if policy == "custom" else {}
    made, (a, *_) = contended(tmp_path, 3, policy=policy, deletes="all", **function)
    a.delete(600, 1, at=20).close()
    made.run()
    assert not made.rows("people")
    config = made.config()
    warehouse = Warehouse(None, config.warehouse, config.database)
    with WriterLock(warehouse, "a test"):
        state = load_state(warehouse)
        found = plan_rebuild(warehouse.open_tables, state, config, "people", config.policies.of("people"))
    assert (found.changed_keys, found.examples) == (0, [])
    assert not found.results[0].conflicts.num_rows
