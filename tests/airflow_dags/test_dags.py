"""The DAGs import under Airflow 3, and their tasks run the lines that a user would type.

Airflow lives in an environment of its own (`setup/setup.sh with-airflow`), so its own Python looks at the DAGs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-airflow" / "bin" / "python"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="Airflow is not installed: setup/setup.sh with-airflow"
)

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
                           "retries": task.retries}
            for task in dag.tasks
        },
    }
print("FOUND " + json.dumps({"errors": {k: str(v) for k, v in bag.import_errors.items()}, "dags": found}))
"""

HOME = "{{ var.value.get('aggregator_home', '/opt/tarantool-aggregator') }}"
CONFIG = "{{ var.value.get('aggregator_config', '/opt/tarantool-aggregator/conf/demo.yaml') }}"


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    home = tmp_path_factory.mktemp("airflow")
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }
    command = [str(PYTHON), "-c", LOOK, str(ROOT / "airflow_dags")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=home
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-2000:]
    found: Mapping[str, Any] = json.loads(lines[-1].removeprefix("FOUND "))
    return found


def test_every_dag_imports(bag: Mapping[str, Any]) -> None:
    assert bag["errors"] == {}
    assert set(bag["dags"]) == {"aggregator_backfill", "aggregator_maintenance", "aggregator_validation"}


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
            ["--from", "{{ data_interval_start }}", "--to", "{{ data_interval_end }}"],
        ),
        ("aggregator_maintenance", "maintain", []),
        ("aggregator_validation", "validate", []),
    ],
)
def test_each_task_runs_one_job(bag: Mapping[str, Any], dag: str, task: str, arguments: list[str]) -> None:
    found = bag["dags"][dag]["tasks"][task]
    assert found["application"] == f"{HOME}/jobs/{task}.py"
    assert found["arguments"] == ["--config", CONFIG, *arguments]
    assert (ROOT / "jobs" / f"{task}.py").is_file()
