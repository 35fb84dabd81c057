"""A space that is followed again after a heal is held by the next row that cannot be applied."""

from pathlib import Path

import msgpack
import pytest

from pipeline.batch import MakeDistributed
from pipeline.requests.read_again import TimeSpan, read_source_again
from pipeline.requests.snapshots import heal
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment

S = 600
UNKNOWN = 19
"""A type of row that no release knows."""


def begun(folder: Path) -> Node:
    node = Node(folder, "a1").define(S, "s").put(S, 1, "first", 1, 1)
    return node.row(UNKNOWN, S, {}).put(S, 2, "behind", 1, 1)


def keys(deployment: Deployment) -> list[int]:
    return sorted(msgpack.unpackb(row["_tuple"])[0] for row in deployment.rows("s", ["_tuple"]))


@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_a_row_that_was_read_before_does_not_hide_a_new_one(
    tmp_path: Path, executor: MakeDistributed | None, budget: int
) -> None:
    first = begun(tmp_path / "first")
    first.close()
    whole = begun(tmp_path / "whole")
    whole.is_apart = True
    whole.put(S, 3, "new", 1, 1).row(UNKNOWN, S, {}).put(S, 4, "held", 1, 1).row(UNKNOWN, S, {}).close()
    sources, replicasets = {"a1": first.path}, replicasets_of("a1")
    deployment = Deployment(tmp_path, sources, replicasets, executor, max_bytes_per_trigger=budget)
    with deployment.writer() as (warehouse, writer):
        while deployment.batch(writer) is not None:
            pass
        (known,) = writer.state.replicasets
        assert S in writer.state.replicasets[known].refused
        first.snapshot({S: [(1, "first", 1, 1), (2, "behind", 1, 1)]})
        heal(deployment.config(), warehouse, writer, "a1", "heal")
        assert writer.state.replicasets[known].refused == {}
        assert keys(deployment) == [1, 2]
    deployment.sources = {"a1": whole.path}
    with deployment.writer() as (_, writer):
        read_source_again(deployment.config(), writer, "a1", TimeSpan(), lambda *_: None)
        assert "lsn 8)" in writer.state.replicasets[known].refused[S]
    assert keys(deployment) == [1, 2, 3]
