"""The warehouse: where its Delta tables lie, and how they are opened.

Paths only (`<location>/<database>.db/<table>`): no metastore is needed to write. `warehouse.catalog` makes the same
tables known to SQL by name. Not here: what is written, and when (`pipeline`, `jobs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from delta.tables import DeltaTable
from deltalake import DeltaTable as OpenTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse import write
from warehouse.commits import OpenTables, columns_of
from warehouse.place import Place, place_of
from warehouse.read import arrow_of, size_of

TIMESTAMP_TYPE, TIMESTAMP_MICROS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
"""Spark's own INT96 is read as nanoseconds by other readers, delta-rs among them: wrong before 1677 and after 2262."""

READ_HERE = 16 * 2**20
"""Bytes of a table's files up to which `Warehouse.read_own` reads it without Spark."""


@dataclass(frozen=True)
class Warehouse:
    """One database of Delta tables.

    Parameters
    ----------
    spark : SparkSession or None
        A session with Delta configured, for what is read in Spark.
    location : str
        Any Hadoop path.
    database : str
        The tables lie in `<location>/<database>.db`.

    """

    spark: SparkSession | None = field(repr=False)
    location: str
    database: str = "aggregator"

    @property
    def session(self) -> SparkSession:
        """The Spark session.

        Raises
        ------
        WarehouseError
            The warehouse was opened without one.

        """
        if self.spark is None:
            raise WarehouseError("this needs a Spark session", warehouse=self.root)
        return self.spark

    @property
    def root(self) -> str:
        """The folder of the database."""
        return f"{self.location.rstrip('/')}/{self.database}.db"

    @cached_property
    def place(self) -> Place:
        """The same folder for delta-rs."""
        return place_of(self.root)

    @cached_property
    def open_tables(self) -> OpenTables:
        """The tables that the writer has open."""
        return OpenTables(self.place)

    def path(self, table: str) -> str:
        """Return where a table lies."""
        return f"{self.root}/{table}"

    def exists(self, table: str) -> bool:
        """Whether a Delta table lies at the table's path."""
        return self.place.has(table)

    def delta(self, table: str) -> DeltaTable:
        """Return Spark's handle of a table."""
        return DeltaTable.forPath(self.session, self.path(table))

    def read(self, table: str, version: int | None = None) -> DataFrame:
        """Return a table, at a version or as it is now."""
        reader = self.session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.path(table))

    def read_own(self, table: str, version: int | None = None) -> DataFrame:
        """Return a system table, at a version or as it is now.

        Few bytes are read here and handed to Spark: that takes a tenth of the time in which Spark opens a table.
        """
        opened = self.opened(table, version)
        if size_of(opened) > READ_HERE:
            return self.read(table, version)
        schema = columns_of(opened)
        rows = arrow_of(opened, to_arrow_schema(schema, timezone="UTC"))
        return self.session.createDataFrame(rows, schema)

    def opened(self, table: str, version: int | None = None) -> OpenTable:
        """Return a table for `warehouse.read`, at a version or as it is now.

        Raises
        ------
        WarehouseError
            Where it is not there.
        LockError
            It is read as it is now for a writer, and another writer has committed to it.

        """
        # Nobody else changes what the writer has open; for a reader, a table may be replaced by a copy at any time.
        is_writer = self.open_tables.fence is not None
        found = (
            self.open_tables.read(table) if is_writer and version is None else self.place.open(table, version)
        )
        if found is None:
            raise WarehouseError("the table is not there", table=table, warehouse=self.root)
        return found

    def create(self, table: str, schema: StructType, comment: str | None = None) -> None:
        """Create an empty table where none is."""
        write.create(self.place, table, schema, comment)

    def create_system_tables(self) -> None:
        """Create what every warehouse has and this one lacks."""
        for name, schema in SYSTEM_TABLES.items():
            self.create(name, schema)

    def tables(self) -> list[str]:
        """Return the names of all Delta tables of the database, sorted."""
        return self.place.tables()

    def version(self, table: str) -> int:
        """Return the table's latest version, as its log says.

        Never by looking for the files behind a version that is known: cleaning may have removed those in between.
        """
        return int(self.opened(table).version())

    def property(self, table: str, name: str) -> str | None:
        """Return a property of the table as it is now, None where it is not set."""
        found: str | None = self.opened(table).metadata().configuration.get(name)
        return found

    def append_rows(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a system table in one commit."""
        write.append(self.place, table, write.arrow_rows(table, rows))

    def drop(self, table: str) -> None:
        """Remove a table with its files. Only for one that no epoch names."""
        fence = self.open_tables.fence
        if fence is not None:
            fence.check_lock()
            fence.forget(table)
        self.place.fs.delete_dir(self.place.at(table))
        self.open_tables.forget(table)

    def hadoop_file(self, path: str) -> tuple[Any, Any]:
        """Return a path as Hadoop's file system and path."""
        jvm = self.session.sparkContext._jvm
        if jvm is None:
            raise WarehouseError("the Spark session has no JVM", advice="use a classic Spark session")
        hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
        conf = self.session.sparkContext._jsc.hadoopConfiguration()
        return hadoop_path.getFileSystem(conf), hadoop_path
