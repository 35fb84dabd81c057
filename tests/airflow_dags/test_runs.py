"""A DAG really runs: `dag.test()` with a real spark-submit, over archives of three days in shuffled order and twice."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from tests.airflow_dags.airflow import ROOT, ask, environment, installed, migrate, run
from tests.jobs.written import BEGAN, Node, replicasets_of
from warehouse.delta.read import rows_of

pytestmark = installed

USERS = 600
DAYS = tuple(datetime(2026, 11, day, 10, tzinfo=UTC) for day in (18, 19, 20))

RUN = """
import json, sys
from datetime import datetime
from airflow.dag_processing.dagbag import DagBag

dag = DagBag(sys.argv[1]).dags[sys.argv[2]]
states = [str(dag.test(logical_date=datetime.fromisoformat(moment)).state) for moment in sys.argv[3:]]
print("FOUND " + json.dumps(states))
"""


def archives(folder: Path) -> dict[str, Path]:
    """Write a file a day of each of two replicasets; keys are written by both, changed and deleted later."""
    found = {}
    for name, first in (("a1", 1), ("b1", 3)):
        node = Node(folder, name).define(USERS, "users")
        for number, day in enumerate(DAYS):
            at = day.timestamp() - BEGAN + 1200 + first
            for key in range(first, first + 6):
                if number == 0 or key % 2:
                    node.put(USERS, key, f"{name}, day {number}", key, number, at=at + key)
            if number == 1:
                node.update(USERS, first, ["=", 1, f"{name} changed"], at=at + 60)
            if number == 2:
                node.delete(USERS, first + 1, at=at + 60)
            node.close()
        found[name] = node.path
    return found


def configured(folder: Path, sources: dict[str, Path]) -> Path:
    ids = replicasets_of(*sources)
    whole = {
        "warehouse": str(folder / "warehouse"),
        "checkpoint": str(folder / "checkpoint"),
        "start": "logs",
        "sources": [{"name": n, "path": str(path), "replicaset": ids[n]} for n, path in sources.items()],
    }
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(whole))
    return file


def tables(folder: Path) -> dict[str, Any]:
    """Return what must be equal; global ids are given in the order in which instances come, so they are not."""
    root = folder / "warehouse" / "aggregator.db"
    users = rows_of(DeltaTable(str(root / "users")), ["_key", "_tuple", "_lsn", "_timestamp", "_created"])
    logged = rows_of(
        DeltaTable(str(root / "_changelog")), ["file", "lsn", "type", "state", "replica_id", "hash"]
    )
    return {
        "users": sorted(users, key=lambda row: bytes(row["_key"])),
        "_changelog": sorted(tuple(map(str, row.values())) for row in logged if row["file"] is not None),
        "_gaps": rows_of(DeltaTable(str(root / "_gaps"))),
        "_pending": rows_of(DeltaTable(str(root / "_pending"))),
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "airflow"
    made.mkdir()
    migrate(made)
    return made


@pytest.mark.soak
@pytest.mark.spark
def test_a_backfill_of_one_day_is_a_real_spark_submit(home: Path, tmp_path: Path) -> None:
    file = configured(tmp_path, archives(tmp_path / "logs"))
    variables = {"AIRFLOW_VAR_AGGREGATOR_HOME": str(ROOT), "AIRFLOW_VAR_AGGREGATOR_CONFIG": str(file)}
    end = DAYS[0].replace(hour=11).isoformat()
    assert ask(RUN, home, "aggregator_backfill", end, variables=variables) == ["success"]
    found = tables(tmp_path)
    assert len(found["users"]) == 8
    assert {row["_timestamp"].date() for row in found["users"]} == {DAYS[0].date()}


@pytest.mark.soak
def test_three_days_shuffled_and_twice_are_the_stream(home: Path, tmp_path: Path) -> None:
    sources = archives(tmp_path / "logs")
    for name in ("stream", "backfill"):
        (tmp_path / name).mkdir()
    streamed = configured(tmp_path / "stream", sources)
    command = ["spark-submit", str(ROOT / "jobs" / "aggregate.py"), "--config", str(streamed), "--once"]
    done = run(command, environment(home), tmp_path, 900)
    assert done.returncode == 0, done.stderr[-2000:]
    file = configured(tmp_path / "backfill", sources)
    variables = {"AIRFLOW_VAR_AGGREGATOR_HOME": str(ROOT), "AIRFLOW_VAR_AGGREGATOR_CONFIG": str(file)}
    ends = [DAYS[number].replace(hour=11).isoformat() for number in (1, 0, 2)]
    for _ in range(2):
        states = ask(RUN, home, "aggregator_backfill", *ends, seconds=1400, variables=variables)
        assert states == ["success"] * 3
    assert tables(tmp_path / "backfill") == tables(tmp_path / "stream")
