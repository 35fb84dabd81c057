"""A job that gets SIGTERM finishes its batch first; at a second one it stops at once, and repeats the batch later."""

import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.logs import MemberLogs
from pipeline.stream import STOP_SECONDS
from tests.jobs.deployment import Deployment
from tests.jobs.slow_policy import ASLEEP
from tests.live.commands import Command
from tests.sources.subscribe.following import await_until

pytestmark = pytest.mark.spark

ROWS = 60_000
STOPPED = 143


class Case:
    """A job in the middle of a batch that takes seconds."""

    def __init__(self, folder: Path, rows: int = ROWS) -> None:
        member = MemberLogs(folder, "a1", ["orders"])
        member.replace("orders", range(rows))
        self.deployment = Deployment(folder, {"a1": member.path}, {"a1": member.replicaset}, local_bytes=1)
        config = folder / "config.yaml"
        config.write_text(self.deployment.config(trigger="1 second").model_dump_json(), encoding="utf-8")
        self.job = Command("aggregate", config, folder / "said")

    @property
    def root(self) -> Path:
        return self.deployment.folder / "warehouse" / f"{self.deployment.database}.db"

    def is_done(self) -> bool:
        """Whether the batch's epoch is committed, the last commit of all."""
        return (self.root / "_epochs" / "_delta_log").is_dir() and bool(self.deployment.rows("_epochs"))

    def await_batch(self) -> None:
        """Wait until the batch has written its first file; `_changelog` is written before the spaces."""
        written = (self.root / "_changelog").glob
        await_until(lambda: not self.job.is_running or any(written("*.parquet")), "a batch", seconds=120)
        assert self.job.is_running, self.said()
        assert not self.is_done(), "the batch is over"

    def said(self) -> str:
        return self.job.log.read_text()


def test_the_batch_in_progress_is_finished(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with case.job as job:
        case.await_batch()
        assert job.stop() == STOPPED
    assert case.is_done()
    assert len(case.deployment.rows("orders", ["id"])) == ROWS
    assert "finished first" in case.said()
    assert case.said().rstrip().endswith("stopped")
    assert "ERROR" not in case.said()
    assert "Traceback" not in case.said()


@pytest.mark.soak
def test_a_batch_that_takes_long_is_left_unfinished(tmp_path: Path) -> None:
    """Service managers kill a job that does not stop in time; Spark's exception would then be its last word."""
    members = [MemberLogs(tmp_path, name, ["orders"]) for name in ("a1", "b1")]
    for member in members:
        member.replace("orders", range(3))
    deployment = Deployment(
        tmp_path,
        {name: member.path for name, member in zip(("a1", "b1"), members, strict=True)},
        {name: member.replicaset for name, member in zip(("a1", "b1"), members, strict=True)},
        policies={"default": {"policy": "custom", "function": "tests.jobs.slow_policy:wait"}},
    )
    config = tmp_path / "config.yaml"
    config.write_text(deployment.config(trigger="1 second").model_dump_json(), encoding="utf-8")
    with Command("aggregate", config, tmp_path / "said") as job:
        await_until(lambda: ASLEEP in job.log.read_text(), "the batch", seconds=240)
        began = time.monotonic()
        assert job.stop() == STOPPED
        assert time.monotonic() - began < STOP_SECONDS + 15
        assert "left unfinished" in job.log.read_text()
        assert "NullPointerException" not in job.log.read_text()


@pytest.mark.soak
def test_a_second_signal_stops_it_at_once(tmp_path: Path) -> None:
    rows = 5 * ROWS  # on a busy machine the batch must last until the second signal
    case = Case(tmp_path, rows)
    with case.job as job:
        case.await_batch()
        os.kill(job.pid, signal.SIGTERM)
        await_until(lambda: "finished first" in case.said(), "the first answer")
        assert job.stop() == STOPPED
    assert not case.is_done()
    with case.job as job:
        await_until(case.is_done, "the same batch", seconds=300)
        assert job.stop() == STOPPED
    assert len(case.deployment.rows("orders", ["id"])) == rows
