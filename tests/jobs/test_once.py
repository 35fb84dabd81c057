"""Exactly once: equal tables however the stream is cut, killed, restarted, failed over, or reconfigured."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pipeline import batch
from schemas.errors import LockError
from tests.jobs.deployment import Deployment
from tests.truth import own
from warehouse.lock.lock import WriterLock

pytestmark = pytest.mark.spark

SPACES = ("accounts", "ledger", "to_trunc", "again")
"""Puts, updates, conflicts; synchronous and rolled back; truncated; dropped and made again."""

POLICIES = {"spaces": {"accounts": {"sequence": ["updated"]}}}


class Killed(Exception):  # noqa: N818 - not a mistake of anyone
    """Simulates the end of the process: our code does not catch it.

    Not a BaseException: that would hang the way back to the JVM.
    """


def deployed(folder: Path, *nodes: str, **settings: Any) -> Deployment:
    recording = own()
    sources = {node: recording.directory(node) for node in nodes}
    return Deployment(
        folder,
        sources,
        policies=POLICIES,
        spaces={"include": list(SPACES)},
        max_bytes_per_trigger=1 << 30,
        **settings,
    )


def state(deployment: Deployment) -> dict[str, Any]:
    """Return what must be equal: rows of the tables, older versions, the settled vclock."""
    tables = {name: deployment.table(name) for name in SPACES}
    for rows in tables.values():
        for row in rows.values():
            row.pop("_replicaset_id"), row.pop("_global_id")
    settled: dict[Any, int] = {}
    for row in deployment.rows("_changelog", ["replica_id", "lsn", "state", "file"]):
        if row["file"].endswith(".xlog") and row["replica_id"] is not None:
            key = (row["replica_id"], row["state"])
            settled[key] = settled.get(key, 0) + 1
    ids = {
        (row["uuid"], row["global_id"], row["local_id"], row["expelled_at"])
        for row in deployment.rows("_cluster")
        if row["replicaset_id"]
    }
    names = ("replicaset_id", "source", "local_id", "global_id", "since_lsn")
    maps = {tuple(row[name] for name in names) for row in deployment.rows("_applier_map")}
    return {"tables": tables, "changelog": settled, "ids": ids, "maps": maps}


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: ARG001
    """Return the state after one run in one batch."""
    deployment = deployed(tmp_path_factory.mktemp("whole"), "a1", "b1")
    deployment.write()
    return state(deployment)


def test_the_stream_may_be_cut_anywhere_and_its_batches_done_in_the_driver_or_in_tasks(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    deployment = deployed(tmp_path, "a1", "b1")
    deployment.run(max_bytes_per_trigger=60_000, local_bytes=100_000)
    executors = [row["executor"] for row in deployment.rows("_epochs", ["executor"])]
    assert len(executors) > 3
    assert set(executors) == {"driver", "tasks"}
    assert state(deployment) == whole


class Death:
    """Makes the job die once per run, each time at a new step."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.is_due = False

    def reached(self, step: str) -> None:
        """Die here if it is this step's turn."""
        if self.is_due and step not in self.steps:
            self.is_due = False
            self.steps.append(step)
            raise Killed(step)


@pytest.mark.soak
@pytest.mark.parametrize("local_bytes", [1 << 28, 1])
def test_the_job_may_die_after_any_step(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_bytes: int
) -> None:
    deployment, death = deployed(tmp_path, "a1", "b1"), Death()
    monkeypatch.setattr(batch, "log_step_done", death.reached)
    while not death.is_due:
        death.is_due = True
        with contextlib.suppress(StreamingQueryException):
            deployment.run(local_bytes=local_bytes)
    steps = {"_cluster", "_applier_map", "_changelog", "prepare", "files", *SPACES}
    assert steps | {"_versions", "_conflicts", "_schema", "_vclock", "_epochs"} <= set(death.steps)
    assert state(deployment) == whole


DRIVER = """
import os, sys
from jobs.main import main
from pipeline import batch
count = int(sys.argv.pop())
def reached(step):
    global count
    count -= 1
    if count == 0:
        os._exit(9)
batch.log_step_done = reached
sys.exit(main("run"))
"""


@pytest.mark.soak
@pytest.mark.parametrize("step", [4, 7])
def test_the_process_may_be_killed(whole: dict[str, Any], tmp_path: Path, step: int) -> None:
    deployment = deployed(tmp_path, "a1", "b1")
    file = tmp_path / "config.yaml"
    file.write_text(deployment.config().model_dump_json(), encoding="utf-8")
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    environment.pop("PYSPARK_GATEWAY_SECRET", None)
    command = [sys.executable, "-c", DRIVER, "--config", str(file), "--once", str(step)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 9, ended.stderr[-2000:]
    deployment.run()
    assert state(deployment) == whole


def test_a_second_writer_is_refused_and_writes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    deployment = deployed(tmp_path, "a1")
    opened = deployment.opened(spark)
    with WriterLock(opened, "the first"), pytest.raises(LockError, match="the first"):
        deployment.run()
    assert not deployment.rows("_epochs")


@pytest.mark.soak
def test_another_member_takes_over(tmp_path: Path, whole: dict[str, Any]) -> None:
    deployment = deployed(tmp_path, "a1", "b1")
    deployment.run(max_bytes_per_trigger=60_000, trigger="1 second")
    first = state(deployment)
    deployment.sources = {"a2": own().directory("a2"), "b1": own().directory("b1")}
    deployment.run()
    assert state(deployment) == first
    assert {name: set(rows) for name, rows in first["tables"].items()} == {
        name: set(rows) for name, rows in whole["tables"].items()
    }


@pytest.mark.soak
def test_a_replicaset_joins_and_one_leaves(whole: dict[str, Any], tmp_path: Path) -> None:
    deployment = deployed(tmp_path, "a1")
    deployment.run()
    deployment.sources = {"b1": own().directory("b1")}
    deployment.run()
    found = state(deployment)
    assert {n: {k: r["_tuple"] for k, r in t.items()} for n, t in found["tables"].items()} == {
        n: {k: r["_tuple"] for k, r in t.items()} for n, t in whole["tables"].items()
    }
    assert found["changelog"] == whole["changelog"]


@pytest.mark.soak
def test_a_gap_blocks_its_replicaset_until_another_member_fills_it(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    holed = tmp_path / "a1"
    shutil.copytree(own().directory("a1"), holed)
    logs = sorted(holed.glob("*.xlog"))
    logs[1].unlink()
    deployment = deployed(tmp_path, "a1", "b1")
    deployment.sources["a1"] = holed
    deployment.run()
    assert deployment.rows("_pending", ["lsn"])
    assert {row["state"] for row in deployment.rows("_gaps")} == {"open"}
    deployment.sources = {"a2": own().directory("a2"), "b1": own().directory("b1")}
    deployment.run()
    assert not deployment.rows("_pending", ["lsn"])
    newest = {
        row["first_lsn"]: row["state"] for row in sorted(deployment.rows("_gaps"), key=lambda r: r["epoch"])
    }
    assert set(newest.values()) == {"filled"}
    found = state(deployment)
    assert {n: set(t) for n, t in found["tables"].items()} == {n: set(t) for n, t in whole["tables"].items()}
    assert found["changelog"] == whole["changelog"]
