"""Repair of holes in the logs every hour: what `_gaps` names is read again, from its source or another member.

A failed run is the alarm: its log names the holes that nobody could fill.
"""

from __future__ import annotations

from airflow_dags.deployment import job, warehouse_dag

# What no member has now may be brought back by hand, not by another try.
with warehouse_dag("repair", "Read again what _gaps names, and close it", "40 * * * *", retries=0) as dag:
    job("repair")
