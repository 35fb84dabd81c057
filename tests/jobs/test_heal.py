"""A member that lost the end of its log and came back: the right member's snapshot heals the tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from jobs.backfill import backfill
from jobs.validate import validate
from tests.jobs.asked import options
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node

# Great Expectations calls what its own dependencies have deprecated.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("spark"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

S = 600
SAME = ((1, "same", 1, 1), (2, "same", 1, 1))


def begun(folder: Path) -> Node:
    node = Node(folder, "a1").define(S, "s").define(S + 1, "other")
    for fields in SAME:
        node.put(S, *fields, at=2)
    return node


class Case:
    """A deployment that has followed rows which its member then lost, and the rows that the member wrote instead.

    The member's snapshot is older than the last followed rows.
    """

    def __init__(self, folder: Path) -> None:
        lost = begun(folder / "lost").put(S, 3, "lost", 1, 1).put(S, 4, "lost", 1, 1).delete(S, 2)
        lost.close()
        self.deployment = Deployment.of(folder, lost)
        self.deployment.run()
        node = begun(folder / "right").put(S, 3, "right", 1, 1).put(S, 5, "right", 1, 1).put(S, 6, "x", 1, 1)
        right = [*SAME, (3, "right", 1, 1), (5, "right", 1, 1), (6, "x", 1, 1)]
        node.snapshot({S: right})
        node.update(S, 1, ["=", 1, "later"], at=4).update(S, 3, ["+", 2, 7], at=4).update(S, 5, ["+", 2, 7])
        node.delete(S, 6, at=4).put(S, 7, "later", 1, 1, at=4).put(S + 1, 1, "later", 1, 1, at=4)
        self.holds = [(1, "later", 1, 1), SAME[1], (3, "right", 8, 1), (5, "right", 8, 1), (7, "later", 1, 1)]
        node.close()
        self.node = node
        self.deployment.sources["a1"] = node.path
        assert backfill(self.deployment.config(), options()) == 0

    def rows(self, space: str = "s") -> dict[int, tuple[Any, ...]]:
        held = self.deployment.rows(space, ["_tuple"])
        return {row[0]: tuple(row) for row in (msgpack.unpackb(one["_tuple"]) for one in held)}

    def states(self) -> Iterator[tuple[int, str]]:
        for row in sorted(self.deployment.rows("_gaps"), key=lambda row: int(row["epoch"])):
            assert (row["kind"], row["local_id"]) == ("divergence", 1)
            yield row["first_lsn"], row["state"]

    def heal(self) -> int:
        return backfill(self.deployment.config(), options("--heal", "a1"))


@pytest.mark.soak
def test_the_tables_end_with_the_members_tuples(tmp_path: Path) -> None:
    case = Case(tmp_path)
    before = {
        int(row["id"]): row for row in case.deployment.rows("s", ["id", "_timestamp", "_created", "_lsn"])
    }
    assert {1, 4} <= case.rows().keys()
    assert 2 not in case.rows()
    assert [state for _, state in case.states()] == ["open"]
    assert case.heal() == 0
    assert sorted(case.rows().values()) == case.holds
    assert case.rows("other") == {1: (1, "later", 1, 1)}
    assert [state for _, state in case.states()] == ["open", "healed"]
    assert validate(case.deployment.config(), "") == 0
    after = {
        int(row["id"]): row for row in case.deployment.rows("s", ["id", "_timestamp", "_created", "_lsn"])
    }
    assert after[1] == before[1]


@pytest.mark.soak
def test_a_healed_divergence_is_not_reported_again_and_each_lsn_is_stored_once(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert case.heal() == 0
    case.deployment.forget_checkpoint()
    case.node.update(S, 5, ["+", 2, 1], at=5).close()
    case.deployment.run()
    assert case.rows()[5] == (5, "right", 9, 1)
    assert [state for _, state in case.states()] == ["open", "healed"]
    logged = [
        row["lsn"]
        for row in case.deployment.rows("_changelog", ["file", "lsn", "replicaset_id"])
        if row["file"].endswith(".xlog") and row["replicaset_id"] == 1
    ]
    assert len(logged) == len(set(logged))
