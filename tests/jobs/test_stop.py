"""A job that is asked to stop finishes its batch first; asked twice, it stops at once, and the batch is done later."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks.logs import Member
from tests.jobs.deployment import Deployment
from tests.live.commands import Command
from tests.sources.subscribe.following import await_until

pytestmark = pytest.mark.spark

ROWS = 30_000
STOPPED = 143


class Case:
    """A job in the middle of a batch that takes seconds."""

    def __init__(self, folder: Path) -> None:
        member = Member(folder, "a1", ["orders"])
        member.put("orders", range(ROWS))
        self.deployment = Deployment(folder, {"a1": member.path}, {"a1": member.replicaset})
        config = folder / "config.yaml"
        config.write_text(self.deployment.config(trigger="1 second").model_dump_json(), encoding="utf-8")
        self.job = Command("aggregate", config, folder / "said")

    def has(self, table: str, version: int = 1) -> bool:
        root = self.deployment.folder / "warehouse" / f"{self.deployment.database}.db" / table
        return (root / "_delta_log" / f"{version:020d}.json").exists()

    def await_batch(self) -> None:
        await_until(lambda: not self.job.is_running or self.has("_changelog"), "a batch", seconds=120)
        assert self.job.is_running, self.said()
        assert not self.has("_epochs"), "the batch is over"

    def said(self) -> str:
        return self.job.said.read_text()


def test_the_batch_in_progress_is_finished(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with case.job as job:
        case.await_batch()
        assert job.stop() == STOPPED
    assert case.has("_epochs")
    assert len(case.deployment.rows("orders", ["id"])) == ROWS
    assert "finished first" in case.said()
    assert case.said().rstrip().endswith("stopped")
    assert "ERROR" not in case.said()
    assert "Traceback" not in case.said()


@pytest.mark.soak
def test_asked_twice_it_stops_at_once(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with case.job as job:
        case.await_batch()
        os.kill(job.pid, signal.SIGTERM)
        await_until(lambda: "finished first" in case.said(), "the first answer")
        assert job.stop() == STOPPED
    assert not case.has("_epochs")
    with case.job as job:
        await_until(lambda: case.has("_epochs"), "the same batch", seconds=300)
        assert job.stop() == STOPPED
    assert len(case.deployment.rows("orders", ["id"])) == ROWS
