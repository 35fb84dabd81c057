"""A space read again from a snapshot in three ways: a request to the stream, the command, `include`."""

from pathlib import Path

import msgpack
import pytest
from pyspark.sql import SparkSession

from jobs.backfill import backfill, requested_work
from schemas.errors import ConfigurationError
from schemas.states import RequestState
from tests.jobs.asked import options
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node
from warehouse.system_tables import requests

pytestmark = pytest.mark.spark

S = 600


def names(deployment: Deployment, space: str) -> list[str]:
    tuples = [msgpack.unpackb(row["_tuple"]) for row in deployment.rows(space, ["_tuple"])]
    return [str(fields[1]) for fields in sorted(tuples)]


def test_the_stream_and_the_command_and_a_grown_include(tmp_path: Path, spark: SparkSession) -> None:
    node = (
        Node(tmp_path, "a1")
        .define(S, "s")
        .define(S + 1, "new")
        .put(S, 1, "wrong", 1, 1)
        .put(S + 1, 1, "x", 1, 1)
    )
    node.close()
    left_out = {"spaces": {"include": ["s"]}}
    deployment = Deployment.aggregated(tmp_path, node, **left_out)
    node.snapshot({S: [(1, "right", 1, 1)], S + 1: [(1, "x", 1, 1)]})
    request = requests.ask(deployment.opened(spark), "snapshot", {"spaces": ["s"], "source": None})
    node.put(S, 2, "since", 1, 1).put(S + 1, 2, "since", 1, 1).close()
    deployment.run()
    answered = requests.with_newest_state(deployment.opened(spark), request)
    assert answered.state == RequestState.DONE
    assert "s read from" in str(answered.message)
    assert names(deployment, "s") == ["right", "since"]
    deployment.settings["spaces"] = {}
    deployment.run()
    assert names(deployment, "new") == ["x", "since"]
    assert (
        backfill(deployment.config(), options("--snapshot", "s", "--snapshot", "new", "--source", "a1")) == 0
    )
    assert backfill(deployment.config(), options("--snapshot", "nobody")) == 1
    assert (names(deployment, "s"), names(deployment, "new")) == (["right", "since"], ["x", "since"])


def test_a_command_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1")
    config = Deployment.of(tmp_path, node).config()
    assert requested_work(config, options("--snapshot", "s", "--source", "a1")) == (
        "snapshot",
        {"spaces": ["s"], "source": "a1"},
    )
    for other in (("--rebuild", "s"), ("--heal", "a1"), ("--from", "2026-11-20"), ("--dry-run",)):
        with pytest.raises(ConfigurationError):
            requested_work(config, options("--snapshot", "s", *other))


@pytest.mark.usefixtures("spark")
def test_the_answer_names_the_sources_that_have_a_space_and_those_that_have_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Node(tmp_path, "a1").define(S, "s").put(S, 1, "a", 1, 1)
    other = Node(tmp_path, "b1").define(S + 1, "t").put(S + 1, 1, "b", 1, 1)
    one.close()
    other.close()
    one.snapshot({S: [(1, "a", 1, 1)]})
    other.snapshot({S + 1: [(1, "b", 1, 1)]})
    deployment = Deployment.of(tmp_path, one, other)
    deployment.write()
    config = deployment.config()
    assert backfill(config, options("--snapshot", "s")) == 0
    output = capsys.readouterr().out
    assert "a1: s read from" in output
    assert "b1: not read: the snapshot has none of the spaces s" in output
    assert backfill(config, options("--snapshot", "s", "--source", "b1")) == 1
    assert backfill(config, options("--snapshot", "s", "--snapshot", "t", "--source", "b1")) == 1
    assert "b1: 0" in capsys.readouterr().out
    before = deployment.rows("_epochs", ["epoch"])
    assert backfill(config, options("--snapshot", "s", "--snapshot", "nobody")) == 1
    output = capsys.readouterr().out
    assert "no snapshot has the space nobody; nothing was read: a1: 0" in output
    assert "b1: not read" in output
    assert deployment.rows("_epochs", ["epoch"]) == before
    assert backfill(config, options("--snapshot", "s", "--snapshot", "t")) == 0
    output = capsys.readouterr().out
    assert all(
        part in output for part in ("a1: s read from", "b1: t read from", "has no space t", "has no space s")
    )
