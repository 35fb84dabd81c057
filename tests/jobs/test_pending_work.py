"""`run --once` says that everything is done only if nothing waits; `status` says the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from jobs.main import main
from jobs.runtime.command_line import DONE, FAILED, PENDING
from observe.pending_work import open_requests, pending_rows, unread_sources, waiting_instants
from tests.jobs.written import BEGAN, Node, replicasets_of
from tests.pipeline.deployment import Deployment
from warehouse.delta.location import location_of

S, STRICT = 600, 601
MISSING = "00000000000000000006.xlog"


def node_with_a_hole(folder: Path) -> Node:
    """Return a server whose log with the lsns 6 and 7 is missing."""
    node = Node(folder, "a1").define(S, "s").define(STRICT, "strict").put(S, 1, "a", 1, 1)
    node.close()
    missing = node.put(S, 2, "a", 1, 1).put(S, 3, "a", 1, 1).close()
    node.put(S, 4, "a", 1, 1, at=60.0).put(S, 5, "a", 1, 1, at=90.0).close()
    missing.rename(folder / missing.name)
    return node


def test_what_waits_for_what_and_since_when(tmp_path: Path) -> None:
    node = node_with_a_hole(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    location = location_of(str(tmp_path / "warehouse"), "aggregator")
    (uuid,) = deployment.offset
    (text,) = pending_rows(location, {uuid: "a1"})
    assert text.startswith("2 rows wait since 2023-11-14T22:14:20+00:00 in replicaset a1")
    assert BEGAN + 60 == 1_700_000_060
    assert text.endswith(deployment.rows("_pending")[0]["reason"])
    assert open_requests(location) == ()
    (tmp_path / MISSING).rename(node.path / MISSING)


def test_the_offsets_say_what_waits() -> None:
    instant = {"label": "noon", "state": "waiting", "time": 1_700_000_060_000_000}
    entry = {"leader": "a1", "instant": instant}
    text = json.dumps({"replicasets": {"aaaaaaaa-1": entry}, "unreadable": {"b1": "is gone"}})
    (waiting,) = waiting_instants(text)
    assert "a1" in waiting
    assert waiting.endswith("waits for the others at the instant noon of 2023-11-14T22:14:20+00:00")
    done = json.dumps({"replicasets": {"aaaaaaaa-1": {**entry, "instant": {**instant, "state": "done"}}}})
    assert waiting_instants(done) == ()
    assert unread_sources(text) == {"b1": "is gone"}
    for nothing in (None, "null", "{}"):
        assert unread_sources(nothing) == {}
        assert waiting_instants(nothing) == ()


@pytest.mark.spark
def test_the_command_ends_with_another_exit_code_while_something_waits(
    spark: SparkSession,  # noqa: ARG001
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = node_with_a_hole(tmp_path)
    gone = {"name": "b1", "path": str(tmp_path / "gone"), "replicaset": replicasets_of("b1")["b1"]}
    config: dict[str, Any] = {
        "warehouse": str(tmp_path / "warehouse"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "start": "logs",
        "on_source_error": "skip",
        "spaces": {"misfits": {"strict": "quarantine"}},
        "sources": [{"name": "a1", "path": str(node.path), "replicaset": replicasets_of("a1")["a1"]}, gone],
    }
    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main("run", ["--config", str(path), "--once"]) == PENDING
    said = capsys.readouterr().err
    assert "2 rows wait since 2023-11-14T22:14:20+00:00 in replicaset a1" in said
    assert "source b1 was not read: " in said
    assert "everything is done" not in said
    assert main("status", ["--config", str(path)]) == FAILED
    assert "2 rows wait since 2023-11-14T22:14:20+00:00" in capsys.readouterr().err
    (tmp_path / MISSING).rename(node.path / MISSING)
    config["sources"] = [config["sources"][0]]
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main("repair", ["--config", str(path)]) == DONE
    node.put(STRICT, 1, "\udcff", 1, 1).close()
    capsys.readouterr()
    assert main("run", ["--config", str(path), "--once"]) == PENDING
    said = capsys.readouterr().err
    assert "what is named above is in no table" in said
    assert "space strict" in said
    assert "everything is done" not in said
    node.put(STRICT, 1, "mended", 1, 1).close()
    assert main("run", ["--config", str(path), "--once"]) == DONE
    assert "everything is done" in capsys.readouterr().err
