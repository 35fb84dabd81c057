"""Spools of the daemon: whatever happens to it, some line tells of it, and only one."""

import os
from pathlib import Path

import pytest

from config.subscribe import ReplicasetConfig, Subscribe
from observe.deployment_problems import DeploymentState
from sources.spool.acks import LOCK_FILE
from sources.spool.spool import Spool
from sources.spool.state import HUNG_SECONDS
from tests.jobs.standalone import free_port
from tests.pipeline.deployment import Deployment
from tests.truth import OWN_ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = Deployment(tmp_path_factory.mktemp("made"), {"a1": OWN_ROOT / "2.6.0" / "a1"})
    made.run(2_000)
    return made


def state_of(made: Deployment, spool: Path) -> DeploymentState:
    """Return the state with a daemon that does not answer, and whose spool is no source."""
    replicaset = ReplicasetConfig(name="a", spool=f"{spool}/", peers=("localhost:3301",))
    section = Subscribe(replicasets=(replicaset,), status=f"127.0.0.1:{free_port()}")
    return DeploymentState(made.config().model_copy(update={"subscribe": section}))


def told(state: DeploymentState) -> list[tuple[str, str]]:
    found = [one for one in state.problems() if one.condition == "subscribe_down"]
    return [(one.subject, one.text.partition(" ")[0]) for one in found]


def test_a_daemon_is_told_of_while_it_begins_to_count_as_hung_and_after_it_has_ended(
    made: Deployment, tmp_path: Path
) -> None:
    with Spool(tmp_path) as spool:
        spool.instance_uuid = "00000000-0000-4000-8000-0000000000ff"
        spool.replicaset_uuid = "bbbbbbbb-0000-4000-8000-000000000001"
        with spool.create_snapshot({1: 5}):
            pass
        spool.continue_from({1: 5})
        state = state_of(made, tmp_path)
        moment = (tmp_path / LOCK_FILE).stat().st_mtime - HUNG_SECONDS - 1
        os.utime(tmp_path / LOCK_FILE, (moment, moment))
        assert told(state) == [("spool a", "nothing")]
        assert told(state_of(made, tmp_path)) == [("spool a", "the")]
    assert told(state_of(made, tmp_path)) == [("spool a", "no")]
