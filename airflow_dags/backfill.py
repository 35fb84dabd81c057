"""Aggregates the rows of each hour that no stream has aggregated, then validates the tables.

Intervals may run in any order and several times (`airflow backfill create`): rows that are in the tables already are
skipped. While a stream runs, the job sends it a request and waits. Validation is a task of its own, so its failure
neither repeats the backfill nor marks it as failed.
"""

from airflow_dags.deployment import job, warehouse_dag

with warehouse_dag("backfill", "Backfill each hour's part of the logs", "@hourly") as dag:
    backfill = job(
        "backfill", "--from", "{{ data_interval_start | ts }}", "--to", "{{ data_interval_end | ts }}"
    )
    # An expectation that fails now would fail in a retry, too.
    backfill >> job("validate", retries=0)
