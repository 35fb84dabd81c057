"""A primary key that changes while the keys are contended: each version is read once, and resolved once."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment

SPACE = 600


@pytest.mark.parametrize("cut", [1, None])
@pytest.mark.parametrize("policy", [{"policy": "sum", "columns": ["value"]}, {}])
def test_versions_of_others_are_read_once(tmp_path: Path, policy: dict[str, Any], cut: int | None) -> None:
    nodes = {name: Node(tmp_path, name).define(SPACE, "people") for name in ("a1", "b1")}
    nodes["a1"].put(SPACE, 1, "x", 5, 1, at=1).put(SPACE, 2, "y", 7, 1, at=2)
    nodes["b1"].put(SPACE, 2, "z", 2, 1, at=3)
    sources = {name: node.path for name, node in nodes.items()}
    spaces: dict[str, Any] = {"policies": {"spaces": {"people": policy}}} if policy else {}
    deployment = Deployment(tmp_path, sources, replicasets_of(*sources), **spaces)
    for node in nodes.values():
        node.close()
    deployment.run(cut)
    # The fields stay as they are, so each version continues under the first two of them.
    nodes["a1"].rekey(SPACE, (0, "unsigned"), (1, "string")).close()
    deployment.run(cut)
    found = sorted(msgpack.unpackb(row["_tuple"]) for row in deployment.table("people").values())
    assert found == [[1, "x", 5, 1], [2, "y", 7, 1], [2, "z", 2, 1]]
    assert not [row for row in deployment.table("people").values() if row["_replicaset_id"] < 0]
