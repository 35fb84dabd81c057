"""Spark's data source `format("xlog")`: Tarantool's logs as a table and as a stream.

`sources.xlog.options` checks the options, and `sources.xlog.spark_readers` reads. The data source defines no
`pushFilters`, because Spark refuses a data source with this method if filter pushdown for Python data sources is off,
which is the default. Options filter rows instead.

The readers are imported at their first use, because they load compiled kernels, which takes half a second. Spark also
starts a process that needs only the schema.
"""

import os
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from schemas.escaping import escape_logs_without_handler
from schemas.xrow import CORRUPT_COLUMN, REPLICASET_FIELDS, XROW_FIELDS
from sources.xlog.format.damage import Mode
from sources.xlog.options import XlogOptions, parse_options

_SPARK_TYPES = {
    pa.string(): StringType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def schema_of(options: XlogOptions) -> pa.Schema:
    """Return the schema of the rows under these options."""
    fields = (REPLICASET_FIELDS if options.with_replicaset else ()) + XROW_FIELDS
    corrupt = ((CORRUPT_COLUMN, pa.string()),) if options.mode is Mode.PERMISSIVE else ()
    return pa.schema(fields + corrupt)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema with the types of `schemas.xrow`; every column is nullable."""
    return StructType([StructField(f.name, _SPARK_TYPES[f.type], nullable=True) for f in schema])


PROJECT_PATH = str(Path(__file__).resolve().parents[__name__.count(".")])
"""The folder or zip that the project is imported from."""


class XlogDataSource(DataSource):
    """`spark.read.format("xlog")` and `spark.readStream.format("xlog")`; options in `XlogOptions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "xlog"

    @cached_property
    def _xlog_options(self) -> XlogOptions:
        return parse_options(self.options)

    def schema(self) -> StructType:
        """Return the columns of `schemas.xrow` that rows have under the options."""
        return spark_schema(schema_of(self._xlog_options))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the reader of a batch query."""
        from sources.xlog.spark_readers import XlogReader

        escape_logs_without_handler()
        return XlogReader(self._xlog_options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader of a streaming query."""
        from sources.xlog.spark_readers import XlogStreamReader

        escape_logs_without_handler()
        return XlogStreamReader(self._xlog_options)


def import_in_workers(spark: SparkSession, path: str) -> None:
    """Let Python processes of Spark that start from now on import from a folder or zip.

    The one that computes a stream's offsets starts on the driver, without the files of --py-files.
    """
    environment = spark.sparkContext.environment
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys([*known, path])))


def register(spark: SparkSession) -> None:
    """Register `format("xlog")` with a session."""
    import_in_workers(spark, PROJECT_PATH)
    spark.dataSource.register(XlogDataSource)
