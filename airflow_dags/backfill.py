"""Backfill of each hour's part of the logs: what a stream missed, or all of it where none runs.

Intervals may be done in any order and again (`airflow backfill create`): what is settled is dropped by its vclock.
One run at a time, since the warehouse has one writer; beside a running stream the job asks it and waits.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_dags.deployment import DEFAULTS, job

with DAG(
    "aggregator_backfill",
    description="Backfill each hour's part of the logs",
    # A plain "@hourly" gives intervals without any length.
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["aggregator"],
) as dag:
    job("backfill", "--from", "{{ data_interval_start }}", "--to", "{{ data_interval_end }}")
