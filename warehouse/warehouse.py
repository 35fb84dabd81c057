"""The warehouse: the paths of its Delta tables, and access to them with and without Spark.

A table is found by its path (`<base_path>/<database>.db/<table>`), so writing needs no metastore; `warehouse.catalog`
registers the tables for SQL. `EpochWarehouse` is the warehouse as of its newest epoch, read only: commands read in it
the state from which the writer would continue, also while a stream runs. Not here: what is written, and when
(`pipeline`, `jobs`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from delta.tables import DeltaTable
from deltalake import CommitProperties
from deltalake import DeltaTable as OpenTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse.delta import write
from warehouse.delta.commits import OpenTables
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.newest_epoch import EPOCHS, newest_versions, no_tables_error
from warehouse.delta.read import LARGEST_IN_MEMORY_BYTES, arrow_of, columns_of, size_of

TIMESTAMP_TYPE, TIMESTAMP_MICROS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
"""Spark's default is INT96, which delta-rs and others read as nanoseconds: wrong before 1677 and after 2262."""


@dataclass(frozen=True)
class Warehouse:
    """One database of Delta tables."""

    spark: SparkSession | None = field(repr=False)
    """A session with Delta configured; None if nothing is read with Spark."""
    base_path: str
    """The folder of all databases: any Hadoop path."""
    database: str = "aggregator"
    """The tables are in `<base_path>/<database>.db`."""

    @property
    def session(self) -> SparkSession:
        """The Spark session; raise WarehouseError if the warehouse was opened without one."""
        if self.spark is None:
            raise WarehouseError("this needs a Spark session", warehouse=self.root)
        return self.spark

    def with_session(self, spark: SparkSession) -> Warehouse:
        """Return the same warehouse with a Spark session, and with the same open tables."""
        found = replace(self, spark=spark)
        found.__dict__.update(location=self.location, open_tables=self.open_tables)
        return found

    @property
    def root(self) -> str:
        """The folder of the database."""
        return f"{self.base_path.rstrip('/')}/{self.database}.db"

    @cached_property
    def location(self) -> WarehouseLocation:
        """The folder of the database, for access without Spark."""
        return location_of(self.root)

    @cached_property
    def open_tables(self) -> OpenTables:
        """The tables that the writer has open."""
        return OpenTables(self.location)

    def path(self, table: str) -> str:
        """Return the path of a table."""
        return f"{self.root}/{table}"

    def exists(self, table: str) -> bool:
        """Whether the table exists."""
        return self.location.has(table)

    def require_tables(self) -> None:
        """Raise WarehouseError if no run has created the tables yet."""
        if not self.exists(EPOCHS):
            raise no_tables_error(self.root)

    def delta(self, table: str) -> DeltaTable:
        """Return Spark's `DeltaTable` of a table."""
        return DeltaTable.forPath(self.session, self.path(table))

    def read(self, table: str, version: int | None = None) -> DataFrame:
        """Read a table with Spark, at a version or at the newest one."""
        reader = self.session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.path(table))

    def read_system_table(self, table: str, version: int | None = None) -> DataFrame:
        """Return a system table as a data frame, at a version or at the newest one.

        A small table is read without Spark, in a tenth of the time that Spark takes to open a table.
        """
        opened = self.opened(table, version)
        if size_of(opened) > LARGEST_IN_MEMORY_BYTES:
            return self.read(table, version)
        schema = columns_of(opened)
        rows = arrow_of(opened, to_arrow_schema(schema, timezone="UTC"))
        return self.session.createDataFrame(rows, schema)

    def opened(self, table: str, version: int | None = None) -> OpenTable:
        """Open a table for `warehouse.delta.read`, at a version or at the newest one.

        Raises:
            WarehouseError: If the table does not exist.
            LockError: If this is the writer's warehouse, and another writer has committed to the table.
        """
        # Only a writer may keep tables open: for a reader, a copy may replace a table at any time.
        is_writer = self.open_tables.fence is not None
        found = (
            self.open_tables.read(table)
            if is_writer and version is None
            else self.location.open(table, version)
        )
        if found is None:
            raise WarehouseError("the table is not there", table=table, warehouse=self.root)
        return found

    def create(self, table: str, schema: StructType, comment: str | None = None) -> None:
        """Create an empty table if there is none."""
        write.create(self.location, table, schema, comment)

    def create_system_tables(self) -> None:
        """Create the system tables that do not exist yet."""
        for name, schema in SYSTEM_TABLES.items():
            self.create(name, schema)

    def tables(self) -> list[str]:
        """Return the names of all Delta tables of the database, sorted."""
        return self.location.tables()

    def version(self, table: str) -> int:
        """Return the table's newest version.

        The log is listed each time: maintenance may have removed the commits after a version that was read before.
        """
        return int(self.opened(table).version())

    def property(self, table: str, name: str) -> str | None:
        """Return the current value of a table's property, None if it is not set."""
        found: str | None = self.opened(table).metadata().configuration.get(name)
        return found

    def append_rows(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a system table in one commit."""
        write.append(self.location, table, write.arrow_rows(table, rows))

    def drop(self, table: str) -> None:
        """Remove a table with its files, if it is there; the table must be one that no epoch names."""
        fence = self.open_tables.fence
        if fence is not None:
            fence.check_lock()
            fence.forget(table)
        with contextlib.suppress(FileNotFoundError):
            self.location.fs.delete_dir(self.location.at(table))
        self.open_tables.forget(table)

    def hadoop_file(self, path: str) -> tuple[Any, Any]:
        """Return Hadoop's `FileSystem` and `Path` objects for a path."""
        jvm = self.session.sparkContext._jvm
        if jvm is None:
            raise WarehouseError("the Spark session has no JVM", advice="use a classic Spark session")
        hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
        conf = self.session.sparkContext._jsc.hadoopConfiguration()
        return hadoop_path.getFileSystem(conf), hadoop_path


@dataclass
class VersionedTables(OpenTables):
    """Tables at given versions, read only."""

    versions: Mapping[str, int] = field(default_factory=dict)
    """Table to version; other tables are opened at their newest one."""

    def open(self, table: str) -> OpenTable:
        """Open a table at its version; raise WarehouseError if there is no table."""
        if table not in self._tables:
            found = self.location.open(table, self.versions.get(table))
            if found is None:
                raise WarehouseError("the table is not there", table=table, warehouse=self.location.root)
            self._tables[table] = found
        return self._tables[table]

    def change(self, table: str, make: Callable[[OpenTable, CommitProperties], object]) -> int:  # noqa: ARG002
        """Raise WarehouseError, since a read-only warehouse commits nothing."""
        raise WarehouseError("this warehouse is open for reading only", table=table)


@dataclass(frozen=True)
class EpochWarehouse(Warehouse):
    """One database as of its newest epoch, read only."""

    @cached_property
    def open_tables(self) -> OpenTables:
        """The tables at their versions in the newest epoch."""
        return VersionedTables(self.location, versions=newest_versions(self.location).versions)

    def opened(self, table: str, version: int | None = None) -> OpenTable:
        """Open a table at a version, by default that of the newest epoch; raise WarehouseError if there is none."""
        if version is None:
            return self.open_tables.open(table)
        return super().opened(table, version)
