"""The warehouse: where its Delta tables lie, and the few ways in which they are read and written.

Paths only (`<warehouse>/<database>.db/<table>`): no metastore is needed to write. `tables.catalog` makes the
same tables known to SQL by name. Not here: what is written, and when (jobs).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import DeltaTable as OpenTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from tables import write
from tables.commits import OpenTables
from tables.place import Place, place_of
from tables.read import columns_of, rows_with, size_of
from tables.write import MARK

log = logging.getLogger(__name__)

NEAR_BYTES = 16 * 1024 * 1024
"""Up to so many bytes of files a table is small: its columns are read faster here than Spark plans to read them."""

KEYED_BYTES = 64 * 1024 * 1024
"""The same where few rows count, those with certain keys: what Spark would do with all of them is left out."""

TIMESTAMP_TYPE, TIMESTAMP_MICROS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
"""Spark's own INT96 is read as nanoseconds by other readers, delta-rs among them: wrong before 1677 and after 2262."""

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class Warehouse:
    """One database of Delta tables.

    Parameters
    ----------
    spark : SparkSession
        A session with Delta configured.
    location : str
        Any Hadoop path.
    database : str
        The tables lie in `<location>/<database>.db`.

    """

    spark: SparkSession = field(repr=False)
    location: str
    database: str = "aggregator"

    @cached_property
    def writer(self) -> SparkSession:
        """A session whose commits carry our mark; threads share it, so nothing else is ever set in it."""
        session = self.session()
        # What is merged is in memory, or cached and the same when it is computed again.
        session.conf.set("spark.databricks.delta.merge.materializeSource", "none")
        # With it Delta takes the caching of another table's rows meanwhile for a change of this source.
        session.conf.set("spark.databricks.delta.merge.failSourceCachedAfterMaterialization", "false")
        return session

    def session(self) -> SparkSession:
        """Return a new session whose commits carry our mark."""
        session = self.spark.newSession()
        session.conf.set(USER_METADATA, MARK)
        session.conf.set(TIMESTAMP_TYPE, TIMESTAMP_MICROS)
        return session

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
        """Return the handle for MERGE, DELETE and RESTORE."""
        return DeltaTable.forPath(self.spark, self.path(table))

    def read(self, table: str, version: int | None = None) -> DataFrame:
        """Return a table, at a version or as it is now."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.path(table))

    def opened(self, table: str, version: int | None = None) -> OpenTable:
        """Return a table for `tables.read`, at a version or as it is now.

        Raises
        ------
        WarehouseError
            Where it is not there.

        """
        found = self.place.open(table, version)
        if found is None:
            raise WarehouseError("the table is not there", table=table, warehouse=self.root)
        return found

    def near(self, table: str, version: int | None, columns: StructType) -> DataFrame:
        """Return some columns of a table; of a small one as rows that the driver holds, which costs no Spark job.

        Parameters
        ----------
        table : str
        version : int or None
            None for the table as it is now.
        columns : StructType

        """
        opened = self.opened(table, version)
        if not _is_near(opened, NEAR_BYTES):
            return self.read(table, version).select(columns.names)
        rows = columns_of(opened, to_arrow_schema(columns, timezone="UTC"))
        return self.spark.createDataFrame(rows if rows.num_rows else [], columns).coalesce(1)

    def keyed(
        self, table: str, version: int | None, columns: StructType, key: str, keys: pa.Array
    ) -> DataFrame | None:
        """Return some columns of the rows with certain keys, as `near` does; None where the table is too large.

        Parameters
        ----------
        table : str
        version : int or None
        columns : StructType
        key : str
            One of the columns.
        keys : pyarrow.Array
            Values of it.

        """
        opened = self.opened(table, version)
        if not _is_near(opened, KEYED_BYTES):
            return None
        rows = rows_with(opened, to_arrow_schema(columns, timezone="UTC"), key, keys)
        return self.spark.createDataFrame(rows if rows.num_rows else [], columns).coalesce(1)

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
        """Return the table's latest version, as its log tells it.

        Never by looking for the files behind a version that is known: cleaning may have removed those in between.
        """
        return int(self.opened(table).version())

    def property(self, table: str, name: str) -> str | None:
        """Return a property of the table as it is now, None where it is not set."""
        found: str | None = self.opened(table).metadata().configuration.get(name)
        return found

    def set_property(self, table: str, name: str, value: str) -> None:
        """Set a property of the table, in a commit of its own."""
        write.set_property(self.place, table, name, value)

    def append_rows(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows that the driver holds to a system table in one commit; costs no Spark job."""
        write.append(self.place, table, write.arrow_rows(table, rows))

    def append_arrow(self, table: str, rows: pa.Table, instead_of: str | None = None) -> None:
        """Append rows that the driver holds, in place of those of which a condition is true; costs no Spark job."""
        write.append(self.place, table, rows, instead_of)

    def merge_arrow(self, table: str, rows: pa.Table, *, goes_on: bool) -> bool:
        """Merge rows that the driver holds into a small table (`tables.write.merge`); nothing where it is none.

        Returns
        -------
        bool
            Whether it was done.

        """
        opened = self.opened(table)
        if not _is_near(opened, KEYED_BYTES):
            return False
        write.merge(self.place, table, rows, goes_on=goes_on)
        return True

    def append(self, table: str, rows: DataFrame) -> None:
        """Append rows in one commit. Column names must be the table's."""
        rows.write.format("delta").mode("append").option("userMetadata", MARK).save(self.path(table))

    def replace(self, table: str, rows: DataFrame, instead_of: str) -> None:
        """Append rows in place of those of which a condition is true, in one commit."""
        writer = rows.write.format("delta").mode("overwrite").option("userMetadata", MARK)
        writer.option("replaceWhere", instead_of).save(self.path(table))

    def overwrite(self, table: str, rows: DataFrame) -> None:
        """Replace all rows, and the schema where it differs, in one commit."""
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.option("userMetadata", MARK).save(self.path(table))

    def rows(self, table: str, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
        """Return driver-side rows as a frame with the columns of a system table; costs no Spark job."""
        return self.spark.createDataFrame(write.arrow_rows(table, rows), SYSTEM_TABLES[table])

    def drop(self, table: str) -> None:
        """Remove a table with its files. Only for one that no epoch has named."""
        self.place.fs.delete_dir(self.place.at(table))

    def _hadoop(self, path: str) -> tuple[Any, Any]:
        jvm = self.spark.sparkContext._jvm
        if jvm is None:
            raise WarehouseError("the Spark session has no JVM", advice="use a classic Spark session")
        hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
        conf = self.spark.sparkContext._jsc.hadoopConfiguration()
        return hadoop_path.getFileSystem(conf), hadoop_path


def _is_near(opened: OpenTable, size: int) -> bool:
    return size_of(opened) <= size and write.is_writable(opened)


def in_parallel(work: Any, items: Iterable[Any], threads: int = 4) -> list[Any]:
    """Run `work(item)` for each item side by side and return the results in order; the first error is raised.

    Delta's commits are latency more than work, so threads help even where cores are few.
    """
    todo = list(items)
    if len(todo) <= 1:
        return [work(item) for item in todo]
    with ThreadPoolExecutor(max_workers=min(threads, len(todo))) as pool:
        return list(pool.map(work, todo))
