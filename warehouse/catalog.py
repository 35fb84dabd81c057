"""The warehouse's tables by name in SQL: `SELECT * FROM aggregator._cluster`.

The tables need no metastore to be written; a session that wants them by name registers what lies in the folder.
"""

from __future__ import annotations

from collections.abc import Iterable

from warehouse.warehouse import Warehouse


def lasts(warehouse: Warehouse) -> bool:
    """Whether the session's catalog is a metastore, which other sessions read too."""
    return warehouse.session.conf.get("spark.sql.catalogImplementation") != "in-memory"


def register_tables(warehouse: Warehouse, names: Iterable[str] | None = None) -> None:
    """Make tables known to the session's catalog under their database; all of them by default."""
    spark = warehouse.session
    database = f"`{warehouse.database}`"
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION '{warehouse.root}'")
    known = {row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").collect()}
    for name in warehouse.tables() if names is None else names:
        if name not in known:
            spark.sql(f"CREATE TABLE {database}.`{name}` USING DELTA LOCATION '{warehouse.path(name)}'")
