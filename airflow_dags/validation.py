"""Validation of the tables every day: a failed run is the alarm, its log names what does not hold."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_dags.deployment import DEFAULTS, job

with DAG(
    "aggregator_validation",
    description="Validate the tables as of the last epoch",
    schedule=CronDataIntervalTimetable("30 3 * * *", timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    # What does not hold does not hold a minute later either.
    default_args={**DEFAULTS, "retries": 0},
    tags=["aggregator"],
) as dag:
    job("validate")
