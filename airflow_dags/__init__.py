"""DAGs for Airflow 3: backfill, maintenance and validation of a warehouse, each one job run by spark-submit."""
