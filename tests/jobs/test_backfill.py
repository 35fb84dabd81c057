"""Backfill and rebuild: a restored file releases waiting rows, days come in any order, a policy can be changed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from pyspark.sql import SparkSession

from config.policies import Policy
from jobs.aggregate import open_batch_writer
from jobs.backfill import backfill, rebuild_policy, requested_work
from jobs.commands.parameters import Moment
from pipeline.requests.read_again import TimeSpan, _offset_range, first_row_time, logs_in_span
from pipeline.requests.service import Service, conflict_to_json
from schemas.errors import ConfigurationError
from schemas.states import RequestState
from sources.xlog.directory.listing import LogFile
from sources.xlog.options import parse_options
from sources.xlog.stream.failover import entry_at
from sources.xlog.stream.log_stream import LogStream
from tests.jobs.asked import options
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node, replicasets_of
from tests.truth import own
from warehouse.lock.lock import WriterLock
from warehouse.system_tables import requests
from warehouse.warehouse import Warehouse

USERS = 600


def log_file(number: int) -> LogFile:
    return LogFile(f"{number:020}.xlog", "", 1, None, 1, {1: number}, None, None)


DAY = timedelta(days=1)
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (TimeSpan(), (0, 4)),
        (TimeSpan(MONDAY), (0, 4)),
        (TimeSpan(MONDAY + DAY / 2), (0, 4)),
        (TimeSpan(MONDAY + DAY), (1, 4)),
        (TimeSpan(None, MONDAY + DAY), (0, 1)),
        (TimeSpan(MONDAY + DAY, MONDAY + 2 * DAY), (1, 3)),
        (TimeSpan(MONDAY + 9 * DAY), (3, 4)),
        (TimeSpan(None, MONDAY), (0, 0)),
    ],
)
def test_the_files_of_a_time_range(span: TimeSpan, expected: tuple[int, int]) -> None:
    times = [MONDAY, MONDAY + DAY, None, MONDAY + 2 * DAY]
    files = [(log_file(i), time) for i, time in enumerate(times)]
    assert logs_in_span(files, span) == expected


def test_a_time_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        TimeSpan(MONDAY, MONDAY)


def test_bounds_are_files_of_the_log() -> None:
    log_stream = LogStream(parse_options({"path": str(own().directory("a1")), "start": "logs"}))
    (source,) = [one.name for one in log_stream.options.sources]
    ((uuid, begin),) = log_stream.latest({}).items()
    directory = log_stream.directory(source)
    logs = directory.listing().logs
    times = [first_row_time(directory, file) for file in logs]
    end = log_stream.latest({uuid: begin})[uuid]
    assert _offset_range(log_stream, source, uuid, begin, TimeSpan()) == (begin, end)
    start, stop = _offset_range(log_stream, source, uuid, begin, TimeSpan(times[1], times[3]))
    assert [(one.file, one.position) for one in (start, stop)] == [(logs[1].name, 0), (logs[3].name, 0)]
    later = entry_at(source, logs[2])
    assert _offset_range(log_stream, source, uuid, later, TimeSpan(times[1]))[0] == later
    assert _offset_range(log_stream, source, uuid, later, TimeSpan(None, times[1])) == (later, later)


def test_moments_without_an_offset_are_utc() -> None:
    assert Moment().convert("2026-01-05", None, None) == MONDAY
    assert Moment().convert("2026-01-05T02:00:00+02:00", None, None) == MONDAY
    with pytest.raises(click.BadParameter):
        Moment().convert("soon", None, None)


def deployed(folder: Path, policies: dict[str, Any] | None = None) -> Deployment:
    sources = {node: own().directory(node) for node in ("a1", "b1")}
    return made(folder, sources, policies)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["--dry-run"], "belong to --rebuild"),
        (["--policy", "max"], "belong to --rebuild"),
        (["--source", "c9"], "'c9' is not a source; there are a1, b1"),
        (["--heal", "c9"], "'c9' is not a source"),
        (["--heal", "a1", "--dry-run"], "newest snapshot of its source, and no other option"),
        (["--heal", "a1", "--from", "2026-01-05"], "and no other option"),
        (["--rebuild", "accounts", "--source", "a1"], "takes the whole space"),
        (["--rebuild", "accounts", "--policy", "first_write_wins"], "names another policy"),
        (["--rebuild", "accounts", "--policy", "max", "--dry-run"], "is not a policy"),
        (["--rebuild", "accounts", "--policy", "{", "--dry-run"], "is not a policy"),
    ],
)
def test_wrong_use_is_refused(given: list[str], what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=what):
        requested_work(deployed(tmp_path).config(), options(*given))


def test_a_policy_is_given_by_name_or_with_its_keys(tmp_path: Path) -> None:
    config = deployed(tmp_path, {"accounts": {"sequence": ["updated"]}}).config()
    assert rebuild_policy(config, "accounts", None).sequence == ("updated",)
    assert rebuild_policy(config, "accounts", "first_write_wins") == Policy(policy="first_write_wins")
    assert rebuild_policy(config, "accounts", "{policy: max, column: balance}").column == "balance"


def test_conflicts_travel_as_json() -> None:
    row = {"key": b"\x01", "winner_timestamp": MONDAY, "space": "s", "loser_tuple": None}
    assert conflict_to_json(row) == {
        "key": "AQ==",
        "winner_timestamp": "2026-01-05T00:00:00+00:00",
        "space": "s",
        "loser_tuple": None,
    }


def tables(deployment: Deployment) -> dict[bytes, Any]:
    rows = deployment.table("users")
    # Ids are counted up in the order in which replicasets came.
    return {key: (row["_tuple"], row["_lsn"], row["_timestamp"]) for key, row in rows.items()}


NOON = 43_200
LATER = {"users": {"sequence": ["updated"]}}
SUMMED = {"users": {"policy": "sum", "columns": ["value"]}}


def logged(folder: Path) -> dict[str, Path]:
    """Write three files of each of two replicasets; after noon, all keys but one are changed again."""
    sources = {}
    for name, first in (("a1", 1), ("b1", 2)):
        node = Node(folder, name).define(USERS, "users")
        node.close()
        for key in range(first, first + 4):
            node.put(USERS, key, name, key, 10 - key if name == "a1" else key, at=key)
        node.close()
        for key in range(first, first + 3):
            node.update(USERS, key, ["=", 1, f"{name} later"], at=NOON + key)
        node.delete(USERS, first, at=NOON + 9).close()
        sources[name] = node.path
    return sources


def made(folder: Path, sources: dict[str, Path], policies: dict[str, Any] | None = None) -> Deployment:
    return Deployment(folder, sources, replicasets_of("a1", "b1"), policies={"spaces": policies or {}})


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Deployment:  # noqa: ARG001
    folder = tmp_path_factory.mktemp("whole")
    deployment = made(folder, logged(folder))
    deployment.write()
    assert len(deployment.table("users")) == 4
    return deployment


@pytest.mark.spark
def test_a_restored_file_releases_waiting_rows(whole: Deployment, tmp_path: Path) -> None:
    sources = logged(tmp_path)
    missing = sorted(sources["a1"].iterdir())[1]
    missing.rename(tmp_path / "aside")
    deployment = made(tmp_path, sources)
    deployment.write()
    assert len(deployment.rows("_pending")) == 4
    assert {row["state"] for row in deployment.rows("_gaps")} == {"open"}
    (tmp_path / "aside").rename(missing)
    assert backfill(deployment.config(), options("--source", "a1")) == 0
    assert not deployment.rows("_pending")
    assert {row["state"] for row in deployment.rows("_gaps")} == {"open", "filled"}
    assert tables(deployment) == tables(whole)


@pytest.mark.spark
def test_time_ranges_in_any_order_give_the_same_tables(whole: Deployment, tmp_path: Path) -> None:
    deployment = made(tmp_path, logged(tmp_path))
    noon = datetime.fromtimestamp(1.7e9 + NOON, UTC).isoformat()
    for given in (["--to", noon], ["--from", noon], ["--to", noon]):
        assert backfill(deployment.config(), options(*given)) == 0
    assert tables(deployment) == tables(whole)


@pytest.mark.spark
def test_a_rebuild_gives_the_rows_of_the_policy_from_the_beginning(
    whole: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = whole.table("users")
    dry = ["--rebuild", "users", "--policy", "{sequence: [updated]}", "--dry-run"]
    assert backfill(whole.config(), options(*dry)) == 0
    output = capsys.readouterr().out
    assert whole.table("users") == before
    for policies in (LATER, SUMMED):
        again = made(tmp_path / ("later" if policies is LATER else "summed"), whole.sources, policies)
        again.write()
        changed = made(whole.folder, whole.sources, policies)
        changed.database = whole.database
        assert backfill(changed.config(), options("--rebuild", "users")) == 0
        assert tables(changed) == tables(again)
        keys = {key for key, row in changed.table("users").items() if row != before.get(key)}
        assert keys
        if policies is LATER:
            assert output.startswith(f"{len(keys)} keys of users would change under last_write_wins")
    assert {row["changed"] for row in whole.rows("_conflicts")} >= {"policy"}
    # And back: what the policy had put aside is there again.
    assert backfill(whole.config(), options("--rebuild", "users")) == 0
    assert whole.table("users") == before


@pytest.mark.spark
def test_a_request_that_cannot_be_done_is_answered_and_the_next_one_is_done(
    whole: Deployment, spark: SparkSession
) -> None:
    config = whole.config()
    warehouse = Warehouse(spark, config.warehouse, config.database)
    with WriterLock(warehouse, "tests") as lock:
        writer = open_batch_writer(spark, config, warehouse, lock)
        service = Service(spark, warehouse, config, writer)
        lost = requests.ask(warehouse, "rebuild", {"space": "nothing", "policy": {}})
        found = {"space": "users", "key": b"\x01", "kind": "secondary", "winner_timestamp": MONDAY}
        noted = requests.ask(warehouse, "conflicts", {"rows": [conflict_to_json(found)]})
        assert service.serve() == 2
        assert service.serve() == 0
        answers = {one.id: one for one in requests.load(warehouse)}
        assert answers[lost.id].state == RequestState.FAILED
        assert "no table to rebuild" in str(answers[lost.id].message)
        assert answers[noted.id].state == RequestState.DONE
    rows = [row for row in whole.rows("_conflicts") if row["kind"] == "secondary"]
    assert [(row["space"], row["key"], row["winner_timestamp"]) for row in rows] == [
        ("users", b"\x01", MONDAY)
    ]


@pytest.mark.spark
def test_a_member_that_came_back_with_other_rows_is_reported(
    spark: SparkSession,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "first", "a1").define(600, "s")
    node.put(600, 1, "kept", 1, 1).put(600, 2, "lost", 1, 1).close()
    deployment = Deployment.of(tmp_path, node)
    deployment.write()
    assert not deployment.rows("_gaps")
    other = Node(tmp_path / "second", "a1").define(600, "s")
    other.put(600, 1, "kept", 1, 1, at=9).put(600, 2, "other", 1, 1).put(600, 3, "new", 1, 1)
    other.close()
    deployment.sources["a1"] = other.path
    assert backfill(deployment.config(), options()) == 0
    (row,) = deployment.rows("_gaps")
    assert (row["kind"], row["local_id"], row["first_lsn"], row["last_lsn"]) == ("divergence", 1, 5, 5)
    names = sorted(str(tuple_) for tuple_ in deployment.tuples("s"))
    assert ["lost" in name for name in names].count(True) == 1
    assert ["new" in name for name in names].count(True) == 1
