"""Maintenance of the tables every night: small files are joined, files that no kept version needs are removed."""

from __future__ import annotations

from airflow_dags.deployment import job, warehouse_dag

with warehouse_dag("maintenance", "OPTIMIZE and VACUUM the tables", "0 2 * * *") as dag:
    job("maintain")
