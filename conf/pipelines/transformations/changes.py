"""Two tables of a pipeline: `changes` has each row of the logs, `changes_by_type` counts them."""

from __future__ import annotations

from typing import Any

from pyspark import accumulators
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from sources.xlog.datasource import XlogDataSource

spark = SparkSession.active()
LOGS = spark.conf.get("tarantool.logs")


class Source(XlogDataSource):
    """Reads logs; its planning sends nothing that the pipelines' client does not know.

    Spark's process that plans a data source in Python sends the counters of its profiler, even if nothing is profiled.
    Up to Spark 4.3 `spark-pipelines run` then ends with UNKNOWN_RESPONSE, after all tables are written (SPARK-59135).
    Without these counters it ends well. With `spark.sql.pyspark.dataSource.profiler` register `XlogDataSource` itself.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._forget_counters()

    def reader(self, schema: Any) -> Any:
        """Return the reader of a batch."""
        self._forget_counters()
        return super().reader(schema)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802
        """Return the reader of a stream."""
        self._forget_counters()
        return super().streamReader(schema)

    @staticmethod
    def _forget_counters() -> None:
        ids = accumulators.SpecialAccumulatorIds
        for counter in (ids.SQL_UDF_PROFIER, ids.SQL_UDF_PROFIER_V2):
            accumulators._accumulatorRegistry.pop(counter, None)


spark.dataSource.register(Source)


@dp.table
def changes() -> DataFrame:
    """Return the rows of the logs as a stream: each update of the pipeline appends what is new."""
    return spark.readStream.format("xlog").load(LOGS)


@dp.materialized_view
def changes_by_type() -> DataFrame:
    """Return how many rows of each type each space has."""
    return spark.read.table("changes").groupBy("space_id", "type").count()
