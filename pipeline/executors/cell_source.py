"""Spark's data source `xlog_cells`: the stream of a deployment, whose rows are log cells.

Offsets, options and segments are those of `format("xlog")`; only what a task yields is different. The reader is
imported at its first use, because it loads compiled kernels, and Spark also starts a process that needs only the
schema.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from pipeline.executors.cells import LOG_CELLS_SPARK_SCHEMA
from sources.xlog.datasource import PROJECT_PATH, import_in_workers
from sources.xlog.options import parse_options

FORMAT = "xlog_cells"
"""The data source's name for `spark.readStream.format`."""

FILES_OPTION = "cellFiles"
"""The option that says which batches have their rows in files (`pipeline.executors.cell_files.CellFiles`)."""


class CellSource(DataSource):
    """`spark.readStream.format("xlog_cells")`.

    The options are `sources.xlog.options.XlogOptions`, and `FILES_OPTION`.
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
        from pipeline.executors.cell_files import cell_files_of
        from pipeline.executors.cell_reader import CellStreamReader

        files = cell_files_of(self.options, FILES_OPTION)
        own = {name: text for name, text in self.options.items() if name.lower() != FILES_OPTION.lower()}
        return CellStreamReader(parse_options(own), files)


def observed(cells: DataFrame) -> DataFrame:
    """Return the stream with the observed metrics `log`: what each batch has read.

    Spark puts them into its progress: `pieces`, the number of log cells, `rows`, and `decoded_bytes`.
    """

    def total(name: str) -> Column:
        return F.sum(F.get_json_object("piece", f"$.{name}").cast("long"))

    return cells.observe(
        "log",
        F.count("piece").alias("pieces"),
        total("rows").alias("rows"),
        total("bytes").alias("decoded_bytes"),
    )


def register(spark: SparkSession) -> None:
    """Register `format("xlog_cells")` with a session."""
    import_in_workers(spark, PROJECT_PATH)
    spark.dataSource.register(CellSource)
