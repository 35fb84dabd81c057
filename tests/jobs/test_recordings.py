"""Every recording through the job: each member alone, growing copies, both members, and a failover."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.jobs.deployment import Deployment, folded, winners
from tests.truth import Recording, recordings

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.usefixtures("spark")]

NODES = [(recording, node) for recording in recordings() for node in recording.nodes]
SEQUENCES = {"accounts": ("updated",)}
POLICIES = {"spaces": {name: {"sequence": list(columns)} for name, columns in SEQUENCES.items()}}


def named(value: object) -> str | None:
    return value.name if isinstance(value, Recording) else None


def differences(deployment: Deployment, expected: Mapping[str, list[bytes]]) -> dict[str, object]:
    """Return the additional and the missing rows of the tables, by space."""
    found: dict[str, object] = {}
    for name, tuples in expected.items():
        have, want = Counter(deployment.tuples(name)), Counter(tuples)
        if have != want:
            found[name] = (have - want, want - have)
    return found


def truth(deployment: Deployment, recording: Recording, node: str) -> dict[str, list[bytes]]:
    """Return a member's server's tuples, for the spaces that have a table."""
    spaces = set(recording.global_spaces(node)) - deployment.refused_spaces()
    assert spaces
    return {name: sorted(recording.tuples(node, name)) for name in spaces}


def choice(deployment: Deployment, recording: Recording) -> dict[str, list[bytes]]:
    """Return the policy's result for the two replicasets, by the oracle."""
    truths = (folded(recording, "a1"), folded(recording, "b1"))
    names = {
        space.name
        for one in truths
        for space in one.by_name().values()
        if not space.is_local and not space.options.get("temporary")
    } - deployment.refused_spaces()
    assert names
    return {name: [w.tuple for w in winners(*truths, name, SEQUENCES.get(name, ()))] for name in names}


@pytest.mark.parametrize(("recording", "node"), NODES, ids=named)
def test_each_member_alone(tmp_path: Path, recording: Recording, node: str) -> None:
    deployment = Deployment(tmp_path, {node: recording.directory(node)})
    deployment.run()
    assert not differences(deployment, truth(deployment, recording, node))


@pytest.mark.parametrize("recording", recordings(), ids=named)
def test_growing_files_of_a_running_member(tmp_path: Path, recording: Recording) -> None:
    source = tmp_path / "a1"
    shutil.copytree(recording.directory("hot/a1"), source)
    deployment = Deployment(tmp_path, {"a1": source})
    deployment.run()
    first = len(deployment.rows("_changelog", ["lsn"]))
    shutil.copytree(recording.directory("a1"), source, dirs_exist_ok=True)
    deployment.run()
    assert len(deployment.rows("_changelog", ["lsn"])) >= first > 0
    assert not differences(deployment, truth(deployment, recording, "a1"))


@pytest.mark.parametrize("recording", recordings(), ids=named)
def test_all_members_are_sources(tmp_path: Path, recording: Recording) -> None:
    nodes = (*recording.side("A"), *recording.side("B"))
    deployment = Deployment(tmp_path, {n: recording.directory(n) for n in nodes}, policies=POLICIES)
    deployment.run()
    assert not differences(deployment, choice(deployment, recording))


@pytest.mark.parametrize("recording", recordings(), ids=named)
def test_the_other_member_takes_over_in_the_middle(tmp_path: Path, recording: Recording) -> None:
    deployment = Deployment(tmp_path, {"a1": recording.directory("hot/a1")})
    deployment.run()
    assert deployment.rows("_changelog", ["lsn"])
    deployment.sources = {"a2": recording.directory("a2")}
    deployment.run()
    assert not deployment.rows("_pending", ["lsn"])
    assert not differences(deployment, truth(deployment, recording, "a2"))
