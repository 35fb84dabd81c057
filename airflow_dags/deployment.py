"""Where the jobs and their configuration lie, as Airflow's variables say: what the DAGs share.

| variable | default | |
|---|---|---|
| `aggregator_home` | `/opt/tarantool-aggregator` | the project's folder, with `jobs/` |
| `aggregator_config` | `<home>/conf/demo.yaml` | the YAML configuration |
| `aggregator_py_files` | none | modules with custom policies, for `--py-files` |

The connection `spark_default` says where spark-submit sends a job; `spark-submit` itself is the one on PATH, so the
project's `.venv/bin` must come first there. Not here: anything of the project's code; this runs in Airflow's own venv.
"""

from __future__ import annotations

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
"""A job that is repeated does nothing twice, so retries are safe."""


def warehouse_dag(name: str, description: str, cron: str, **defaults: Any) -> DAG:
    """Return a DAG of one job, of which one run goes at a time, since a warehouse has one writer.

    Parameters
    ----------
    name : str
        What follows `aggregator_` in its name.
    description : str
    cron : str
        When an interval ends, in UTC. Each has a length, which the presets (`@hourly`) do not give.
    **defaults
        Of its tasks, other than `DEFAULTS`.

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
    """Return the task that runs a job.

    Parameters
    ----------
    name : str
        A module of `jobs`, such as `backfill`.
    *arguments : str
        What the job takes beside `--config`; may be templates.
    **settings
        Of the task, other than those of its DAG.

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
