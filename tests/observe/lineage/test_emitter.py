"""Events of real runs, sent to a file; and services that cannot be reached."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

pytest.importorskip("openlineage.client", reason="needs the extra 'lineage'")

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

from config.deployment import Config
from observe.lineage.emitter import MAX_WAITING_EVENTS, LineageEmitter, lineage_events
from pipeline.commit.batch import BatchName
from schemas.errors import ConfigurationError
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node

USERS = 600
EVENT = RunEvent(
    eventTime="2026-11-20T10:05:00+00:00",
    producer="urn:x",
    run=Run("01890000-0000-7000-8000-000000000001"),
    job=Job("n", "j"),
    eventType=RunState.START,
)


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def tables(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of an event by their SQL names."""
    return {one["facets"]["symlinks"]["identifiers"][0]["name"]: one for one in event["outputs"]}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    node = Node(tmp_path, "a1").define(USERS, "users").put(USERS, 1, "a", 1, 1)
    node.close()
    settings = {"lineage": {"file": str(tmp_path / "lineage.jsonl"), "namespace": "shop"}}
    return Deployment.of(tmp_path, node, **settings)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_each_batch_of_a_real_run_starts_and_completes(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run()
    found = events(tmp_path / "lineage.jsonl")
    by_run: dict[str, list[dict[str, Any]]] = {}
    for event in found:
        by_run.setdefault(event["run"]["runId"], []).append(event)
    assert [[one["eventType"] for one in run] for run in by_run.values()] == [["START", "COMPLETE"]] * len(
        by_run
    )
    start, complete = next(run for run in by_run.values() if run[1]["outputs"])
    assert (start["job"]["namespace"], start["job"]["name"]) == ("shop", "aggregate")
    assert [one["name"] for one in start["inputs"]] == [str(tmp_path / "a1")]
    written = tables(complete)
    users = written[f"{deployment.database}.users"]
    assert (users["namespace"], Path(users["name"]).name) == ("file", "users")
    (epoch,) = (row for row in deployment.rows("_epochs") if row["rows"])
    versions = dict(epoch["versions"])
    assert users["facets"]["version"]["datasetVersion"] == str(versions["users"])
    fields = {one["name"]: one["type"] for one in users["facets"]["schema"]["fields"]}
    assert fields["id"] == "decimal(20,0)"
    assert fields["_key"] == "binary"
    assert f"{deployment.database}._changelog" in written
    assert f"{deployment.database}._gaps" not in written, "no batch has written it"


def test_a_failed_batch_sends_fail(deployment: Deployment, tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="the disk is full"),
        lineage_events(deployment.config(), "4.2.0", dict) as around,
        around(BatchName("q", 1)),
    ):
        raise OSError("the disk is full")
    last = events(tmp_path / "lineage.jsonl")[-1]
    assert (last["eventType"], last["outputs"]) == ("FAIL", [])
    assert last["run"]["facets"]["errorMessage"]["message"] == "OSError: the disk is full"


def test_an_unreachable_service_fails_no_batch(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    config = deployment.config(lineage={"url": "http://127.0.0.1:1"})
    with lineage_events(config, "4.2.0", dict) as around, around(BatchName("q", 1)):
        pass
    warnings = [record.getMessage() for record in caplog.records if record.name == "observe.lineage.emitter"]
    assert warnings[0].startswith("lineage: an event cannot be sent: HTTP")
    assert len(warnings) == 2


def test_a_stopped_job_sends_abort(deployment: Deployment, tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        lineage_events(deployment.config(), "4.2.0", dict) as around,
        around(BatchName("q", 1)),
    ):
        raise KeyboardInterrupt
    assert [one["eventType"] for one in events(tmp_path / "lineage.jsonl")] == ["START", "ABORT"]


def test_without_the_section_nothing_happens(deployment: Deployment, tmp_path: Path) -> None:
    with lineage_events(deployment.config(lineage=None), "4.2.0", dict) as around, around(BatchName("q", 1)):
        pass
    assert not (tmp_path / "lineage.jsonl").exists()


def test_events_are_dropped_while_too_many_wait(caplog: pytest.LogCaptureFixture) -> None:
    is_released, sent = threading.Event(), []

    class Slow(OpenLineageClient):
        def emit(self, event: Any) -> None:
            is_released.wait()
            sent.append(event)

    emitter = LineageEmitter(Slow(config={"transport": {"type": "noop"}}))
    with caplog.at_level(logging.WARNING):
        for _ in range(MAX_WAITING_EVENTS + 3):
            emitter.send(lambda: EVENT)
    is_released.set()
    emitter.close()
    assert (len(sent), len(caplog.records)) == (MAX_WAITING_EVENTS, 3)


def test_the_end_does_not_wait_for_an_unreachable_service(caplog: pytest.LogCaptureFixture) -> None:
    is_released, asked = threading.Event(), []

    class Unreachable(OpenLineageClient):
        def emit(self, event: Any) -> None:
            asked.append(event)
            is_released.wait()
            raise OSError("away")

    emitter = LineageEmitter(Unreachable(config={"transport": {"type": "noop"}}))
    for _ in range(20):
        emitter.send(lambda: EVENT)
    ending = threading.Thread(target=emitter.close)
    ending.start()
    assert emitter._is_closing.wait(60)
    is_released.set()
    ending.join(60)
    assert len(asked) == 1
    assert caplog.messages[-1] == "lineage: 19 more events are not sent, since the job ends"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "names no receiver, or two"),
        ({"file": "f", "url": "http://h"}, "names no receiver, or two"),
        ({"file": "f", "key_env": "K"}, "there is no url"),
        ({"url": "http://user:password@h"}, "holds a user or a password"),
        ({"url": "ftp://h"}, "is refused; allowed: http"),
    ],
)
def test_a_wrong_section_is_refused(section: dict[str, str], message: str, deployment: Deployment) -> None:
    with pytest.raises(ValidationError, match=message):
        deployment.config(lineage=section)


def test_an_unusable_file_or_key_is_named(deployment: Deployment, tmp_path: Path) -> None:
    def opened(**section: str) -> Config:
        config = deployment.config(lineage=section)
        with lineage_events(config, "4.2.0", dict):
            return config

    with pytest.raises(ConfigurationError, match=r"events cannot be written: No such file"):
        opened(file=str(tmp_path / "nowhere/lineage.jsonl"))
    with pytest.raises(ConfigurationError, match="NO_SUCH_VARIABLE of the environment has no key"):
        opened(url="http://127.0.0.1:1", key_env="NO_SUCH_VARIABLE")
