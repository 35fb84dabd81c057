"""A daemon that is down is named by exactly one problem, at each moment."""

import os
from collections.abc import Sequence
from pathlib import Path

from config.deployment import Config
from observe.deployment_problems import daemon_problems, spool_names
from observe.problems import spool_problems
from sources.spool.acks import LOCK_FILE
from sources.spool.spool import Spool
from sources.spool.state import HUNG_SECONDS, StoppedSpool, stopped_spools
from tests.jobs.standalone import free_port


def config_with(spool: Path) -> Config:
    """Return a configuration with a daemon that does not answer, and whose spool is no source."""
    return Config.model_validate(
        {
            "warehouse": "w",
            "checkpoint": "c",
            "sources": [{"name": "b", "path": "/logs/b"}],
            "subscribe": {
                "status": f"127.0.0.1:{free_port()}",
                "replicasets": [{"name": "a", "spool": f"{spool}/", "peers": ["localhost:3301"]}],
            },
        }
    )


def problems_of(config: Config, stopped: Sequence[StoppedSpool]) -> list[tuple[str, str, str]]:
    found = [
        *daemon_problems(config.subscribe, stopped),
        *spool_problems(stopped, spool_names(config)),
    ]
    return [(one.condition, one.subject, one.text.partition(" ")[0]) for one in found]


def stopped_now(config: Config) -> list[StoppedSpool]:
    return stopped_spools(map(Path, spool_names(config)))


def test_a_daemon_is_named_while_it_begins_to_count_as_hung_and_after_it_has_ended(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    with Spool(tmp_path) as spool:
        spool.instance_uuid = "00000000-0000-4000-8000-0000000000ff"
        spool.replicaset_uuid = "bbbbbbbb-0000-4000-8000-000000000001"
        with spool.create_snapshot({1: 5}):
            pass
        spool.continue_from({1: 5})
        before = stopped_now(config)
        moment = (tmp_path / LOCK_FILE).stat().st_mtime - HUNG_SECONDS - 1
        os.utime(tmp_path / LOCK_FILE, (moment, moment))
        assert problems_of(config, before) == [("subscribe_down", "spool a", "nothing")]
        assert problems_of(config, stopped_now(config)) == [("subscribe_down", "spool a", "the")]
    assert problems_of(config, stopped_now(config)) == [("subscribe_down", "spool a", "no")]
