"""Backups of a real server, unpacked, give the tables of its own directory; a missing backup is a gap."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.unpack import unpack_all
from tests.jobs.deployment import Deployment
from tests.live.server import Tarantool
from tests.sources.backup.storage import add_backup, files_of

pytestmark = pytest.mark.live

CLOSED = bytes.fromhex("d510aded")
CREATE = """
box.schema.space.create('orders', {format = {{'id', 'unsigned'}, {'state', 'string'}}}):create_index('pk')
for i = 1, 100 do box.space.orders:insert{i, 'new'} end
"""


class Backups:
    """The backups of one server: a full one, then incremental ones for each part of its log."""

    def __init__(self, server: Tarantool, storage: Path) -> None:
        self._server, self._storage = server, storage
        # The server removes no file that a backup is about to read.
        server.eval("box.cfg{checkpoint_count = 100}")
        self._uuids = server.eval("return box.info.cluster.uuid or box.info.replicaset.uuid, box.info.uuid")
        self._previous: str | None = None
        self._end: dict[int, int] | None = None
        self._has: set[str] = set()

    @property
    def directory(self) -> str:
        """The folder of the server's logs below the target folder of `unpack`."""
        return "/".join(self._uuids)

    def make(self) -> str:
        """Add the new files as a backup, and return its id."""
        self._server.eval("box.snapshot()")
        logs = [path for path in self._server.directory.glob("*.xlog") if path.read_bytes().endswith(CLOSED)]
        snapshots = [] if self._previous else sorted(self._server.directory.glob("*.snap"))[-1:]
        if snapshots:
            self._has = {log.name for log in logs if log.stem < snapshots[0].stem}
        files = files_of([*snapshots, *(log for log in logs if log.name not in self._has)])
        begin, self._end = self._end, self._vclock()
        backup = f"B{int((self._previous or 'B0')[1:]) + 1}"
        add_backup(self._storage, backup, self._previous, files, begin, self._end, *self._uuids)
        self._previous, self._has = backup, self._has | {log.name for log in logs}
        return backup

    def _vclock(self) -> dict[int, int]:
        found = self._server.eval("return require('json').encode({next(box.info.vclock)})")
        id_, lsn = json.loads(found)
        return {int(id_): int(lsn)}


def changed(server: Tarantool, first: int) -> Sequence[Any]:
    server.eval(f"for i = {first}, {first + 60} do box.space.orders:replace{{i, 'after ' .. i}} end")
    server.eval(f"box.space.orders:delete{{{first - 1}}}")
    found: Sequence[Any] = server.eval("return box.space.orders:select()")
    return found


def test_backups_give_the_tables_of_the_directory(tmp_path: Path, tarantool: Tarantool) -> None:
    tarantool.eval(CREATE)
    backups = Backups(tarantool, tmp_path / "storage")
    backups.make()
    second = changed(tarantool, 50)
    backups.make()
    into = tmp_path / "into"
    assert unpack_all(str(tmp_path / "storage"), into) == 0
    deployment = Deployment(tmp_path / "deployment", {"a1": into / backups.directory}, start="snapshot")
    deployment.write()
    assert deployment.fields("orders") == second
    third = changed(tarantool, 120)
    backups.make()
    assert unpack_all(str(tmp_path / "storage"), into) == 0
    deployment.write()
    assert deployment.fields("orders") == third
    assert not deployment.rows("_gaps")


def test_a_missing_backup_is_a_gap_of_the_tables_too(
    tmp_path: Path, tarantool: Tarantool, capsys: pytest.CaptureFixture[str]
) -> None:
    tarantool.eval(CREATE)
    backups = Backups(tarantool, tmp_path / "storage")
    backups.make()
    changed(tarantool, 50)
    missing = backups.make()
    changed(tarantool, 120)
    backups.make()
    (tmp_path / "storage" / "manifests" / f"{missing}.json").unlink()
    into = tmp_path / "into"
    assert unpack_all(str(tmp_path / "storage"), into) == 1
    assert f"backup {missing} is missing" in capsys.readouterr().out
    deployment = Deployment(
        tmp_path / "deployment", {"a1": into / backups.directory}, start="snapshot", on_gap="skip"
    )
    deployment.write()
    (gap,) = deployment.rows("_gaps", ["kind", "first_lsn", "last_lsn"])
    assert gap["kind"] == "missing"
    assert gap["last_lsn"] - gap["first_lsn"] == 61
