"""Maintains the tables every night: joins small files, and removes files that no kept version of a table needs."""

from airflow_dags.deployment import job, warehouse_dag

with warehouse_dag("maintenance", "OPTIMIZE and VACUUM the tables", "0 2 * * *") as dag:
    job("maintain")
