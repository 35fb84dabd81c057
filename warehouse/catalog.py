"""Registers the warehouse's tables in a session's catalog, for SQL: `SELECT * FROM aggregator._cluster`.

Writing needs no metastore: tables are found by their paths.
"""

from __future__ import annotations

from collections.abc import Iterable

from warehouse.warehouse import Warehouse


def has_metastore(warehouse: Warehouse) -> bool:
    """Whether the session's catalog is a metastore, so that tables stay registered after the session."""
    return warehouse.session.conf.get("spark.sql.catalogImplementation") != "in-memory"


def register_tables(warehouse: Warehouse, names: Iterable[str] | None = None) -> None:
    """Register tables, by default all, in the session's catalog under their database."""
    spark = warehouse.session
    database = f"`{warehouse.database}`"
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION '{warehouse.root}'")
    known = {row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").collect()}
    for name in warehouse.tables() if names is None else names:
        if name not in known:
            spark.sql(f"CREATE TABLE {database}.`{name}` USING DELTA LOCATION '{warehouse.path(name)}'")
