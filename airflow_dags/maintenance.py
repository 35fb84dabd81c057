"""Maintenance of the tables every night: small files are joined, files that no kept version needs are removed."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_dags.deployment import DEFAULTS, job

with DAG(
    "aggregator_maintenance",
    description="OPTIMIZE and VACUUM the tables",
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["aggregator"],
) as dag:
    job("maintain")
