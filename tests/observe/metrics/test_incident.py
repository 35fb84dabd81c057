"""Incidents of a real stream on a real server: alerts fire during an incident, and no longer after the repair."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.live.server import Tarantool
from tests.observe.metrics.promtool import ROOT, RULES, promtool, rules

WAIT_SECONDS = 180.0
MINUTES = 40
"""How long each scrape lasts in the series that promtool reads."""

SPACE = """
    local s = box.schema.space.create('t', {format = {{'id', 'unsigned'}, {'name', 'string'}}})
    s:create_index('primary')
    s:insert{1, 'one'}
"""
Series = dict[str, float]
TRUE_AT = {
    "AggregatorSourceStale": ("lost", 5),
    "AggregatorGapOpen": ("gap", 10),
    "AggregatorRowsWaiting": ("gap", 20),
    "AggregatorRowsSetAside": ("set aside", 10),
}
"""For each alert, the incident and the minute in it when it must fire; after a repair no alert may fire."""

REPAIRED = ("healthy", "found", "filled", "mended")


class Incident:
    """A server, the copy of its logs that the stream reads, and the status page of the stream.

    Args:
        folder: The folder of the copy.
        port: The port of the status page.
    """

    def __init__(self, server: Tarantool, folder: Path, port: int) -> None:
        self.server, self.folder, self.port = server, folder, port
        self.held_back: set[str] = set()
        self.scrapes: list[tuple[str, Series]] = []
        self._next = 1000
        folder.mkdir()

    def copy(self) -> None:
        """Append the server's new rows to each log of the copy."""
        for file in sorted(self.server.directory.glob("*.*")):
            target = self.folder / file.name
            is_first_snapshot = file.suffix == ".snap" and not any(self.folder.glob("*.snap"))
            if file.suffix != ".xlog" and not is_first_snapshot and not target.exists():
                continue
            if file.name not in self.held_back:
                size = target.stat().st_size if target.exists() else 0
                with file.open("rb") as source, target.open("ab") as copied:
                    source.seek(size)
                    copied.write(source.read())

    def write(self) -> None:
        """Write a row, and copy it."""
        self._next += 1
        self.server.eval("box.space.t:replace{...}", self._next, "row")
        self.copy()

    def read(self) -> Series:
        """Return the values on the status page by series; empty before the page exists."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        return {
            series_name(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "_bucket" not in sample.name
        }

    def scrape(
        self, name: str, condition: Callable[[Series], bool], act: Callable[[], None] | None = None
    ) -> None:
        """Store the first scrape that fulfils a condition; call a function before each scrape."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            if act is not None:
                act()
            found = self.read()
            if found and condition(found):
                self.scrapes.append((name, found))
                return
            assert time.monotonic() < deadline, (name, found)
            time.sleep(0.2)

    def cases(self) -> dict[str, Any]:
        """Return the input of `promtool test rules`: the scrapes in order, and the expected alerts by time."""
        names = sorted({series for _, scraped in self.scrapes for series in scraped})
        series = [
            {"series": one, "values": " ".join(repeated(scraped.get(one)) for _, scraped in self.scrapes)}
            for one in names
        ]
        begins = {name: number * MINUTES for number, (name, _) in enumerate(self.scrapes)}
        tests: list[dict[str, Any]] = []
        for alert, (name, minute) in TRUE_AT.items():
            tests.append(case(alert, begins[name] + minute, fires_with(alert, dict(self.scrapes)[name])))
            tests += [case(alert, begins[one] + MINUTES - 1, []) for one in REPAIRED]
        whole = {"interval": "1m", "input_series": series, "alert_rule_test": tests}
        return {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [whole]}


def series_name(name: str, labels: dict[str, str]) -> str:
    """Return the name of a series with its labels, as after a scrape of the job `aggregator`."""
    whole = {**labels, "job": "aggregator", "instance": "stream"}
    return name + "{" + ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(whole.items())) + "}"


def repeated(value: float | None) -> str:
    """Return a value, or none, for each minute of a scrape: in promtool `ax9` is ten values, `_x10` ten times none."""
    return f"_x{MINUTES}" if value is None else f"{value}x{MINUTES - 1}"


def case(alert: str, minute: int, expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": expected}


def fires_with(alert: str, scraped: Series) -> list[dict[str, Any]]:
    """Return the expected alert, with the labels of the only series that is not 0."""
    metric = {
        "AggregatorSourceStale": "aggregator_source_stale",
        "AggregatorGapOpen": "aggregator_gaps_open",
        "AggregatorRowsWaiting": "aggregator_rows_waiting",
        "AggregatorRowsSetAside": "aggregator_set_aside_total",
    }[alert]
    (series,) = (one for one, value in scraped.items() if one.startswith(metric + "{") and value)
    pairs = (pair.partition("=") for pair in series.partition("{")[2].rstrip("}").split(", "))
    labels = {key: json.loads(value) for key, _, value in pairs}
    return [{"exp_labels": {**labels, "severity": rules()[alert]["labels"]["severity"]}}]


def value(scraped: Series, metric: str) -> float:
    return sum(one for series, one in scraped.items() if series.startswith(metric + "{"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def stream(config: Path, output: Path) -> Iterator[None]:
    """Run the stream as a command; stop it at the end of the block."""
    command = [sys.executable, "-m", "aggregator", "run", "--config", str(config)]
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env=dict(os.environ))
        try:
            yield
        except AssertionError as error:
            error.add_note(output.read_text()[-4000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.live
def test_alerts_fire_during_an_incident_and_not_after_it(tmp_path: Path) -> None:
    port, config = free_port(), tmp_path / "deployment.yaml"
    config.write_text(
        f"""
warehouse: {tmp_path}/warehouse
checkpoint: {tmp_path}/checkpoint
trigger: 1 second
sources: [{{name: a, path: {tmp_path}/copy}}]
spaces: {{misfits: {{t: quarantine}}}}
metrics: {{status: "127.0.0.1:{port}", stale: 10 seconds}}
"""
    )
    with Tarantool(tmp_path / "server", cfg={"checkpoint_count": 100}, lua=SPACE) as server:
        incident = Incident(server, tmp_path / "copy", port)
        incident.copy()
        with stream(config, tmp_path / "stream.log"):
            is_fed = {"act": incident.write}
            incident.scrape(
                "healthy", lambda s: value(s, "aggregator_rows_total") > 0 and not stale(s), **is_fed
            )

            incident.scrape("lost", stale)
            incident.scrape("found", lambda s: not stale(s), **is_fed)

            server.eval("box.snapshot()")
            incident.held_back.add(newest(server))
            incident.write()
            server.eval("box.snapshot()")
            incident.scrape(
                "gap", lambda s: value(s, "aggregator_rows_waiting") > 0 and not stale(s), **is_fed
            )
            incident.held_back.clear()
            incident.copy()
            repair = [sys.executable, "-m", "aggregator", "repair", "--config", str(config)]
            subprocess.run(repair, cwd=ROOT, check=True, capture_output=True, timeout=WAIT_SECONDS)
            incident.scrape(
                "filled",
                lambda s: (
                    not (value(s, "aggregator_rows_waiting") or value(s, "aggregator_gaps_open") or stale(s))
                ),
                **is_fed,
            )

            server.eval("box.space.t:replace{7, '\\xff\\xfe'}")
            incident.scrape("set aside", lambda s: value(s, "aggregator_set_aside_total") > 0, **is_fed)
            server.eval("box.space.t:replace{7, 'mended'}")
            incident.scrape("mended", lambda s: not stale(s), **is_fed)
    without = yaml.safe_load(RULES.read_text())
    for group in without["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(without))
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(incident.cases()))
    ended = promtool("test", "rules", tmp_path / "cases.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def stale(scraped: Series) -> bool:
    return value(scraped, "aggregator_source_stale") == 1


def newest(server: Tarantool) -> str:
    """Return the name of the server's next log file, which is created with its first row."""
    server.eval("box.space.t:replace{2, 'held back'}")
    return max(path.name for path in server.directory.glob("*.xlog"))
