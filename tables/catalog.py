"""The warehouse's tables by name in SQL: `SELECT * FROM aggregator._cluster`.

The tables need no metastore to be written; a session that wants them by name registers what lies in the folder.
"""

from __future__ import annotations

from tables.warehouse import Warehouse


def register_tables(warehouse: Warehouse) -> list[str]:
    """Make every table known to the session's catalog under its database; return their names."""
    spark = warehouse.spark
    database = f"`{warehouse.database}`"
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION '{warehouse.root}'")
    known = {row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").collect()}
    names = warehouse.tables()
    for name in names:
        if name not in known:
            spark.sql(f"CREATE TABLE {database}.`{name}` USING DELTA LOCATION '{warehouse.path(name)}'")
    return names
