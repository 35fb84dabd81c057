"""DAGs for Airflow 3 that run jobs by spark-submit: backfill, maintenance, proof, repair and validation."""
