"""Logs of `wal_ext`: the tuple that a server logged as the result of an UPDATE or UPSERT is what it has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas.iproto import BodyKey, RequestType
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment, contents

SPACE = 600


def update(node: Node, key: Any, operations: Sequence[Any], new: Any, old: Any = None) -> Node:
    content = {BodyKey.KEY: [key], BodyKey.TUPLE: operations, BodyKey.OLD_TUPLE: old, BodyKey.NEW_TUPLE: new}
    return node.row(RequestType.UPDATE, SPACE, {int(k): v for k, v in content.items() if v is not None})


def upsert(node: Node, tuple_: Any, operations: Sequence[Any], new: Any) -> Node:
    content = {int(BodyKey.TUPLE): tuple_, int(BodyKey.OPS): operations, int(BodyKey.NEW_TUPLE): new}
    return node.row(RequestType.UPSERT, SPACE, content)


def done(folder: Path, node: Node, cut: int | None) -> Deployment:
    node.close()
    deployment = Deployment.of(folder, node)
    deployment.run(cut)
    return deployment


def found(deployment: Deployment) -> list[Any]:
    return [msgpack.unpackb(one) for one in deployment.tuples("users")]


def reasons(deployment: Deployment) -> list[tuple[Any, str]]:
    rows = deployment.rows("_quarantine")
    return sorted((msgpack.unpackb(row["key"])[0], row["reason"]) for row in rows)


@pytest.mark.parametrize("cut", [1, None])
def test_results_that_agree_are_nobodys_concern(tmp_path: Path, cut: int | None) -> None:
    node = Node(tmp_path, "a1").define(SPACE, "users").put(SPACE, 1, "a", 1, 1)
    update(node, 1, [["+", 2, 2]], [1, "a", 3, 1], [1, "a", 1, 1])
    upsert(node, [1, "b", 0, 0], [["=", 1, "c"]], [1, "c", 3, 1])
    upsert(node, [2, "b", 0, 0], [["=", 1, "c"]], [2, "b", 0, 0])
    deployment = done(tmp_path, node, cut)
    assert found(deployment) == [[1, "c", 3, 1], [2, "b", 0, 0]]
    assert reasons(deployment) == []


@pytest.mark.parametrize("cut", [1, None])
def test_a_difference_is_named_and_the_servers_tuple_holds(tmp_path: Path, cut: int | None) -> None:
    node = Node(tmp_path, "a1").define(SPACE, "users").put(SPACE, 1, "a", 1, 1).put(SPACE, 2, "a", 1, 1)
    update(node, 1, [["+", 2, 2]], [1, "a", 9, 1])
    update(node, 1, [["+", 2, 2]], [1, "a", 11, 1])  # the next one is computed from what the server has
    upsert(node, [2, "x", 0, 0], [["=", 1, "c"]], [2, "c", 1, 1, "more"])
    update(node, 3, [["+", 2, 2]], [3, "lost", 1, 1])  # a key that is not here
    update(node, 2, [["+", 1, 1]], [2, "d", 1, 1])  # what cannot be applied
    deployment = done(tmp_path, node, cut)
    assert found(deployment) == [[1, "a", 11, 1], [2, "d", 1, 1], [3, "lost", 1, 1]]
    quarantined = reasons(deployment)
    assert [key for key, _ in quarantined] == [1, 2, 2, 3]
    assert all("the result differs from the new tuple in the log" in reason for _, reason in quarantined)
    assert "field 3 is 03 here, 09 there" in quarantined[0][1]
    assert "4 fields here, 5 there" in quarantined[2][1]
    assert "there is no tuple here" in quarantined[3][1]


def test_a_log_with_and_one_without_them_are_the_same_log(tmp_path: Path) -> None:
    """Members may have different settings: the same row of both is no divergence."""
    nodes = [Node(tmp_path / name, "a1").define(SPACE, "users") for name in ("with", "without")]
    for node, is_with in zip(nodes, (True, False), strict=True):
        node.put(SPACE, 1, "a", 1, 1)
        update(node, 1, [["+", 2, 2]], [1, "a", 3, 1] if is_with else None)
        node.put(SPACE, 2, "a", 1, 1).close()
    deployments = []
    for node in nodes:
        one = Deployment(node.path.parent, {"a1": node.path}, replicasets_of("a1"))
        one.run()
        deployments.append(one)
    hashes = [[row["hash"] for row in one.rows("_changelog") if row["hash"]] for one in deployments]
    first, second = hashes
    assert sorted(first) == sorted(second)
    assert contents(deployments[0])["users"] == contents(deployments[1])["users"]
