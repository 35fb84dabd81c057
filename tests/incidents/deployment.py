"""A deployment of real jobs on real servers: the daemon, the stream, and all who tell of an incident."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.conditions import CONDITIONS, Job
from tests.observe.metrics.promtool import ROOT
from tests.observe.metrics.test_incident import free_port

STALE_SECONDS = 12.0
"""`metrics.stale` of the deployment: the interval after which silence is an incident."""

COMMANDS = {Job.STREAM: "run", Job.DAEMON: "subscribe"}


@dataclass
class Jobs:
    """A configuration, and the running jobs of it."""

    folder: Path
    config: Path
    ports: dict[Job, int]
    processes: dict[Job, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, job: Job) -> None:
        """Start a job; its output goes to a file."""
        output = (self.folder / f"{job}.log").open("ab")
        self.processes[job] = subprocess.Popen(
            [sys.executable, "-m", "aggregator", COMMANDS[job], "--config", str(self.config)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        output.close()

    def stop(self, job: Job) -> None:
        """Stop a job as a service manager does."""
        process = self.processes.pop(job, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log(self, job: Job) -> str:
        """Return what a job has printed and logged so far."""
        return (self.folder / f"{job}.log").read_text()

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the aggregator."""
        return subprocess.run(
            [sys.executable, "-m", "aggregator", *words, "--config", str(self.config)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def by_page(self, job: Job) -> set[str] | None:
        """Return the conditions that a job's page `/status` names; None if it does not answer."""
        text = self._read(job, "status")
        return None if text is None else {one["condition"] for one in json.loads(text)["problems"]}

    def by_metrics(self, job: Job) -> set[str] | None:
        """Return the conditions that a job's metrics name; None if it does not answer."""
        text = self._read(job, "metrics")
        found = re.compile(rf'^{job}_condition\{{condition="(\w+)"', re.MULTILINE)
        return None if text is None else set(found.findall(text))

    def by_status(self) -> tuple[set[str], int]:
        """Return the conditions that `aggregator status` names, and its exit code."""
        ended = self.command("status", "--json")
        if not ended.stdout:  # nothing is committed yet
            return {ended.stderr}, ended.returncode
        return {one["condition"] for one in json.loads(ended.stdout)["problems"]}, ended.returncode

    def by_doctor(self) -> set[str]:
        """Return the conditions that `aggregator doctor` names."""
        found = json.loads(self.command("doctor", "--json").stdout)["findings"]
        return {one["name"] for one in found if one["level"] != "ok"} & CONDITIONS.keys()

    def await_status(self, *conditions: str, seconds: float, at_least: bool = False) -> float:
        """Wait until `aggregator status` names exactly these conditions (or at least them); return the seconds."""
        began, found = time.monotonic(), set[str]()
        while time.monotonic() - began < seconds:
            found, code = self.by_status()
            if found == set(conditions) or (at_least and found >= set(conditions)):
                assert code == (1 if found else 0)
                return time.monotonic() - began
            time.sleep(0.5)
        raise AssertionError(f"{conditions} did not come: {found}\n{self._logs()}")

    def _logs(self) -> str:
        return "\n".join(self.log(job)[-3000:] for job in self.processes)

    def _read(self, job: Job, page: str) -> str | None:
        with suppress(OSError):
            url = f"http://127.0.0.1:{self.ports[job]}/{page}"
            with urllib.request.urlopen(url, timeout=3) as answer:
                return str(answer.read().decode())
        return None


@contextmanager
def jobs(
    folder: Path, sources: dict[str, Path], peers: list[str] | None = None, **sections: Any
) -> Iterator[Jobs]:
    """Write a configuration, and stop all of its jobs at the end; with `peers` the only source is a daemon's spool."""
    ports = {Job.STREAM: free_port(), Job.DAEMON: free_port()}
    whole: dict[str, Any] = {
        "warehouse": str(folder / "warehouse"),
        "checkpoint": str(folder / "checkpoint"),
        "trigger": "1 second",
        "sources": [{"name": name, "path": str(path)} for name, path in sources.items()],
        "metrics": {"status": f"127.0.0.1:{ports[Job.STREAM]}", "stale": f"{STALE_SECONDS:.0f} seconds"},
        **sections,
    }
    if peers is not None:
        replicaset = {"name": "a", "spool": str(sources["a"]), "peers": peers}
        whole["subscribe"] = {"status": f"127.0.0.1:{ports[Job.DAEMON]}", "replicasets": [replicaset]}
    config = folder / "deployment.yaml"
    config.write_text(json.dumps(whole))  # JSON is YAML
    made = Jobs(folder, config, ports)
    try:
        yield made
    finally:
        for job in (Job.STREAM, Job.DAEMON):
            made.stop(job)


def await_true(condition: Callable[[], bool], what: str, seconds: float = 400.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)
