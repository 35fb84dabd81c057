"""Defines two tables of a pipeline: `changes` has each row of the logs, `changes_by_type` counts them."""

from typing import Any

from pyspark import accumulators
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from sources.xlog.datasource import XlogDataSource

spark = SparkSession.active()
LOGS = spark.conf.get("tarantool.logs")


class XlogSourceWithoutProfiler(XlogDataSource):
    """Reads logs like `XlogDataSource`, but removes the profiler's counters from Spark's planning process.

    That process sends the counters even if nothing is profiled. Up to Spark 4.3, `spark-pipelines run` then ends with
    UNKNOWN_RESPONSE, although all tables are written (SPARK-59135). If you profile data sources
    (`spark.sql.pyspark.dataSource.profiler`), register `XlogDataSource` itself.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._remove_counters()

    def reader(self, schema: Any) -> Any:
        """Return the reader of a batch."""
        self._remove_counters()
        return super().reader(schema)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802
        """Return the reader of a stream."""
        self._remove_counters()
        return super().streamReader(schema)

    @staticmethod
    def _remove_counters() -> None:
        ids = accumulators.SpecialAccumulatorIds
        for counter in (ids.SQL_UDF_PROFIER, ids.SQL_UDF_PROFIER_V2):
            accumulators._accumulatorRegistry.pop(counter, None)


spark.dataSource.register(XlogSourceWithoutProfiler)


@dp.table
def changes() -> DataFrame:
    """Return the rows of the logs as a stream: each update of the pipeline appends the new ones."""
    return spark.readStream.format("xlog").load(LOGS)


@dp.materialized_view
def changes_by_type() -> DataFrame:
    """Return the number of rows per space and type."""
    return spark.read.table("changes").groupBy("space_id", "type").count()
