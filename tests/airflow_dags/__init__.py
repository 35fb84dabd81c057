"""Tests of the DAGs, run by Airflow's own Python."""
