"""Backfill of each hour's part of the logs: what a stream missed, or all of it where none runs; then the tables' check.

Intervals may be done in any order and again (`airflow backfill create`): what is settled is dropped by its vclock.
One run at a time, since the warehouse has one writer; during a running stream the job asks it and waits. Validation is
a task of its own, so that what it finds neither repeats the backfill nor marks it as failed.
"""

from __future__ import annotations

from airflow_dags.deployment import job, warehouse_dag

with warehouse_dag("backfill", "Backfill each hour's part of the logs", "@hourly") as dag:
    filled = job(
        "backfill", "--from", "{{ data_interval_start | ts }}", "--to", "{{ data_interval_end | ts }}"
    )
    # What does not hold does not hold a minute later either.
    checked = job("validate", retries=0)
    filled >> checked
