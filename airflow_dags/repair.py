"""Closes gaps every hour: reads the rows whose lsns `_gaps` names, from their source or another member.

A gap that no member can fill fails the run, whose log names the gap.
"""

from airflow_dags.deployment import job, warehouse_dag

# Rows that no member has can only be restored by hand.
with warehouse_dag("repair", "Read again what _gaps names, and close it", "40 * * * *", retries=0) as dag:
    job("repair")
