"""A request for maintenance, as the writer serves it between two batches: its arguments, and what it removes."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pipeline.requests import service as service_module
from pipeline.requests.service import Service
from schemas.states import RequestState
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from tests.pipeline.retention.cleaned import DAY, S
from warehouse.system_tables import maintenance, requests
from warehouse.system_tables.requests import Request
from warehouse.warehouse import Warehouse

MONTH = {"tombstones": 30, "changelog": 30, "epochs": 30}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return tables with epochs 40 days old, and an even older deletion in the log."""
    folder = tmp_path_factory.mktemp("made")
    node = Node(folder, "a1").define(S, "s").put(S, 1, "", 1, 1).delete(S, 1)
    made = Deployment.aggregated(folder, node)
    node.put(S, 2, "", 1, 1, at=100 * DAY).close()
    made.run()
    earlier = {"committed_at": "committed_at - interval '40 days'"}
    with made.writer() as (warehouse, _):
        warehouse.open_tables.change(
            "_epochs", lambda table, properties: table.update(updates=earlier, commit_properties=properties)
        )
    return made


@pytest.fixture
def deployment(made: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Return a copy of these tables."""
    monkeypatch.setattr(maintenance, "vacuum", lambda *_: None)  # Spark's work
    shutil.copytree(made.folder / "warehouse", tmp_path / "warehouse")
    copied = Deployment(tmp_path, made.sources, made.replicasets)
    copied.offset, copied.batches = made.offset, made.batches
    return copied


@contextmanager
def serving(
    deployment: Deployment, log_step: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[Warehouse, Service]]:
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    with deployment.writer() as (warehouse, writer):
        service = Service(
            cast(SparkSession, spark), warehouse, deployment.config(), writer, log_step=log_step
        )
        yield warehouse, service


def asked(deployment: Deployment, **arguments: Any) -> Request:
    with serving(deployment) as (warehouse, service):
        request = requests.ask(warehouse, "maintenance", {"keep_days": 7, **arguments})
        service.serve()
        return requests.with_newest_state(warehouse, request)


def test_each_long_step_is_said_when_it_begins(deployment: Deployment) -> None:
    steps: list[str] = []
    with serving(deployment, steps.append) as (warehouse, service):
        requests.ask(warehouse, "maintenance", {"keep_days": 7, "retention": MONTH, "sources": ["a1"]})
        service.serve()
    removed = "removing 3 rows of _changelog, 1 rows of _versions, 1 rows of _epochs"
    assert [step.partition(" ")[0] for step in steps] == [
        "setting",
        "joining",
        "looking",
        "removing",
        "removing",
    ]
    assert removed in steps


def counts(deployment: Deployment) -> dict[str, int]:
    return {name: len(deployment.rows(name)) for name in ("_changelog", "_versions", "_epochs")}


def test_the_retention_of_the_request_applies(deployment: Deployment) -> None:
    before = counts(deployment)
    answer = asked(deployment, retention=MONTH, sources=["a1"])
    assert answer.state == RequestState.DONE
    message = (
        "3 rows of _changelog were removed; 1 rows of _versions were removed; 1 rows of _epochs were removed"
    )
    assert message in str(answer.message)
    assert counts(deployment) == {"_changelog": before["_changelog"] - 3, "_versions": 0, "_epochs": 2}


def test_a_request_without_retention_removes_nothing(deployment: Deployment) -> None:
    before = counts(deployment)
    assert asked(deployment).state == RequestState.DONE
    assert {**counts(deployment), "_epochs": 0} == {**before, "_epochs": 0}


def test_a_space_keeps_its_versions_for_its_own_retention(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours: dict[str, float] = {}
    monkeypatch.setattr(maintenance, "vacuum", lambda _warehouse, table, kept: hours.update({table: kept}))
    deployment.settings["spaces"] = {"tables": {"s": {"retention": 30}}}
    assert asked(deployment).state == RequestState.DONE
    assert hours.pop("s") == 30 * 24.0
    assert set(hours.values()) == {7 * 24.0}
    with deployment.writer() as (warehouse, _):
        assert warehouse.property("s", maintenance.FILES_PROPERTY) == "interval 30 days"


def test_deletions_stay_while_a_source_is_new_to_the_stream(deployment: Deployment) -> None:
    answer = asked(deployment, retention=MONTH, sources=["a1", "b1"])
    assert "source b1: the running stream does not read it yet" in str(answer.message)
    assert counts(deployment)["_versions"] == 1


def test_a_failed_request_changes_nothing(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    before = counts(deployment)

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(service_module, "commit_epoch", fails)
    with pytest.raises(OSError, match="the disk is full"):
        asked(deployment, retention=MONTH, sources=["a1"])
    # The number of the epoch that was rolled back is not used again: an epoch after it says so.
    assert counts(deployment) == {**before, "_epochs": before["_epochs"] + 1}
    with deployment.writer() as (warehouse, writer):
        assert [one.state for one in requests.load(warehouse)] == [RequestState.FAILED]
        assert writer.state.epoch == 3


@pytest.mark.parametrize(
    ("kind", "arguments", "why"),
    [
        ("maintenance", {"keep_days": 6}, "'keep_days' is wrong: Input should be greater than or equal to 7"),
        ("maintenance", {"keep_days": "soon"}, "'keep_days' is wrong"),
        ("maintenance", {}, "'keep_days' is wrong: Field required"),
        ("heal", {}, "'source' is wrong"),
        ("snapshot", {"spaces": []}, "'spaces' is wrong"),
        ("backfill", {"from": "long ago"}, "'from' is wrong"),
        ("rebuild", {"space": "s", "policy": {"policy": "luck"}}, "'policy.policy' is wrong"),
        ("dance", {}, "of the kind 'dance'"),
    ],
)
def test_wrong_arguments_are_refused_and_the_writer_continues(
    deployment: Deployment, kind: str, arguments: dict[str, Any], why: str
) -> None:
    before = counts(deployment)
    with serving(deployment) as (warehouse, service):
        request = requests.ask(warehouse, kind, arguments)
        assert service.serve() == 1
        answer = requests.with_newest_state(warehouse, request)
    assert answer.state == RequestState.FAILED
    assert why in str(answer.message)
    assert counts(deployment) == before


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_malformed_arguments_do_not_stop_the_start(deployment: Deployment, text: str) -> None:
    with serving(deployment) as (warehouse, service):
        row = {"request": "r", "kind": "maintenance", "arguments": text, "state": "asked", "message": None}
        now = datetime.now(UTC)
        warehouse.append_rows(requests.TABLE, [{**row, "asked_at": now, "changed_at": now}])
        service.serve()
        assert [one.state for one in requests.load(warehouse)] == [RequestState.FAILED]
