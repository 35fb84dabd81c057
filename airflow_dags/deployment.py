"""Makes the DAGs and their tasks; Airflow's variables name the folder of the jobs and their configuration.

| variable | default | |
|---|---|---|
| `aggregator_home` | `/opt/tarantool-aggregator` | the folder with `jobs/`: the project's, or that of a wheel |
| `aggregator_config` | `<home>/conf/demo.yaml` | the YAML configuration |
| `aggregator_py_files` | none | modules with custom policies, for `--py-files` |

The connection `spark_default` names the cluster to which spark-submit sends a job. Airflow takes the first spark-submit
on PATH, so the project's `.venv/bin` must come first. The DAGs run in Airflow's own venv and cannot import the project.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, CronDataIntervalTimetable

HOME = "{{ var.value.get('aggregator_home', '/opt/tarantool-aggregator') }}"
CONFIG = "{{ var.value.get('aggregator_config', '/opt/tarantool-aggregator/conf/demo.yaml') }}"
PY_FILES = "{{ var.value.get('aggregator_py_files', '') }}"

DEFAULTS: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=6),
}
"""Arguments of all tasks. Retries are safe, since a job that runs twice changes nothing the second time."""


def warehouse_dag(name: str, description: str, cron: str, **defaults: Any) -> DAG:
    """Return a DAG that never has two runs at the same time, since a warehouse has one writer.

    Args:
        name: The DAG's id without the prefix `aggregator_`.
        cron: The schedule in UTC; a run's data interval reaches from one time of the schedule to the next.
        **defaults: Arguments of its tasks that differ from `DEFAULTS`.
    """
    return DAG(
        f"aggregator_{name}",
        description=description,
        schedule=CronDataIntervalTimetable(cron, timezone="UTC"),
        start_date=datetime(2024, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args={**DEFAULTS, **defaults},
        tags=["aggregator"],
    )


def job(name: str, *arguments: str, **settings: Any) -> SparkSubmitOperator:
    """Return a task that runs a job.

    Args:
        name: A module of `jobs`, such as `backfill`.
        *arguments: The job's options after `--config`; templates are allowed.
        **settings: Arguments of the task that differ from its DAG's defaults.
    """
    return SparkSubmitOperator(
        task_id=name,
        name=f"aggregator-{name}",
        application=f"{HOME}/jobs/{name}.py",
        application_args=["--config", CONFIG, *arguments],
        py_files=PY_FILES,
        conn_id="spark_default",
        **settings,
    )
