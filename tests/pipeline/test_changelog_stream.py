"""A Spark stream on `_changelog` goes on over batches that were killed, and `_epochs` says which of its rows count."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.commit import batch
from tests.pipeline.deployment import Deployment
from tests.truth import OWN_ROOT

A = OWN_ROOT / "2.6.0" / "a1"
COLUMNS = ["epoch", "replicaset_id", "global_id", "lsn", "type"]


class Killed(BaseException):
    """The job ends in the middle of a batch."""


def die(*_arguments: object) -> None:
    raise Killed


def rows_in(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in frame.select(*COLUMNS).collect())


def test_a_stream_goes_on_over_a_killed_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment(tmp_path, {"a1": A})
    deployment.run(3_000, batches=3)
    tables = tmp_path / "warehouse" / "aggregator.db"
    seen, passed_on = tmp_path / "seen", str(tmp_path / "checkpoint of the stream")

    def read_on() -> None:
        source = spark.readStream.format("delta").option("startingVersion", 0)
        rows = source.load(str(tables / "_changelog")).select(*COLUMNS)
        stream = rows.writeStream.option("checkpointLocation", passed_on).trigger(availableNow=True)
        stream.format("parquet").start(str(seen)).awaitTermination()

    with monkeypatch.context() as patch:
        patch.setattr(batch, "commit_epoch", die)
        with pytest.raises(Killed):
            deployment.run(3_000, batches=1)
    read_on()
    deployment.run()
    read_on()
    epochs = spark.read.format("delta").load(str(tables / "_epochs"))
    passed = spark.read.parquet(str(seen))
    stored = rows_in(spark.read.format("delta").load(str(tables / "_changelog")))
    assert rows_in(passed.join(epochs, "epoch", "leftsemi")) == stored
    assert sum(rows_in(passed).values()) > sum(stored.values())
    assert [row["query_id"] for row in deployment.rows("_epochs")].count("rolled back") == 1
