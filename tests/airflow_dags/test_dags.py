"""The DAGs import under Airflow 3, and their tasks run the lines that a user would type.

Airflow lives in an environment of its own (`setup/setup.sh with-airflow`), so its own Python looks at the DAGs.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.airflow_dags.airflow import ROOT, ask, installed

pytestmark = installed

LOOK = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
found = {}
for dag in bag.dags.values():
    found[dag.dag_id] = {
        "timetable": type(dag.timetable).__name__,
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "tasks": {
            task.task_id: {"application": task.application, "arguments": task.application_args,
                           "retries": task.retries, "after": sorted(task.upstream_task_ids)}
            for task in dag.tasks
        },
    }
print("FOUND " + json.dumps({"errors": {k: str(v) for k, v in bag.import_errors.items()}, "dags": found}))
"""

HOME = "{{ var.value.get('aggregator_home', '/opt/tarantool-aggregator') }}"
CONFIG = "{{ var.value.get('aggregator_config', '/opt/tarantool-aggregator/conf/demo.yaml') }}"


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ask(LOOK, tmp_path_factory.mktemp("airflow"))
    return found


def test_every_dag_imports(bag: Mapping[str, Any]) -> None:
    assert bag["errors"] == {}
    assert set(bag["dags"]) == {
        f"aggregator_{name}" for name in ("backfill", "maintenance", "proof", "repair", "validation")
    }


def test_intervals_have_a_length_and_one_run_is_active_at_a_time(bag: Mapping[str, Any]) -> None:
    for dag in bag["dags"].values():
        assert dag["timetable"] == "CronDataIntervalTimetable"
        assert (dag["max_active_runs"], dag["catchup"]) == (1, False)


@pytest.mark.parametrize(
    ("dag", "task", "arguments"),
    [
        (
            "aggregator_backfill",
            "backfill",
            ["--from", "{{ data_interval_start | ts }}", "--to", "{{ data_interval_end | ts }}"],
        ),
        ("aggregator_backfill", "validate", []),
        ("aggregator_maintenance", "maintain", []),
        ("aggregator_repair", "repair", []),
        ("aggregator_validation", "validate", []),
        ("aggregator_proof", "prove", []),
    ],
)
def test_each_task_runs_one_job(bag: Mapping[str, Any], dag: str, task: str, arguments: list[str]) -> None:
    found = bag["dags"][dag]["tasks"][task]
    assert found["application"] == f"{HOME}/jobs/{task}.py"
    assert found["arguments"] == ["--config", CONFIG, *arguments]
    assert (ROOT / "jobs" / f"{task}.py").is_file()


def test_a_backfill_is_checked_afterwards_by_a_task_that_is_not_repeated(bag: Mapping[str, Any]) -> None:
    """What it finds must neither repeat the backfill nor mark it as failed."""
    tasks = bag["dags"]["aggregator_backfill"]["tasks"]
    assert {name: task["after"] for name, task in tasks.items()} == {"backfill": [], "validate": ["backfill"]}
    assert (tasks["backfill"]["retries"], tasks["validate"]["retries"]) == (2, 0)
