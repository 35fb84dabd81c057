"""Commands that ask a running writer wait for its answer without Spark, and start Spark where they do the work."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from config.deployment import Config
from jobs.backfill import backfill
from jobs.maintain import maintain
from jobs.repair import repair_warehouse
from schemas.states import RequestKind, RequestState
from tests.jobs.asked import options
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from warehouse.delta.location import location_of
from warehouse.lock.lock import WriterLock
from warehouse.system_tables import requests
from warehouse.system_tables.requests import Request
from warehouse.warehouse import Warehouse

Command = Callable[[Config], int]
S = 600


class SparkStartedError(Exception):
    """A command has started Spark."""


def no_spark(_config: Config, _app: str) -> None:
    raise SparkStartedError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return the configuration of tables with an open gap, where no command may start Spark."""
    node = Node(tmp_path, "a1").define(S, "s").put(S, 1, "a", 1, 1)
    node.close()
    lost = node.put(S, 2, "b", 1, 1).close()
    node.put(S, 3, "c", 1, 1).close()
    lost.unlink()
    deployment = Deployment.aggregated(tmp_path, node)
    monkeypatch.setattr("jobs.runtime.session.spark_session", no_spark)
    monkeypatch.setattr("jobs.backfill.POLL_SECONDS", 0.05)
    return deployment.config()


def answered(warehouse: Warehouse, state: RequestState, message: str, kinds: list[str]) -> None:
    """Answer the first request, as the holder of the lock would."""
    for _ in range(400):
        found = requests.open_requests(warehouse)
        if found:
            kinds.append(found[0].kind)
            requests.answer(warehouse, found[0], state, message)
            return
        time.sleep(0.05)


COMMANDS: dict[str, tuple[Command, RequestKind]] = {
    "backfill": (lambda config: backfill(config, options()), RequestKind.BACKFILL),
    "snapshot": (lambda config: backfill(config, options("--snapshot", "s")), RequestKind.SNAPSHOT),
    "heal": (lambda config: backfill(config, options("--heal", "a1")), RequestKind.HEAL),
    "rebuild": (lambda config: backfill(config, options("--rebuild", "s")), RequestKind.REBUILD),
    "maintain": (maintain, RequestKind.MAINTENANCE),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("state", [RequestState.DONE, RequestState.FAILED])
def test_a_request_to_a_running_writer_needs_no_spark(
    config: Config, name: str, state: RequestState, capsys: pytest.CaptureFixture[str]
) -> None:
    command, kind = COMMANDS[name]
    warehouse, kinds = Warehouse(None, config.warehouse, config.database), list[str]()
    with WriterLock(location_of(config.warehouse, config.database), "the stream"):
        holder = threading.Thread(target=answered, args=(warehouse, state, "as asked", kinds))
        holder.start()
        code = command(config)
        holder.join()
    printed = capsys.readouterr()
    assert (code, kinds) == (0 if state == RequestState.DONE else 1, [kind])
    assert "as asked" in printed.out
    assert "asked the writer, request " in printed.err
    assert "the stream" in printed.err


def test_a_repair_by_a_running_writer_needs_no_spark(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    warehouse, kinds = Warehouse(None, config.warehouse, config.database), list[str]()
    with WriterLock(location_of(config.warehouse, config.database), "the stream"):
        holder = threading.Thread(target=answered, args=(warehouse, RequestState.DONE, "read", kinds))
        holder.start()
        assert repair_warehouse(config) == 1
        holder.join()
    assert kinds == [RequestKind.BACKFILL]
    assert "read a1 again" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_writer_spark_is_started_before_anything_is_asked(config: Config, name: str) -> None:
    with pytest.raises(SparkStartedError):
        COMMANDS[name][0](config)
    assert not requests.load(Warehouse(None, config.warehouse, config.database))


def test_where_the_writer_ends_meanwhile_spark_is_started_here(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = WriterLock(location_of(config.warehouse, config.database), "the stream")
    waited: list[float] = []

    def give_up(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            lock.__exit__(None, None, None)

    # Not `time.sleep` itself: threads of other tests' servers and sessions sleep, too.
    monkeypatch.setattr("jobs.backfill.time", SimpleNamespace(sleep=give_up))
    lock.__enter__()
    with pytest.raises(SparkStartedError):
        maintain(config)
    assert len(waited) == 3
    left = requests.load(Warehouse(None, config.warehouse, config.database))
    assert [one.state for one in left] == [RequestState.ASKED]


def test_an_answer_of_a_writer_that_ended_is_found_without_spark(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = WriterLock(location_of(config.warehouse, config.database), "the stream")
    warehouse = Warehouse(None, config.warehouse, config.database)
    unanswered = requests.with_newest_state

    def answer_late(found: Warehouse, request: Request) -> Request:
        """Answer, and end, just after the command has looked."""
        before = unanswered(found, request)
        if before.state == RequestState.ASKED:
            requests.answer(warehouse, request, RequestState.DONE, "just in time")
            lock.__exit__(None, None, None)
        return before

    monkeypatch.setattr("jobs.backfill.requests.with_newest_state", answer_late)
    lock.__enter__()
    assert maintain(config) == 0
