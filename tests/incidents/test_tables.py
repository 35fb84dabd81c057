"""What tables and the stream's watch show of incidents is told alike by all, in one process and without Spark.

`tests/incidents/test_incidents.py` causes incidents on real servers and jobs.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from config.deployment import Config, load
from config.values import listen_address
from jobs import doctor, status
from jobs.report import write_page
from observe import write_costs
from observe.facts import DeploymentFacts
from observe.metrics.committed_batches import CommittedBatchReader
from observe.metrics.health import StreamHealth
from observe.metrics.stream_metrics import StreamMetrics
from observe.status_page import status_page
from pipeline.commit.costs import BatchCosts, store_costs
from pipeline.compaction.debt import CompactionDebt
from schemas.conditions import CONDITIONS, DEBT_BYTES, Job
from schemas.tables import SYSTEM_TABLES
from tests.incidents.deployment import Told, conditions_in_metrics, conditions_on_page, firing
from tests.incidents.machine import fill, small_disk
from tests.jobs.standalone import free_port
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_lost_tail import Case
from udfs.remap.cluster_replace import IncomingMember
from warehouse.copies.rid import RidTable
from warehouse.delta.location import location_of
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse

BEHIND = CompactionDebt(1000, 501, DEBT_BYTES + 1)
TABLES = {"gap_open", "rows_waiting", "spaces_refused", "rows_set_aside", "misfits", "table_changed"}


def written(folder: Path) -> Deployment:
    """Return a deployment in whose tables each condition of `TABLES` is true."""
    a = Node(folder, "a1").define(600, "people").define(601, "strict").define(602, "fine")
    a.put(600, 1, "\udcff", 1, 1).put(600, 2, "x", 1, 1).put(601, 1, "\udcff", 1, 1).put(
        602, 1, "x", 1, 1
    ).put(602, 2, "y", 1, 1)
    a.close()
    hole = a.put(602, 3, "lost", 1, 1).close()
    a.put(602, 4, "waits", 1, 1).close()
    hole.unlink()
    b = Node(folder, "b1").define(600, "fine", [("id", "string"), ("name", "string")])
    b.close()
    settings: dict[str, Any] = {"spaces": {"misfits": {"strict": "quarantine"}}}
    made = Deployment(folder, {"a1": a.path, "b1": b.path}, replicasets_of("a1", "b1"), **settings)
    made.run()
    DeltaTable(str(folder / "warehouse" / "aggregator.db" / "people")).delete("id = 2")
    return made


@contextmanager
def watched(deployment: Deployment, lock: list[bool], costs: BatchCosts | None = None) -> Iterator[Path]:
    """Serve the status page of a stream's watch; yield the file of the configuration."""
    address = f"127.0.0.1:{free_port()}"
    whole = {**deployment.config().model_dump(mode="json"), "metrics": {"status": address, "stale": "1 hour"}}
    file = deployment.folder / "deployment.yaml"
    file.write_text(json.dumps(whole))
    config = load(str(file))
    location = location_of(config.warehouse, config.database)
    committed = CommittedBatchReader(location)
    metrics = StreamMetrics(5.0, 3600.0, committed.open_gaps(), is_lock_held=lambda: lock[0])
    committed._last_epoch = -1  # so that all batches are new
    for batch in committed.new_batches():
        metrics.count_batch(batch)
    metrics.set_pending(committed.pending_counts())
    facts = DeploymentFacts(location)
    metrics.set_epoch(int(facts.epoch_row["epoch"]), facts.committed_at.timestamp(), facts.positions)
    if costs is not None:
        store_costs(config.cache.folder(config.checkpoint), costs)
        metrics.count_costs(costs)
    health = StreamHealth(config, location, metrics, is_endless=True)
    health.look()
    with status_page(listen_address(address), metrics, metrics.status):
        yield file


def told(file: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Ask everyone about the deployment of a file."""
    config = load(str(file))
    capsys.readouterr()
    code = status.show(config, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    doctor.show(str(file), is_json=True)
    findings = json.loads(capsys.readouterr().out)["findings"]
    page = file.with_suffix(".html")
    write_page(Warehouse(None, config.warehouse, config.database), page, config)
    asked: dict[str, Any] = json.loads(_read(config, "status"))
    metrics = _read(config, "metrics")
    return Told(
        status={one["condition"] for one in shown["problems"]},
        exit_code=code,
        doctor={one["name"] for one in findings if one["level"] != "ok"} & CONDITIONS.keys(),
        report=conditions_on_page(page),
        pages={Job.STREAM: {one["condition"] for one in asked["problems"]}},
        metrics={Job.STREAM: conditions_in_metrics(Job.STREAM, metrics)},
        alerts=firing({Job.STREAM: metrics}),
    )


def _read(config: Config, page: str) -> str:
    assert config.metrics is not None
    with urllib.request.urlopen(f"http://{config.metrics.status}/{page}", timeout=10) as answer:
        return str(answer.read().decode())


def test_conditions_of_tables_lock_and_compaction_are_told_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, lock = written(tmp_path), [False]
    monkeypatch.setattr(write_costs, "_debt_now", lambda _location, table: {"people": BEHIND}.get(table))
    with watched(deployment, lock, BatchCosts(debts={"people": BEHIND})) as file:
        found = told(file, capsys)
        assert found.status == {*TABLES, "lock_lost", "compaction_debt"}
        assert found.disagreement() == ""
        lock[0] = True
        assert "lock_lost" not in told(file, capsys).status


def _rid(warehouse: Warehouse) -> Callable[[], object]:
    rid = RidTable(warehouse.location)
    rid.update("promote", 1, lambda node: node, is_always_written=True)
    return lambda: rid.update("unlock", 2, lambda node: node, is_always_written=True)


def _cluster(warehouse: Warehouse) -> Callable[[], object]:
    warehouse.create(cluster.TABLE, SYSTEM_TABLES[cluster.TABLE])
    now = datetime.now(UTC)
    cluster.record_allocation(warehouse, "counter", now)
    member = IncomingMember("aaaaaaaa-0000-4000-8000-000000000001", 1, "aaaaaaaa-0000-4000-8000-000000000000")
    return lambda: cluster.allocate(warehouse, [member], now)


@pytest.mark.parametrize("table", [_rid, _cluster])
def test_a_full_disk_prints_nothing_besides_the_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], table: Callable[[Warehouse], Callable[[], object]]
) -> None:
    with small_disk(tmp_path / "lake", 2) as disk:
        change = table(Warehouse(None, str(disk)))
        fill(disk)
        with pytest.raises((OSError, DeltaError), match=r"[Nn]o space left"):
            change()
        assert capfd.readouterr() == ("", "")


def test_a_divergence_is_told_alike_until_it_is_healed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, read=6)
    with watched(case.deployment, [True]) as file:
        found = told(file, capsys)
        assert (found.status, found.disagreement()) == ({"divergence"}, "")
    case.heal()
    for number in range(7, 15):
        case.node.put(600, number, "right", 1, 1)
    case.node.close()
    case.again()
    case.node.snapshot({600: [(1, "same", 1, 1), *((i, "right", 1, 1) for i in range(5, 15))]})
    case.heal()
    with watched(case.deployment, [True]) as file:
        found = told(file, capsys)
        assert (found.status, found.disagreement()) == (set(), "")
