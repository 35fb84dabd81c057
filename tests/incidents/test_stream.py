"""Incidents of the stream and of its daemon, as processes: a reader that hangs, jobs that are killed or stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.conditions import Job
from tests.incidents.deployment import STALE_SECONDS, Jobs, await_true, jobs
from tests.incidents.pair import Pair, master_and_replica
from tests.incidents.test_daemon import servers

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.soak]

TWO_INTERVALS = 2 * STALE_SECONDS + 20
"""An incident is seen within two intervals; the rest is for commands on a busy machine."""


@pytest.fixture(scope="module", params=servers())
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Jobs, Pair]]:
    """Yield the jobs of a deployment that follows a master and its replica, which are written to all the time."""
    folder = tmp_path_factory.mktemp("incidents")
    with master_and_replica(folder, request.param) as pair:
        pair.master.eval(
            "box.session.su('admin', box.schema.user.grant, 'guest', 'replication', nil, nil, {if_not_exists = true})"
        )
        await_true(pair.is_replicated, "replication")
        with jobs(folder, {"a": folder / "spool"}, pair.addresses) as made, writes(pair):
            made.start(Job.DAEMON)
            await_true(lambda: made.by_page(Job.DAEMON) == set(), "the daemon")
            made.start(Job.STREAM)
            await_true(lambda: made.by_page(Job.STREAM) == set(), "the stream")
            await_true(lambda: made.by_status() == (set(), 0), "a batch")
            yield made, pair


@contextmanager
def writes(pair: Pair) -> Iterator[None]:
    """Write rows on the master as long as the block runs."""
    ended = threading.Event()

    def write() -> None:
        with pair.master.connect() as connection:
            while not ended.wait(0.5):
                connection.eval("box.space.t:replace{box.info.lsn}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def reader_of(process: int) -> int:
    """Return the process of the reader of logs below a stream's process."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
                lines[int(folder.name)] = (folder / "cmdline").read_text()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    for number, line in lines.items():
        above = number
        while above in parents and above != process:
            above = parents[above]
        if above == process and "python_streaming_source_runner" in line:
            return number
    raise AssertionError("there is no reader")


def test_a_reader_that_hangs_is_told_by_all(running: tuple[Jobs, Pair]) -> None:
    made, _ = running
    reader = reader_of(made.processes[Job.STREAM].pid)
    os.kill(reader, signal.SIGSTOP)
    try:
        made.await_status("reader_hung", "source_stale", seconds=TWO_INTERVALS)
        expected = {"reader_hung", "source_stale"}
        assert made.by_page(Job.STREAM) == expected
        assert made.by_metrics(Job.STREAM) == expected
        assert made.by_doctor() == expected
        assert "[reader_hung, page" in made.log(Job.STREAM)
        assert "bytes unread" in made.command("status").stdout
    finally:
        os.kill(reader, signal.SIGCONT)
    made.await_status(seconds=TWO_INTERVALS)
    assert made.by_metrics(Job.STREAM) == set()
    assert "reader_hung is over" in made.log(Job.STREAM)


@pytest.mark.parametrize(("job", "condition"), [(Job.STREAM, "down"), (Job.DAEMON, "subscribe_down")])
def test_a_job_that_is_stopped_does_not_answer(running: tuple[Jobs, Pair], job: Job, condition: str) -> None:
    made, _ = running
    process = made.processes[job]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        made.await_status(condition, seconds=TWO_INTERVALS, at_least=True)
        assert condition in made.by_doctor()
        assert made.by_page(job) is None  # Prometheus' `up` is 0
    finally:
        os.kill(process.pid, signal.SIGCONT)
    made.await_status(seconds=2 * TWO_INTERVALS)


@pytest.mark.parametrize(("job", "condition"), [(Job.STREAM, "down"), (Job.DAEMON, "subscribe_down")])
def test_a_job_that_is_killed(running: tuple[Jobs, Pair], job: Job, condition: str) -> None:
    made, _ = running
    process = made.processes.pop(job)
    process.kill()
    process.wait()
    time.sleep(1)
    made.await_status(condition, seconds=TWO_INTERVALS, at_least=True)
    assert condition in made.by_doctor()
    made.start(job)
    made.await_status(seconds=4 * TWO_INTERVALS)


def test_a_server_that_nobody_can_reach(running: tuple[Jobs, Pair]) -> None:
    made, pair = running
    for proxy in pair.proxies:
        proxy.partition(True)
    try:
        made.await_status("subscribe_failed", "subscribe_peer_gone", seconds=TWO_INTERVALS, at_least=True)
        assert made.by_page(Job.DAEMON) == made.by_metrics(Job.DAEMON)
        assert made.by_doctor() >= {"subscribe_failed", "subscribe_peer_gone"}
    finally:
        for proxy in pair.proxies:
            proxy.partition(False)
    made.await_status(seconds=2 * TWO_INTERVALS)
