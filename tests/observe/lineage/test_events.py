"""The content of the events, without a batch and without a transport."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openlineage.client", reason="needs the extra 'lineage'")

from openlineage.client.event_v2 import RunState
from openlineage.client.serde import Serde

from observe.lineage.events import (
    BatchRun,
    WrittenTable,
    dataset_namespace_and_name,
    output_datasets,
    read_datasets,
    run_event,
)
from sources.xlog.directory.offset import OffsetEntry

RUN = BatchRun("01890000-0000-7000-8000-000000000001", "tarantool", "aggregate", "4.2.0")
AT = datetime(2026, 11, 20, 10, 5, tzinfo=UTC)
USERS = WrittenTable(
    "aggregator.users", "s3a://lake/wh/aggregator.db/users", 7, (("id", "bigint", "Field 1."),)
)


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("/logs/a1", ("file", "/logs/a1")),
        ("file:///logs/a1", ("file", "/logs/a1")),
        ("s3a://lake/wh/t/", ("s3://lake", "wh/t")),
        ("s3://lake/wh", ("s3://lake", "wh")),
        ("gs://lake", ("gs://lake", "/")),
    ],
)
def test_datasets_are_named_as_openlineage_names_them(uri: str, name: tuple[str, str]) -> None:
    assert dataset_namespace_and_name(uri) == name


def test_a_relative_path_becomes_absolute() -> None:
    assert dataset_namespace_and_name("logs") == ("file", str(Path("logs").absolute()))


def entry(leader: str, position: int) -> OffsetEntry:
    return OffsetEntry(leader=leader, file="00000000000000000000.xlog", position=position, vclock={})


def test_inputs_are_the_sources_that_were_read() -> None:
    start = {"A": entry("a1", 10), "B": entry("b1", 10)}
    end = {"A": entry("a2", 12), "B": entry("b1", 10), "C": entry("removed", 5)}
    found = read_datasets(start, end, {"a1": "/logs/a1", "a2": "/logs/a2", "b1": "/logs/b1"})
    assert [(one.namespace, one.name) for one in found] == [("file", "/logs/a2")]


def as_json(event: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Serde.to_json(event))
    return found


def test_a_complete_batch_names_its_tables_with_their_schemas() -> None:
    event = as_json(run_event(RUN, RunState.COMPLETE, AT, [], output_datasets([USERS])))
    assert (event["eventType"], event["eventTime"]) == ("COMPLETE", "2026-11-20T10:05:00+00:00")
    assert event["run"]["runId"] == RUN.run_id
    assert "errorMessage" not in event["run"]["facets"]
    assert (event["job"]["namespace"], event["job"]["name"]) == ("tarantool", "aggregate")
    assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (output,) = event["outputs"]
    assert (output["namespace"], output["name"]) == ("s3://lake", "wh/aggregator.db/users")
    facets = output["facets"]
    assert facets["schema"]["fields"] == [
        {"name": "id", "type": "bigint", "description": "Field 1.", "ordinal_position": 1, "fields": []}
    ]
    assert facets["version"]["datasetVersion"] == "7"
    assert facets["symlinks"]["identifiers"][0]["name"] == "aggregator.users"


def test_a_failed_batch_says_why_without_a_traceback() -> None:
    event = as_json(run_event(RUN, RunState.FAIL, AT, [], [], ValueError("no such file")))
    assert event["run"]["facets"]["errorMessage"]["message"] == "ValueError: no such file"
    assert "stackTrace" not in event["run"]["facets"]["errorMessage"]
