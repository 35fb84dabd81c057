"""A bucket moves from A to B and is deleted on A, a space is truncated on one side: nothing is lost in any order."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.jobs.deployment import Deployment
from tests.jobs.written import Node, replicasets_of

MOVED, CUT, TAKEN = 600, 601, 602
NAMES = {MOVED: "moved", CUT: "cut", TAKEN: "taken"}
POLICIES = {"taken": {"deletes": "all"}}


def logged(folder: Path) -> dict[str, Path]:
    a, b = Node(folder, "a1"), Node(folder, "b1")
    for node in (a, b):
        for space_id, name in NAMES.items():
            node.define(space_id, name)
    for space_id in NAMES:
        a.put(space_id, 1, "bucket", 7, 1, at=10).put(space_id, 2, "only of A", 7, 1, at=10)
        b.put(space_id, 1, "bucket", 7, 1, at=20)
    a.delete(MOVED, 1, at=30).delete(MOVED, 5, at=30).truncate(CUT, at=30).delete(TAKEN, 1, at=30)
    # It finds nothing there, so it is nobody's version.
    a.delete(TAKEN, 9, at=30)
    b.put(TAKEN, 9, "of B alone", 7, 1, at=20)
    for node in (a, b):
        node.close()
    return {"a1": a.path, "b1": b.path}


def names(deployment: Deployment, space: str) -> dict[int, str]:
    rows: list[Any] = [msgpack.unpackb(row["_tuple"]) for row in deployment.rows(space, ["_tuple"])]
    return {row[0]: row[1] for row in rows}


@pytest.mark.parametrize("order", [("a1", "b1"), pytest.param(("b1", "a1"), marks=pytest.mark.soak)])
def test_any_replicaset_may_come_first(tmp_path: Path, order: tuple[str, str]) -> None:
    sources = logged(tmp_path)
    first, uuids = {order[0]: sources[order[0]]}, replicasets_of("a1", "b1")
    deployment = Deployment(tmp_path, first, uuids, policies={"spaces": POLICIES})
    deployment.write()
    deployment.sources[order[1]] = sources[order[1]]
    deployment.write()
    assert names(deployment, "moved") == {1: "bucket", 2: "only of A"}
    assert names(deployment, "cut") == {1: "bucket"}
    # Deleted after B had it, and deletes take part: the key is gone; A's version alone of key 2 stays.
    assert names(deployment, "taken") == {2: "only of A", 9: "of B alone"}
