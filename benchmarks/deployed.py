"""One deployment of the job, run by its own streaming query, with the time of each step of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from config.deployment import Config
from jobs.aggregate import start_stream, writer_on
from jobs.runtime.session import spark_session
from pipeline.batch import BatchResult
from pipeline.stream import StreamWriter
from sources.xlog.datasource import register
from warehouse import cluster
from warehouse.lock import WriterLock
from warehouse.warehouse import Warehouse


def session_in(folder: Path) -> SparkSession:
    """Return a session whose warehouses lie in a folder."""
    config = Config.model_validate(
        {
            "warehouse": str(folder.resolve()),
            "checkpoint": str((folder / "unused").resolve()),
            "sources": [{"name": "unused", "path": "/"}],
        }
    )
    spark = spark_session(config, "benchmark")
    register(spark)
    return spark


class Logs(Protocol):
    """A directory of logs."""

    def source(self) -> dict[str, Any]:
        """Return its entry among the sources of a configuration."""


class Ours:
    """One deployment of the job.

    Parameters
    ----------
    spark : SparkSession
    folder : Path
        Holds the warehouse and the checkpoint.
    members : sequence of Logs
    **settings
        Further keys of the configuration.

    """

    def __init__(self, spark: SparkSession, folder: Path, members: Sequence[Logs], **settings: Any) -> None:
        self.spark = spark
        self.steps: dict[str, float] = {}
        self.config = Config.model_validate(
            {
                "warehouse": str((folder / "warehouse").resolve()),
                "checkpoint": str((folder / "checkpoint").resolve()),
                "sources": [member.source() for member in members],
                "start": "logs",
                "max_bytes_per_trigger": 1 << 40,
                **settings,
            }
        )
        self.warehouse = Warehouse(spark, self.config.warehouse, self.config.database)
        self.warehouse.create_system_tables()
        cluster.record_allocation(self.warehouse, self.config.cluster.allocation, datetime.now(UTC))

    def run(self) -> float:
        """Aggregate what is there, and return the seconds of the triggers that had rows.

        `steps` holds the seconds of each step of the last of them.
        """
        found: list[BatchResult] = []
        with WriterLock(self.warehouse, "benchmark") as lock:
            writer = writer_on(self.spark, self.config, self.warehouse, lock)
            batches = StreamWriter(self.warehouse, self.config, writer, found.append)
            query = start_stream(self.spark, self.config, writer, batches, once=True)
            query.awaitTermination()
        done = {result.batch_id: result for result in found if result.rows}
        self.steps = _differences(found[-1]) if found else {}
        return sum(p.durationMs["triggerExecution"] / 1000 for p in query.recentProgress if p.batchId in done)

    def newest(self) -> DataFrame:
        """Return the rows of `_changelog` of the newest epoch."""
        changelog = self.warehouse.read("_changelog")
        epoch = changelog.agg(F.max("epoch")).collect()[0][0]
        return changelog.where(F.col("epoch") == epoch)


def _differences(result: BatchResult) -> dict[str, float]:
    """Return the seconds of each step by itself."""
    before, found = 0.0, {}
    for step, at in result.steps.items():
        found[step], before = at - before, at
    return found
