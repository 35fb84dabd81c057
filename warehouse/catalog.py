"""Registers the warehouse's tables in a session's catalog, for SQL: `SELECT * FROM aggregator._cluster`.

Writing needs no metastore: tables are found by their paths. Where the session has one (Hive's), the job registers each
table when it is made, so that other programs find it by name.
"""

import logging
from collections.abc import Iterable

from pyspark.errors import PySparkException

from warehouse.views import literal
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)


def has_metastore(warehouse: Warehouse) -> bool:
    """Whether the session's catalog is a metastore, so that tables stay registered after the session."""
    return warehouse.session.conf.get("spark.sql.catalogImplementation") != "in-memory"


def register_tables(warehouse: Warehouse, names: Iterable[str] | None = None) -> None:
    """Register tables, by default all, in the session's catalog under their database."""
    spark = warehouse.session
    database = f"`{warehouse.database}`"
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION {literal(warehouse.root)}")
    shown = spark.sql(f"SHOW TABLES IN {database}").collect()  # with temporary views of the session
    known = {row.tableName for row in shown if not row.isTemporary}
    for name in warehouse.tables() if names is None else names:
        if name not in known:
            spark.sql(
                f"CREATE TABLE {database}.`{name}` USING DELTA LOCATION {literal(warehouse.path(name))}"
            )


class MetastoreTables:
    """Registers tables in the session's metastore when they are made; does nothing where it has none.

    A metastore that cannot be reached does not hold up the batches: its error is logged, and the next batch tries
    again.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._registered: set[str] | None = set() if has_metastore(warehouse) else None

    def register(self, names: Iterable[str]) -> None:
        """Register those of the tables that this object has not registered yet."""
        if self._registered is None:
            return
        new = sorted({*names} - self._registered)
        if not new:
            return
        try:
            register_tables(self._warehouse, new)
        except PySparkException as error:
            log.warning("the metastore does not take %s: %s", ", ".join(new), error)
            return
        self._registered.update(new)
