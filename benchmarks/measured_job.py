"""Runs the job as its streaming query in this process, and measures its triggers and the steps of its batches."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from config.deployment import Config
from jobs.aggregate import open_batch_writer, start_stream
from jobs.runtime.session import spark_session
from pipeline.batch import BatchResult
from pipeline.executors.cell_source import start_python_processes
from pipeline.stream import OnResult, StreamWriter
from sources.xlog.datasource import register
from warehouse.lock.lock import WriterLock
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse


def session_in(folder: Path) -> SparkSession:
    """Return a Spark session as the job has it, whose warehouse directory is a folder."""
    config = Config.model_validate(
        {
            "warehouse": str(folder.resolve()),
            "checkpoint": str((folder / "unused").resolve()),
            "sources": [{"name": "unused", "path": "/"}],
        }
    )
    spark = spark_session(config, "benchmark")
    register(spark)
    start_python_processes(spark)
    return spark


class LogDirectory(Protocol):
    """A directory of logs that a configuration can name as a source."""

    def source_entry(self) -> dict[str, Any]:
        """Return the entry under `sources` of the configuration."""


class MeasuredJob:
    """The job over some directories of logs, with its own warehouse and checkpoint in `folder`.

    Args:
        **settings: Further keys of the configuration.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, members: Sequence[LogDirectory], **settings: Any
    ) -> None:
        self.spark = spark
        self.steps: dict[str, float] = {}
        self.config = Config.model_validate(
            {
                "warehouse": str((folder / "warehouse").resolve()),
                "checkpoint": str((folder / "checkpoint").resolve()),
                "sources": [member.source_entry() for member in members],
                "start": "logs",
                "max_bytes_per_trigger": 1 << 40,
                **settings,
            }
        )
        self.warehouse = Warehouse(spark, self.config.warehouse, self.config.database)
        self.warehouse.create_system_tables()
        cluster.record_allocation(self.warehouse, self.config.cluster.allocation, datetime.now(UTC))

    def run(self, watch: OnResult | None = None) -> float:
        """Aggregate all new rows of the logs, and return the seconds of the triggers that had rows.

        Sets `steps` to the seconds of each step of the last batch.

        Args:
            watch: Called with the result of each batch.
        """
        results: list[BatchResult] = []
        with WriterLock(self.warehouse, "benchmark") as lock:
            writer = open_batch_writer(self.spark, self.config, self.warehouse, lock)

            def done(result: BatchResult) -> None:
                results.append(result)
                if watch is not None:
                    watch(result)

            batches = StreamWriter(self.warehouse, self.config, writer, done)
            query = start_stream(self.spark, self.config, writer.state, batches, once=True)
            query.awaitTermination()
        with_rows = {result.batch_id for result in results if result.row_count}
        self.steps = _step_seconds(results[-1]) if results else {}
        progress = (one for one in query.recentProgress if one.batchId in with_rows)
        return sum(one.durationMs["triggerExecution"] / 1000 for one in progress)

    def newest_changes(self) -> DataFrame:
        """Return the rows of the newest epoch in `_changelog`."""
        changelog = self.warehouse.read("_changelog")
        epoch = changelog.agg(F.max("epoch")).collect()[0][0]
        return changelog.where(F.col("epoch") == epoch)


def _step_seconds(result: BatchResult) -> dict[str, float]:
    """Return the seconds of each step, from the times since the batch's start at which the steps ended."""
    before, seconds = 0.0, {}
    for step, end in result.seconds_by_step.items():
        seconds[step], before = end - before, end
    return seconds
