"""Spark's data source `xlog_cells`: the stream of a deployment, whose rows are log cells.

Offsets, options and segments are those of `format("xlog")`; only what a task yields is different. The reader is
imported at its first use, because it loads compiled kernels, and Spark also starts a process that needs only the
schema.
"""

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from pipeline.executors.cells import LOG_CELLS_SPARK_SCHEMA
from sources.xlog.datasource import PROJECT_PATH, import_in_workers
from sources.xlog.options import parse_options

FORMAT = "xlog_cells"
"""The data source's name for `spark.readStream.format`."""

COUNTS_OPTION = "countsFolder"
"""The option with the folder in which the driver stores counts of rows (`pipeline.executors.row_counts`)."""


class CellSource(DataSource):
    """`spark.readStream.format("xlog_cells")`.

    The options are `sources.xlog.options.XlogOptions`, and `COUNTS_OPTION`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of `pipeline.executors.cells.LOG_CELLS`."""
        return LOG_CELLS_SPARK_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader of a streaming query."""
        from pipeline.executors.cell_reader import CellStreamReader

        own = {name: text for name, text in self.options.items() if name.lower() != COUNTS_OPTION.lower()}
        return CellStreamReader(parse_options(own), self.options.get(COUNTS_OPTION))


def observed_cells(stream: DataFrame) -> DataFrame:
    """Return the cells of the stream, without the empty rows between them, and with the observed metrics `log`.

    Spark has counted the empty rows as input of the batch before they are left out. Its progress also has the metrics:
    `pieces`, the number of log cells, `rows`, and `decoded_bytes`.
    """

    def total(name: str) -> Column:
        return F.sum(F.get_json_object("piece", f"$.{name}").cast("long"))

    return stream.where(F.col("piece").isNotNull()).observe(
        "log",
        F.count("piece").alias("pieces"),
        total("rows").alias("rows"),
        total("bytes").alias("decoded_bytes"),
    )


def start_python_processes(spark: SparkSession) -> None:
    """Let Spark start its Python processes and load this project, in the background; the first batch needs them.

    An error shows again in the first batch.
    """

    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pipeline.executors import cell_reader, log_cells  # noqa: F401

        yield from batches

    def run() -> None:
        cores = spark.sparkContext.defaultParallelism
        spark.sparkContext.setJobDescription("start Python processes")
        with suppress(PySparkException, Py4JError):
            spark.range(0, cores, 1, cores).mapInArrow(load, "id long").toArrow()

    InheritableThread(target=run, name="start Python processes", daemon=True).start()


def register(spark: SparkSession) -> None:
    """Register `format("xlog_cells")` with a session."""
    import_in_workers(spark, PROJECT_PATH)
    spark.dataSource.register(CellSource)
