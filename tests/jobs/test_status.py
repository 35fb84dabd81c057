"""What `aggregator status` says of positions and of refused spaces."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.status import show
from observe.facts import DeploymentFacts
from observe.overview import overview_of
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from warehouse.delta.location import location_of

USERS = 600


def test_the_vclock_is_the_settled_one_not_that_of_a_files_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = Node(tmp_path, "a1").define(USERS, "users").put(USERS, 1, "first", 1, 1)
    a.close()
    a.put(USERS, 2, "second", 2, 2)
    deployment = Deployment.aggregated(tmp_path, a)
    config = deployment.config()
    (one,) = overview_of(
        DeploymentFacts(location_of(config.warehouse, config.database)), datetime.now(UTC)
    ).replicasets.values()
    assert (one["leader"], one["vclock"]) == ("a1", {"1": 5})
    assert show(config, as_json=False) == 0
    uuid = replicasets_of("a1")["a1"]
    printed = capsys.readouterr().out
    assert f"replicaset a1 ({uuid[:8]}): 0" in printed
    assert "vclock {1: 5}" in printed


def test_a_refused_space_is_named_with_its_replicasets_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {name: Node(tmp_path, name) for name in ("a1", "b1", "c1")}
    nodes["a1"].define(USERS, "users").put(USERS, 1, "first", 1, 1).close()
    for name in ("b1", "c1"):
        nodes[name].define(USERS, "users", [("id", "string"), ("name", "string")]).close()
    paths = {name: node.path for name, node in nodes.items()}
    deployment = Deployment(tmp_path, paths, replicasets_of(*paths))
    deployment.run()
    assert show(deployment.config(), as_json=False) == 1
    shown = capsys.readouterr().err
    labels = ", ".join(f"{name} ({uuid[:8]})" for name, uuid in replicasets_of("b1", "c1").items())
    reason = "the field id is unsigned and string in different replicasets"
    assert f"space users: it goes to no table in {labels}: {reason}" in shown
    assert "[spaces_refused, ticket]" in shown
