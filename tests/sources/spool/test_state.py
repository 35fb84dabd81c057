"""The lock shows whether a daemon writes a spool, and the version whether masters retain logs for it."""

from pathlib import Path

import pytest

from sources.spool.spool import ServerVersions, Spool
from sources.spool.state import stopped_spools

DAEMON = "00000000-0000-4000-8000-0000000000ff"
REPLICASET = "bbbbbbbb-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("version", "keeps"), [("2.11.9", False), ("3.2.1", False), ("3.3.0", True), ("3.9.0", True)]
)
def test_a_spool_without_a_daemon_is_reported(tmp_path: Path, version: str, keeps: bool) -> None:
    with Spool(tmp_path) as spool:
        spool.instance_uuid, spool.replicaset_uuid, spool.versions = (
            DAEMON,
            REPLICASET,
            ServerVersions(version),
        )
        assert stopped_spools([tmp_path]) == []
        with spool.create_snapshot({1: 5}):
            pass
        spool.continue_from({1: 5})
        assert stopped_spools([tmp_path]) == []
    (found,) = stopped_spools([tmp_path])
    assert (found.directory, found.instance_uuid, found.keeps_logs) == (str(tmp_path), DAEMON, keeps)


def test_other_directories_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "lock").touch()
    (tmp_path / "damaged" / "00000000000000000007.xlog").write_bytes(b"this is no log")
    assert stopped_spools([tmp_path / "plain", tmp_path / "nothing", tmp_path / "damaged"]) == []
