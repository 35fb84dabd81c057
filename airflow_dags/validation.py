"""Validates the tables every day; an expectation that does not hold fails the run, whose log names it."""

from airflow_dags.deployment import job, warehouse_dag

# An expectation that fails now would fail in a retry, too.
with warehouse_dag("validation", "Validate the tables as of the last epoch", "30 3 * * *", retries=0) as dag:
    job("validate")
