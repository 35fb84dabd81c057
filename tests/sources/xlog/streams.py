"""Streaming queries of tests: what each batch held, and how a test waits for rows."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sources.xlog.datasource import register
from tests.sources.xlog.logs import SPACE

Row = tuple[str, int, int]


def rows_of(batch: DataFrame) -> list[Row]:
    """Return (file, replica id, lsn) of the rows of user spaces, sorted."""
    rows = batch.where(f"space_id = {SPACE}").select("file", "replica_id", "lsn").collect()
    return sorted((row.file, row.replica_id or 0, row.lsn) for row in rows)


@dataclass
class Collected:
    """The batches of one run of a query."""

    batches: dict[int, list[Row]] = field(default_factory=dict)

    def take(self, batch: DataFrame, number: int) -> None:
        """Keep a batch; the function of `foreachBatch`."""
        self.batches[number] = rows_of(batch)

    @property
    def rows(self) -> list[Row]:
        """All rows, batch after batch."""
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def lsns(self) -> list[int]:
        return [lsn for file, _, lsn in self.rows if file.endswith(".xlog")]


def sources(*paths: Path) -> dict[str, str]:
    """Return the option that names sources after their directories."""
    return {"sources": json.dumps([{"name": path.name, "path": str(path)} for path in paths])}


def stream_of(spark: SparkSession, options: Mapping[str, str], path: Path | None = None) -> DataFrame:
    register(spark)
    reader = spark.readStream.format("xlog").options(**options)
    return reader.load() if path is None else reader.load(str(path))


def run_once(
    spark: SparkSession, checkpoint: Path, options: Mapping[str, str], path: Path | None = None
) -> Collected:
    """Run a query to the end of the logs (`Trigger.AvailableNow`); return its batches."""
    found = Collected()
    writer = stream_of(spark, options, path).writeStream.foreachBatch(found.take)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return found


@contextmanager
def running(
    spark: SparkSession, checkpoint: Path, options: Mapping[str, str], path: Path | None = None
) -> Iterator[tuple[StreamingQuery, Collected]]:
    """Run a query until the block ends."""
    found = Collected()
    writer = stream_of(spark, options, path).writeStream.foreachBatch(found.take)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="50 milliseconds")
    query = writer.start()
    try:
        yield query, found
    finally:
        query.stop()


def wait_for(query: StreamingQuery, found: Collected, count: int, seconds: float = 60) -> list[int]:
    """Return the lsns as soon as there are `count` of them."""
    deadline = time.monotonic() + seconds
    while len(found.lsns) < count:
        if not query.isActive:
            query.awaitTermination()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found.lsns)} of {count} rows after {seconds} s: {found.batches}")
        time.sleep(0.02)
    return found.lsns
