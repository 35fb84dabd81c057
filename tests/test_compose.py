"""`compose.yaml` as far as it can be checked without a container runtime: its files, commands and configuration."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from config.deployment import load, load_daemon_config
from jobs.main import commands

ROOT = Path(__file__).resolve().parents[1]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
SERVERS = {
    name: service for name, service in SERVICES.items() if "DEMO_CFG" in service.get("environment", {})
}


def test_it_has_each_part() -> None:
    assert set(SERVERS) == {"a1", "a2", "b1", "b2"}
    assert set(OURS) == {"daemon", "stream"}
    assert {"prometheus", "grafana"} < set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_each_mounted_file_and_each_dependency_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.partition(":")[0]
        assert source in {"sockets", "data"} or (ROOT / source).exists(), source
    assert set(SERVICES[name].get("depends_on", [])) <= set(SERVICES)


@pytest.mark.parametrize("name", OURS)
def test_each_command_takes_its_options(name: str) -> None:
    word, *options = OURS[name]["command"]
    command = commands.get_command(click.Context(commands), word)
    assert command is not None
    context = command.make_context(word, options)
    inside = Path(context.params["config"])
    file = ROOT / "conf" / "compose" / inside.relative_to("/etc/aggregator")
    assert load(file).sources
    section = load_daemon_config(file).subscribe
    assert section is not None
    spools = {replicaset.spool for replicaset in section.replicasets}
    assert spools == {source.path for source in load(file).sources}
    sockets = {peer.removeprefix("unix/:") for each in section.replicasets for peer in each.peers}
    assert sockets == {service["environment"]["DEMO_SOCKET"] for service in SERVERS.values()}


@pytest.mark.parametrize("name", SERVERS)
def test_each_server_has_what_its_script_reads(name: str) -> None:
    environment = SERVERS[name]["environment"]
    wanted = set(re.findall(r"getenv\('(\w+)'\)", (ROOT / "live_demo" / "server.lua").read_text()))
    assert wanted - {"DEMO_PARENT"} == set(environment)
    cfg = json.loads(environment["DEMO_CFG"])
    assert cfg["listen"] == f"unix/:{environment['DEMO_SOCKET']}"
    assert environment["DEMO_OTHER"] in {one["environment"]["DEMO_SOCKET"] for one in SERVERS.values()}


@pytest.mark.parametrize("name", OURS)
def test_each_image_copies_what_exists(name: str) -> None:
    text = (ROOT / OURS[name]["build"]["dockerfile"]).read_text()
    copied = re.findall(r"^COPY (\S+)", text, re.MULTILINE)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert rooms - set(copied) == {"live_demo", "tests", "benchmarks", "airflow_dags"}
