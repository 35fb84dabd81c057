"""Validation of the tables every day: a failed run is the alarm, its log names what does not hold."""

from __future__ import annotations

from airflow_dags.deployment import job, warehouse_dag

# What does not hold does not hold a minute later either.
with warehouse_dag("validation", "Validate the tables as of the last epoch", "30 3 * * *", retries=0) as dag:
    job("validate")
