"""A deployment of real jobs: the daemon and the stream as processes, and all who tell of an incident."""

import html
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from config.deployment import load
from jobs import doctor, status
from jobs.report import write_page
from observe.deployment_problems import DeploymentState, deployment_problems
from schemas.conditions import CONDITIONS, Job
from schemas.errors import WarehouseError
from tests.jobs.standalone import free_port
from tests.observe.metrics.promtool import ROOT, RULES, promtool
from warehouse.warehouse import Warehouse

STALE_SECONDS = 12.0
"""`metrics.stale` of the deployment: the interval after which silence is an incident."""

ANSWER_SECONDS = 4.0
"""`subscribe.answer` and `subscribe.patience`."""

COMMANDS = {Job.STREAM: "run", Job.DAEMON: "subscribe"}
DOWN = {Job.STREAM: "down", Job.DAEMON: "subscribe_down"}
"""The condition that a job does not answer."""

ALONE = {one.name for one in CONDITIONS.values() if one.is_alert_only}
MINUTES = 80
"""How long the scraped values last in the series that promtool reads: longer than each alert waits."""


@dataclass(frozen=True)
class Told:
    """The conditions that each one who tells has named at about the same time."""

    status: set[str]
    exit_code: int
    doctor: set[str]
    report: set[str]
    pages: Mapping[Job, set[str] | None]
    """By job: the conditions of its page `/status`; None if it does not answer."""
    metrics: Mapping[Job, set[str] | None]
    alerts: set[str] | None
    """The conditions whose alerts fire on these metrics; None without promtool."""

    def disagreement(self) -> str:
        """Return who names others than `status`; empty if all name the same."""
        texts = []
        if self.exit_code != (1 if self.status else 0):
            texts.append(f"status ends with {self.exit_code}")
        others = {"doctor": self.doctor, "report": self.report}
        expected = dict.fromkeys(others, self.status)
        if self.alerts is not None:  # of a job that does not answer, Prometheus knows just this
            others["alerts"] = self.alerts
            silent = {job for job, page in self.pages.items() if page is None}
            expected["alerts"] = {
                one for one in self.status if CONDITIONS[one].job not in silent or one in DOWN.values()
            }
        for job, page in self.pages.items():
            if page is None:
                if DOWN[job] not in self.status:
                    texts.append(f"the {job} does not answer")
                continue
            own = {one for one in self.status if CONDITIONS[one].job is job}
            others |= {f"page of the {job}": page, f"metrics of the {job}": self.metrics[job] or set()}
            expected |= {f"page of the {job}": own, f"metrics of the {job}": own}
        texts += [
            f"{name} has {sorted(found)}" for name, found in others.items() if found != expected[name] - ALONE
        ]
        return "" if not texts else f"status has {sorted(self.status)}, {', '.join(texts)}"


@dataclass
class Jobs:
    """A configuration, and the running jobs of it."""

    folder: Path
    config: Path
    ports: dict[Job, int]
    processes: dict[Job, subprocess.Popen[bytes]] = field(default_factory=dict)
    log_starts: dict[Job, int] = field(default_factory=dict)
    """Lengths of the logs when the jobs were started the last time."""

    def start(self, job: Job) -> None:
        """Start a job; its output goes to a file."""
        self.log_starts[job] = len(self.log(job))
        output = (self.folder / f"{job}.log").open("ab")
        self.processes[job] = subprocess.Popen(
            [sys.executable, "-m", "aggregator", COMMANDS[job], "--config", str(self.config)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        output.close()

    def restart(self, job: Job) -> None:
        """Start a job again, after it is stopped if it still runs."""
        self.stop(job)
        self.start(job)

    def kill(self, job: Job) -> None:
        process = self.processes.pop(job)
        process.kill()
        process.wait()

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

    def has_written(self) -> bool:
        """Return whether the stream has written a batch since its last start."""
        return "rows/s, in " in self.log(Job.STREAM)[self.log_starts[Job.STREAM] :]

    def has_ended(self, job: Job) -> bool:
        return self.processes[job].poll() is not None

    def below(self, job: Job, word: str) -> int:
        """Wait for the process below a job's whose command line has a word, and return it."""
        found: list[int] = []

        def is_there() -> bool:
            found.extend(self._below(job, word))
            return bool(found)

        await_true(is_there, f"a process {word} below the {job}", 60.0)
        return found[0]

    def _below(self, job: Job, word: str) -> Iterator[int]:
        parents: dict[int, int] = {}
        lines: dict[int, str] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    stat = (folder / "stat").read_text()
                    lines[int(folder.name)] = (folder / "cmdline").read_text()
                    parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
        top = self.processes[job].pid
        for number, line in lines.items():
            above = number
            while above in parents and above != top:
                above = parents[above]
            if above == top and number != top and word in line:
                yield number

    def log(self, job: Job) -> str:
        """Return what a job has printed and logged so far."""
        file = self.folder / f"{job}.log"
        return file.read_text() if file.exists() else ""

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

    def problems(self) -> dict[str, str]:
        """Return {condition: text} of what `aggregator status` finds, asked in this process, which takes less time."""
        return {one.condition: one.text for one in deployment_problems(load(str(self.config)))}

    def unread(self) -> Mapping[str, int]:
        """Return, by source, the bytes of its logs that are not committed yet."""
        return DeploymentState(load(str(self.config))).unread_bytes

    def by_page(self, job: Job) -> set[str] | None:
        """Return the conditions that a job's page `/status` names; None if it does not answer."""
        text = self._read(job, "status")
        return None if text is None else {one["condition"] for one in json.loads(text)["problems"]}

    def told(self) -> Told:
        """Ask everyone; commands are called in this process, which takes a third of the time."""
        code, shown = _printed(lambda: status.show(load(str(self.config)), as_json=True))
        _, findings = _printed(lambda: doctor.show(str(self.config), is_json=True))
        texts = {job: self._read(job, "metrics") for job in COMMANDS}
        return Told(
            status={one["condition"] for one in shown["problems"]},
            exit_code=code,
            doctor={one["name"] for one in findings["findings"] if one["level"] != "ok"} & CONDITIONS.keys(),
            report=self._by_report(),
            pages={job: self.by_page(job) for job in COMMANDS},
            metrics={
                job: None if text is None else conditions_in_metrics(job, text) for job, text in texts.items()
            },
            alerts=firing(texts),
        )

    def _by_report(self) -> set[str]:
        """Return the conditions on the first screen of the page that `aggregator report` writes."""
        page = self.folder / "report.html"
        config = load(str(self.config))
        write_page(Warehouse(None, config.warehouse, config.database), page, config)
        return conditions_on_page(page)

    def end_of_logs(self) -> str:
        """Return the ends of the jobs' logs, for a failed test."""
        return "\n".join(f"{job}: {self.log(job)[-3000:]}" for job in COMMANDS)

    def _read(self, job: Job, page: str) -> str | None:
        with suppress(OSError):
            url = f"http://127.0.0.1:{self.ports[job]}/{page}"
            with urllib.request.urlopen(url, timeout=3) as answer:
                return str(answer.read().decode())
        return None


def _printed(command: Callable[[], int]) -> tuple[int, Any]:
    """Return the exit code of a command, and the JSON that it prints."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(io.StringIO()):
        code = command()
    return code, json.loads(output.getvalue())


def conditions_in_metrics(job: Job, text: str) -> set[str]:
    return set(re.findall(rf'^{job}_condition\{{condition="(\w+)"', text, re.MULTILINE))


def conditions_on_page(page: Path) -> set[str]:
    """Return the conditions on the first screen of the report's page."""
    first = page.read_text().partition('<section id="attention">')[2].partition("</section>")[0]
    return set(re.findall(r'class="condition">(\w+)<', html.unescape(first)))


def firing(metrics: Mapping[Job, str | None]) -> set[str] | None:
    """Return the conditions whose alerts fire if these metrics of the jobs last; None for a job that does not answer.

    promtool names each alert that fires although none is expected.
    """
    series = {}
    for job, text in metrics.items():
        series[f'up{{job="{job}", instance="i"}}'] = float(text is not None)
        for family in text_string_to_metric_families(text or ""):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    labels = {**sample.labels, "job": str(job), "instance": "i"}
                    pairs = ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(labels.items()))
                    series[f"{sample.name}{{{pairs}}}"] = sample.value
    names = {one.alert: one.name for one in CONDITIONS.values()}
    case = {
        "interval": "1m",
        "input_series": [{"series": one, "values": f"{value}x{MINUTES}"} for one, value in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{MINUTES - 1}m", "alertname": alert, "exp_alerts": []} for alert in names
        ],
    }
    whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(whole, file)
        file.flush()
        try:
            ended = promtool("test", "rules", file.name)
        except BaseException as error:  # pytest's, which skips a test
            if type(error).__name__ == "Skipped":
                return None
            raise
    assert ended.returncode == 0 or "exp:[]" in ended.stdout + ended.stderr, ended.stdout + ended.stderr
    return {names[one] for one in re.findall(r"alertname: (\w+), time", ended.stdout + ended.stderr)}


@contextmanager
def jobs(
    folder: Path, sources: Collection[Mapping[str, Any]], replicaset: Mapping[str, Any], **sections: Any
) -> Iterator[Jobs]:
    """Write a configuration, and stop all of its jobs at the end.

    Args:
        folder: For the configuration and the logs of the jobs.
        replicaset: The entry of `subscribe.replicasets`.
        **sections: Further keys: `warehouse`, `checkpoint`, ….
    """
    ports = {Job.STREAM: free_port(), Job.DAEMON: free_port()}
    answer = f"{ANSWER_SECONDS:.0f} seconds"
    whole: dict[str, Any] = {
        "trigger": "2 seconds",
        "sources": list(sources),
        "metrics": {"status": f"127.0.0.1:{ports[Job.STREAM]}", "stale": f"{STALE_SECONDS:.0f} seconds"},
        "subscribe": {
            "status": f"127.0.0.1:{ports[Job.DAEMON]}",
            "answer": answer,
            "patience": answer,
            "reconnect_longest": "1 second",
            "rotate": "1 MiB",
            "room": "1 MiB",
            "replicasets": [replicaset],
        },
        **sections,
    }
    config = folder / "deployment.yaml"
    config.write_text(json.dumps(whole))  # JSON is YAML
    made = Jobs(folder, config, ports)
    try:
        yield made
    finally:
        for job in COMMANDS:
            made.stop(job)


def await_true(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = 120.0) -> float:
    """Wait for a condition, and return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(
                f"{what if isinstance(what, str) else what()} did not come in {seconds:.0f} s"
            )
        time.sleep(0.5)
    return time.monotonic() - began


def committed_problems(jobs: Jobs) -> dict[str, str] | None:
    """Return {condition: text} of what `status` finds; None if nothing is committed yet."""
    try:
        return jobs.problems()
    except WarehouseError:
        return None
