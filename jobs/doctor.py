"""Check everything that can be checked before a run: `aggregator doctor`.

Reads the configuration, the machine, the sources, the masters, the store and the tables; changes nothing and starts no
Spark. The checks are in `observe.doctor`.
"""

from collections.abc import Iterator
from pathlib import Path

from config.deployment import Config, load, load_daemon_config
from config.yaml_document import read_document
from jobs.runtime.command_line import DONE, FAILED, print_result
from jobs.runtime.output import say, say_json
from observe.deployment_problems import deployment_problems
from observe.doctor.doctor import Deployment, findings_of
from observe.doctor.findings import Finding, Level, as_json, count_by_level, format_findings, warn
from schemas.errors import WarehouseError

WITHOUT_TABLES = {"warehouse_unknown", "table_unreadable", "table_lost"}
"""Names of findings with which the tables cannot be read."""

FOUND_BEFORE = {"disk_full", "table_changed", "table_lost"}
"""Conditions that have findings of `doctor` already."""

COLOUR_BY_LEVEL = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def read_deployment(file: str) -> Deployment:
    """Read a configuration file for the checks; `Deployment.config` is None if it is only for daemons."""
    data = read_document(Path(file)).data
    if isinstance(data, dict) and "sources" not in data and ("subscribe" in data or "relay" in data):
        live = load_daemon_config(file)
        return Deployment(None, live.subscribe, live.max_block_bytes)
    config = load(file)
    return Deployment(config, config.subscribe, config.max_block_bytes)


def current_problems(config: Config) -> Iterator[Finding]:
    """Yield a finding for each condition that is true now; those of `FOUND_BEFORE` have findings."""
    try:
        found = deployment_problems(config)
    except WarehouseError:  # nothing is committed yet
        return
    for one in found:
        if one.condition not in FOUND_BEFORE:
            yield warn(one.condition, one.subject, one.text, one.shown_advice)


def show(file: str, *, is_json: bool) -> int:
    """Print the findings, and return 1 if one of them would stop a run."""
    deployment = read_deployment(file)
    found = findings_of(deployment)
    if deployment.config is not None and not {one.name for one in found} & WITHOUT_TABLES:
        found += current_problems(deployment.config)
    if is_json:
        say_json(as_json(found))
    else:
        for level, line in format_findings(found):
            say(level, fg=COLOUR_BY_LEVEL[level], end=False)
            say(line[len(level) :])
    totals = count_by_level(found)
    said = f"{totals[Level.OK]} ok, {totals[Level.WARN]} warn, {totals[Level.FAIL]} fail"
    if totals[Level.FAIL]:
        print_result(said, f"mend what fails, then aggregator doctor --config {file}")
        return FAILED
    print_result(said, f"aggregator plan --config {file}")
    return DONE
