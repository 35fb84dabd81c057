"""One deployment of the job, run step by step, with a clock: the pipeline benchmark's own side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from jobs.batch import run
from jobs.batch.load import load_state
from jobs.batch.outcome import Outcome
from jobs.batch.run import Writer
from jobs.options import stream_options
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.logs import Member
from config.deployment import Config
from jobs.session import spark_session
from sources.xlog.datasource import register
from sources.xlog.segment import Segment
from tables import cluster
from tables.lock import WriterLock
from tables.warehouse import Warehouse


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


@dataclass
class Steps:
    """Where the time of our batches goes: seconds by the step that was reached."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def begin(self) -> None:
        """Start anew."""
        self.seconds.clear()
        self._last = time.perf_counter()

    def reached(self, step: str) -> None:
        """Count the time since the step before."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._last
        self._last = now


class TimedWriter(Writer):
    """The job's writer, with a clock that starts with each batch."""

    steps: Steps

    def process(
        self,
        frame: DataFrame,
        segments: Sequence[Segment],
        query_id: str,
        batch_id: int,
        offsets: tuple[str, str],
    ) -> tuple[int, int]:
        """Do one batch."""
        self.steps.begin()
        return super().process(frame, segments, query_id, batch_id, offsets)


class Ours:
    """One deployment of the job.

    Parameters
    ----------
    spark : SparkSession
    folder : Path
        Holds the warehouse and the checkpoint.
    members : sequence of Member

    """

    def __init__(self, spark: SparkSession, folder: Path, members: Sequence[Member]) -> None:
        self.spark, self.members, self.steps = spark, members, Steps()
        self.config = Config.model_validate(
            {
                "warehouse": str((folder / "warehouse").resolve()),
                "checkpoint": str((folder / "checkpoint").resolve()),
                "sources": [member.source() for member in members],
                "start": "logs",
                "max_bytes_per_trigger": 1 << 40,
            }
        )
        self.warehouse = Warehouse(spark, self.config.warehouse, self.config.database)
        self.warehouse.create_system_tables()
        cluster.start(self.warehouse, self.config.cluster.allocation, datetime.now(UTC))

    def run(self) -> float:
        """Aggregate what is there, and return the seconds of the triggers that had rows."""
        found: list[Outcome] = []
        silent, run.reached = run.reached, self.steps.reached
        try:
            with WriterLock(self.warehouse, "benchmark") as lock:
                state = load_state(self.warehouse)
                options = stream_options(self.config, state, self.spark.sparkContext.defaultParallelism)
                writer = TimedWriter(self.warehouse, self.config, options, lock, state, found.append)
                writer.steps = self.steps
                rows = self.spark.readStream.format("xlog").options(**options).load()
                stream = rows.writeStream.option("checkpointLocation", self.config.checkpoint)
                query = stream.foreachBatch(writer).trigger(availableNow=True).start()
                query.awaitTermination()
        finally:
            run.reached = silent
        batches = {outcome.batch_id for outcome in found if outcome.rows}
        return sum(
            p.durationMs["triggerExecution"] / 1000 for p in query.recentProgress if p.batchId in batches
        )

    def newest(self) -> DataFrame:
        """Return the rows of `_changelog` of the newest epoch."""
        changelog = self.warehouse.read("_changelog")
        epoch = changelog.agg(F.max("epoch")).collect()[0][0]
        return changelog.where(F.col("epoch") == epoch)
