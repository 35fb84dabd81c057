"""Runs SQL of the report and of validation: in this process by delta-rs' own engine, or by Spark.

A query takes milliseconds in this process, and a second as a plan of Spark, so Spark is used only for large tables.
The queries are written in the SQL that both understand; what each writes differently is in `QueryEngine.dialect`. A
query names a table `<database>.<table>`, as users do, or `{name}` for one that `add` has named.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from schemas.errors import WarehouseError
from warehouse.catalog import register_tables
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import LARGEST_WITHOUT_SPARK_BYTES, size_of
from warehouse.warehouse import Warehouse

_NAMED_TABLE = re.compile(r"\{(\w+)\}")


class QueryEngine(ABC):
    """Runs SQL on the tables of a warehouse."""

    dialect: ClassVar[Mapping[str, str]]
    """By name: the text of an expression. `point`: the start of the point of a plot, of `<milliseconds>` duration, that
    has the column `moment`. `lag`: the seconds from the column `oldest` to `committed_at`."""

    @abstractmethod
    def add(self, name: str, table: str, version: int | None = None) -> None:
        """Name a table at a version, by default its newest one: `{name}` in a query."""

    @abstractmethod
    def register(self, tables: Iterable[str]) -> None:
        """Make tables known under their own names, with the database before them, at their newest version."""

    @abstractmethod
    def query(self, sql: str) -> pa.Table:
        """Return the result of a query."""

    def plot_query(self, sql: str, milliseconds: int) -> pa.Table:
        """Return the result of a query with expressions of `dialect`, for points of a duration."""
        for name, text in self.dialect.items():
            sql = sql.replace(f"<{name}>", text.replace("<milliseconds>", str(milliseconds)))
        return self.query(sql)


class LocalEngine(QueryEngine):
    """Runs queries in this process, on tables that it opens when they are needed."""

    dialect: ClassVar[Mapping[str, str]] = {
        "point": "date_bin(INTERVAL '<milliseconds> milliseconds', moment)",
        "lag": "(date_part('epoch', committed_at) - date_part('epoch', oldest))",
    }

    def __init__(self, location: WarehouseLocation, database: str) -> None:
        self._location, self._database = location, database.lower()
        self._builder = QueryBuilder()
        self._builder.execute(f'CREATE SCHEMA "{self._database}"')

    def _open(self, table: str, version: int | None = None) -> DeltaTable:
        opened = self._location.open(table, version)
        if opened is None:
            raise WarehouseError("the table is not there", table=table, warehouse=self._location.root)
        return opened

    def add(self, name: str, table: str, version: int | None = None) -> None:
        """Open a table, and name it."""
        self._builder.register(f'"{name}"', self._open(table, version))

    def register(self, tables: Iterable[str]) -> None:
        """Open tables under their own names."""
        for table in tables:
            self._builder.register(f'"{self._database}"."{table}"', self._open(table))

    def query(self, sql: str) -> pa.Table:
        """Run a query; moments have microseconds."""
        rows = pa.table(self._builder.execute(_NAMED_TABLE.sub(r'"\1"', sql)).read_all())
        return rows.cast(pa.schema([pa.field(one.name, _type_as_in_spark(one.type)) for one in rows.schema]))


def _type_as_in_spark(type_: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for a column: no views, and moments in microseconds of UTC."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_string_view(type_):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type_) else type_


class SparkEngine(QueryEngine):
    """Runs queries in the Spark session of a warehouse."""

    dialect: ClassVar[Mapping[str, str]] = {
        "point": "timestamp_millis(unix_millis(moment) DIV <milliseconds> * <milliseconds>)",
        "lag": "((unix_micros(committed_at) - unix_micros(oldest)) / 1000000)",
    }

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._frames: dict[str, DataFrame] = {}

    def add(self, name: str, table: str, version: int | None = None) -> None:
        """Read a table lazily, and name it."""
        self._frames[name] = self._warehouse.read_system_table(table, version)

    def register(self, tables: Iterable[str]) -> None:
        """Register tables in the session's catalog."""
        register_tables(self._warehouse, tables)

    def query(self, sql: str) -> pa.Table:
        """Run a query."""
        frames: dict[str, Any] = {name: self._frames[name] for name in _NAMED_TABLE.findall(sql)}
        return self._warehouse.session.sql(sql, **frames).toArrow()


def engine_of(
    warehouse: Warehouse, tables: Iterable[str], start_spark: Callable[[], SparkSession] | None = None
) -> QueryEngine:
    """Return the engine for queries on some tables of a warehouse."""
    opened = (warehouse.location.open(table) for table in tables)
    if sum(size_of(one) for one in opened if one is not None) <= LARGEST_WITHOUT_SPARK_BYTES:
        return LocalEngine(warehouse.location, warehouse.database)
    if warehouse.spark is None and start_spark is not None:
        warehouse = warehouse.with_session(start_spark())
    return SparkEngine(warehouse)
