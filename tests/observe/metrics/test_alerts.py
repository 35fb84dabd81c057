"""The alerts and the dashboard: their metrics, labels and links exist, and promtool accepts them."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from observe.metrics.committed_batches import CommittedBatchReader
from observe.metrics.stream_metrics import StreamMetrics, TriggerReport
from pipeline.commit.costs import BatchCosts
from pipeline.compaction.debt import CompactionDebt
from pipeline.replication_out.service import ReplicationMetrics
from sources.relay.server import RelayMetrics
from sources.subscribe.daemon import DaemonMetrics
from tests.observe.metrics.promtool import ROOT, RULES, promtool, rules
from tests.observe.report.warehouses import write_warehouse
from tests.test_documents import anchors
from warehouse.copies.standbys import StandbyState
from warehouse.delta.location import location_of

DASHBOARD = ROOT / "conf" / "grafana" / "aggregator.json"
METRICS_OF_PROMETHEUS = {"up"}
FUNCTIONS = {
    *("and", "on", "or", "unless", "offset", "by", "sum", "time", "vector", "le"),
    *("rate", "increase", "histogram_quantile"),
}
LABELS_OF_TARGETS = {"instance", "job"}
RENAMED = {"exported_instance": "instance"}
"""Prometheus renames an exported label if the scraped target has a label of the same name."""

Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    """Return the labels of each metric that the real collectors export."""
    folder = tmp_path_factory.mktemp("books")
    write_warehouse(folder, 3)
    committed = CommittedBatchReader(location_of(str(folder)))
    committed._last_epoch = -1  # so that all batches are new
    metrics = StreamMetrics(0.5, 1.0, committed.open_gaps(), standbys=lambda: [StandbyState("/b", True, 4)])
    for batch in committed.new_batches():
        metrics.count_batch(batch)
        metrics.count_batch(
            replace(batch, quarantined_by_space={"accounts": 1}, misfits_by_space={"accounts": 1})
        )
    metrics.set_pending(committed.pending_counts())
    metrics.count_costs(BatchCosts(debts={"accounts": CompactionDebt()}))
    metrics.count_trigger(
        TriggerReport("q", 1, {"triggerExecution": 1.0}, frozenset({"a"}), {"a": 5}), has_batch=True
    )
    service: Any = SimpleNamespace(mark=None, lag=0.0, error=None, left_out=())
    found: Labels = {}
    for collector in (metrics, DaemonMetrics([]), RelayMetrics([]), ReplicationMetrics(service)):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        text = generate_latest(registry).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        for family in collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            found.setdefault(name, set()).update(getattr(family, "_labelnames", ()))
    return found


def panels() -> Iterator[dict[str, Any]]:
    metrics = json.loads(DASHBOARD.read_text())
    yield from (panel for panel in metrics["panels"] if panel["type"] != "row")


def expressions() -> list[tuple[str, str, str]]:
    """Return (alert or panel, PromQL expression, text that shows its labels) of all alerts and panels."""
    found = [
        (name, rule["expr"], " ".join(rule["annotations"].values()).replace("$labels.", ""))
        for name, rule in rules().items()
    ]
    for panel in panels():
        found += [(panel["title"], target["expr"], target["legendFormat"]) for target in panel["targets"]]
    return found


def metrics_in(expression: str) -> set[str]:
    """Return the metrics in an expression: every name except functions, labels, texts, times and numbers."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b(?:by|on) \([^)]*\)', " ", expression)
    return set(re.findall(r"\b[a-z][a-z_]+\b", bare)) - FUNCTIONS


@pytest.mark.parametrize(("name", "expression", "shown"), expressions(), ids=lambda text: str(text)[:30])
def test_each_metric_and_each_label_exists(name: str, expression: str, shown: str, labels: Labels) -> None:
    metrics = metrics_in(expression) - METRICS_OF_PROMETHEUS
    assert metrics <= labels.keys(), name
    known = LABELS_OF_TARGETS | {"le"}.union(*(labels[metric] for metric in metrics))
    wanted = {RENAMED.get(one, one) for one in re.findall(r"\{\{ ?([a-z_]+) ?\}\}", shown)}
    grouped = {
        one.strip()
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        for one in group.split(",")
    }
    assert (wanted - {"value"}) | grouped - {""} <= known


def test_metrics_are_found_in_an_expression() -> None:
    found = metrics_in('sum by (le) (rate(a_bucket{job=~"x|y"}[5m])) > 0.5 and on (x) b_total offset 15m')
    assert found == {"a_bucket", "b_total"}


@pytest.mark.parametrize("name", rules())
def test_each_alert_links_to_its_entry_in_the_docs(name: str) -> None:
    rule = rules()[name]
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == f"alert-{name.lower()}"
    assert anchor in anchors(ROOT / path)
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in {"page", "ticket"}


def test_the_docs_have_no_other_alert() -> None:
    in_docs = {
        one for one in anchors(ROOT / "docs" / "reference" / "conditions.md") if one.startswith("alert-")
    }
    assert in_docs == {f"alert-{name.lower()}" for name in rules()}


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = yaml.safe_load((RULES.parent / "alerts_test.yaml").read_text())["tests"]
    found = [
        (test["alertname"], bool(test["exp_alerts"])) for case in cases for test in case["alert_rule_test"]
    ]
    assert {name for name, fires in found if fires} == set(rules())
    assert {name for name, fires in found if not fires} == set(rules())


def test_panels_have_unique_titles_and_do_not_overlap() -> None:
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))
    occupied: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        where = panel["gridPos"]
        own = {(where["x"] + x, where["y"] + y) for x in range(where["w"]) for y in range(where["h"])}
        assert not own & occupied, panel["title"]
        assert where["x"] + where["w"] <= 24
        occupied |= own


def test_the_provisioning_names_existing_files() -> None:
    (source,) = yaml.safe_load((DASHBOARD.parent / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((DASHBOARD.parent / "dashboards" / "aggregator.yaml").read_text())[
        "providers"
    ]
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert [one.partition(":")[2] for one in services["grafana"]["volumes"]] == [
        f"{provider['options']['path']}:ro"
    ]
    jobs = yaml.safe_load((RULES.parent / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {one["job_name"]: one["static_configs"][0]["targets"] for one in jobs}
    ports = yaml.safe_load((ROOT / "conf" / "compose" / "deployment.yaml").read_text())
    stream, daemon = ports["metrics"]["status"], ports["subscribe"]["status"]
    assert targets == {
        "aggregator": [f"stream:{stream.rpartition(':')[2]}"],
        "subscribe": [f"daemon:{daemon.rpartition(':')[2]}"],
    }


def test_promtool_accepts_the_rules_and_their_cases() -> None:
    for arguments in (
        ("check", "config", RULES.parent / "prometheus.yaml"),
        ("test", "rules", RULES.parent / "alerts_test.yaml"),
    ):
        ended = promtool(*arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_expressions_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    rule = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(panel_expressions())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rule}]}))
    ended = promtool("check", "rules", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def panel_expressions() -> Iterable[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]
