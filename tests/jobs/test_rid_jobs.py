"""Real streaming jobs under a RID: two on one warehouse, a killed one, failover and back, a healed split brain."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.rid import main
from observe.standbys import standbys_overview
from schemas.errors import LockError, RidStateError
from tests.jobs.deployment import Deployment
from tests.truth import own
from udfs.rid.value import FileLock, Rid
from warehouse.copies.rid import RidTable
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.newest_epoch import last_epoch, newest_versions
from warehouse.warehouse import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.soak]

SPACES = ["accounts", "ledger"]


class Node:
    """A warehouse with its own job, which follows logs that the test extends."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.deployment = Deployment(folder, {"a1": logs}, spaces={"include": SPACES})
        self.location: WarehouseLocation = location_of(str(folder / "warehouse"), self.deployment.database)

    def run(self, *peers: Node) -> None:
        self.deployment.run(standby={"peers": [peer.location.root for peer in peers]})

    @property
    def rid(self) -> Rid:
        return RidTable(self.location).last().at(last_epoch(self.location)).node.rid

    def command(self, name: str) -> int:
        return main([name, self.location.root])

    def tuples(self) -> dict[str, list[bytes]]:
        return {space: self.deployment.tuples(space) for space in SPACES}

    def at_cut(self, spark: SparkSession) -> dict[str, int]:
        """Return the rows of each table at the newest epoch's version, as Spark reads them."""
        warehouse = Warehouse(spark, str(Path(self.location.root).parent), self.deployment.database)
        return {t: warehouse.read(t, v).count() for t, v in newest_versions(self.location).versions.items()}


class Logs:
    """A directory of logs to which recorded files are added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        # Which replicaset this is, only a snapshot tells.
        shutil.copy(min(own().directory("a1").glob("*.snap")), folder)
        self._waiting = sorted(own().directory("a1").glob("*.xlog"))

    def add(self, count: int = 1) -> None:
        for file in self._waiting[:count]:
            shutil.copy(file, self.folder)
        del self._waiting[:count]


def copied(a: Node, b: Node, *more: str) -> int:
    return main(["sync", "--from", a.location.root, "--to", b.location.root, *more])


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "logs")


@contextlib.contextmanager
def running(node: Node, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a streaming job in its own process, after its first committed batch."""
    file = folder / "config.yaml"
    file.write_text(json.dumps(node.deployment.config(trigger="1 second").model_dump(mode="json")))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_GATEWAY")}
    command = [sys.executable, "-m", "jobs.aggregate", "--config", str(file)]
    log = (folder / "job.log").open("w+")
    job = subprocess.Popen(
        command,
        env={**environment, "PYTHONWARNINGS": "default"},
        stdout=log,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    try:
        ends = time.monotonic() + 120
        while last_epoch(node.location) < 0:
            assert job.poll() is None, (folder / "job.log").read_text()[-2000:]
            assert time.monotonic() < ends, "the job commits nothing"
            time.sleep(0.2)
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        log.close()


def test_two_jobs_on_one_warehouse_and_a_killed_one(spark: SparkSession, tmp_path: Path, logs: Logs) -> None:
    assert spark
    logs.add(2)
    node = Node(tmp_path, logs.folder)
    with running(node, tmp_path) as job:
        assert node.rid.file_lock is FileLock.ALLOW_READ
        events = [change.event for change in RidTable(node.location).history()]
        second = Deployment(tmp_path / "second", {"a1": logs.folder}, spaces={"include": SPACES})
        config = {"warehouse": str(tmp_path / "warehouse"), "database": node.deployment.database}
        with pytest.raises(LockError, match=r"being written by jobs/aggregate.py \(pid \d+") as caught:
            second.run(**config)
        assert "nothing was written" in caught.value.fields["advice"]
        assert [change.event for change in RidTable(node.location).history()] == events
        assert not (tmp_path / "second" / "checkpoint").exists()
        assert node.command("demote") == 1
        assert job.poll() is None
    assert node.rid.file_lock is FileLock.ALLOW_READ
    assert not node.rid.crashed_primary
    logs.add(9)
    node.run()
    assert (node.rid.crashed_primary, node.rid.file_lock) == (True, FileLock.UNLOCKED)
    whole = Node(tmp_path / "whole", logs.folder)
    whole.run()
    assert node.tuples() == whole.tuples()


def test_fail_over_to_the_standby_and_back_then_a_split_brain(
    spark: SparkSession, tmp_path: Path, logs: Logs, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.add(2)
    a, b = Node(tmp_path / "a", logs.folder), Node(tmp_path / "b", logs.folder)
    a.run()
    assert copied(a, b) == 0
    assert b.at_cut(spark) == a.at_cut(spark)
    with pytest.raises(RidStateError, match="is not primary; nothing was written"):
        b.run()

    assert a.command("demote") == b.command("promote") == 0
    logs.add()
    b.run()
    with pytest.raises(RidStateError, match="is not primary; nothing was written"):
        a.run()
    assert main(["compare", a.location.root, b.location.root]) == 3
    assert copied(b, a) == 0

    assert b.command("demote") == a.command("promote") == 0
    logs.add()
    a.run()
    assert copied(a, b) == 0
    assert b.tuples() == a.tuples()
    assert b.at_cut(spark) == a.at_cut(spark)

    assert b.command("promote") == 0  # forced: a is primary still
    logs.add()
    a.run()
    b.run()
    assert main(["compare", a.location.root, b.location.root]) == 4
    assert b.command("demote") == 0
    assert copied(a, b) == 1
    capsys.readouterr()
    assert copied(a, b, "--discard-target", str(b.rid)) == 0
    assert "lost would be epochs" in capsys.readouterr().out
    assert main(["compare", a.location.root, b.location.root]) == 0
    logs.add()
    assert a.command("demote") == b.command("promote") == 0
    b.run()
    whole = Node(tmp_path / "whole", logs.folder)
    whole.run()
    assert b.tuples() == whole.tuples()
    assert b.at_cut(spark).keys() >= {*SPACES, "_changelog"}


KILLED_BEHIND_ITS_COMMIT = """
import os, sys
from config.deployment import load
from jobs.aggregate import aggregate
from pipeline import batch

batch.log_step_done = lambda step: os._exit(9) if step == "_epochs" else None
aggregate(load(sys.argv[1]), once=True)
"""


def killed_behind_its_commit(node: Node, peer: Node, folder: Path) -> None:
    file = folder / "config.yaml"
    config = node.deployment.config(standby={"peers": [peer.location.root]})
    file.write_text(json.dumps(config.model_dump(mode="json")))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_GATEWAY")}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_BEHIND_ITS_COMMIT, str(file)],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=180,
    )
    assert done.returncode == 9


def test_a_job_keeps_a_peer_connected_and_a_fail_over_loses_nothing_in_silence(
    spark: SparkSession, tmp_path: Path, logs: Logs, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.add(2)
    a, b = Node(tmp_path / "a", logs.folder), Node(tmp_path / "b", logs.folder)
    Path(b.location.root).parent.mkdir(parents=True)
    a.run(b)
    assert b.at_cut(spark) == a.at_cut(spark)
    head = a.rid.head
    logs.add()
    a.run(b)
    assert a.rid.head == b.rid.head == head
    assert b.tuples() == a.tuples()
    config = a.deployment.config(standby={"peers": [b.location.root]})
    assert [one.state for one in standbys_overview(config)] == ["has all epochs"]

    logs.add()
    killed_behind_its_commit(a, b, tmp_path)
    assert last_epoch(a.location) == last_epoch(b.location) + 1
    assert a.rid.head == b.rid.head
    assert b.command("promote") == 0
    logs.add()
    b.run()
    assert [(one.is_up_to_date, one.state) for one in standbys_overview(config)] == [(False, "split brain")]
    with pytest.raises(RidStateError, match="split brain: the standby was written, too; nothing was written"):
        a.run(b)
    assert main(["compare", a.location.root, b.location.root]) == 4
    assert a.command("demote") == 0
    assert copied(b, a) == 1
    capsys.readouterr()
    assert copied(b, a, "--discard-target", str(a.rid)) == 0
    assert "lost would be epochs" in capsys.readouterr().out
    logs.add()
    b.run(a)
    assert a.tuples() == b.tuples()
    assert a.rid.head == b.rid.head
    whole = Node(tmp_path / "whole", logs.folder)
    whole.run()
    assert b.tuples() == whole.tuples()
