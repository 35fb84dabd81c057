"""The whole way, from log files to tables, against plain Delta doing the same writes from decoded Parquet.

    python -m benchmarks.pipeline [--rows N]

A real Tarantool records the log (`tests.recordings.record --rows N`). Plain Delta's side gets every advantage: rows
are decoded, typed and lie in Parquet; it appends them all to one table and, for each space, reduces them to the last
of each key and MERGEs that. Both sides run warm, in one session, on the same rows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.aggregate import aggregate
from jobs.batch.run import Outcome
from jobs.config import Config
from jobs.progress import Progress
from jobs.session import spark_session

STATE = Path(".state/bench")


def recorded(rows: int) -> Path:
    """Return a recording of about so many rows, made once."""
    root = STATE / f"recording-{rows}"
    if not root.is_dir():
        command = [sys.executable, "-m", "tests.recordings.record", "--out", str(root), "--rows", str(rows)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(root.rglob("a1")).parent


def timed(work: Callable[[], object]) -> float:
    """Return how long a piece of work takes, in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ours(config: Config) -> list[Outcome]:
    """Run the job and return its batches that had rows."""
    outcomes: list[Outcome] = []
    progress = Progress.batch_done

    def watch(self: Progress, outcome: Outcome) -> None:
        outcomes.append(outcome)
        progress(self, outcome)

    Progress.batch_done = watch  # type: ignore[method-assign]
    try:
        aggregate(config, argparse.Namespace(once=True))
    finally:
        Progress.batch_done = progress  # type: ignore[method-assign]
    return [outcome for outcome in outcomes if outcome.rows]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    root = recorded(options.rows)
    folder = STATE / f"run-{time.time_ns()}"
    config = Config.model_validate(
        {
            "warehouse": str((folder / "warehouse").resolve()),
            "checkpoint": str((folder / "checkpoint").resolve()),
            "sources": [{"name": "a1", "path": str((root / "a1").resolve())}],
            "start": "logs",
            "max_bytes_per_trigger": max(1, sum(f.stat().st_size for f in (root / "a1").glob("*.xlog")) // 2),
        }
    )
    spark = spark_session(config, "benchmark")
    outcomes = ours(config)
    for outcome in outcomes:
        print(f"ours: {outcome.rows} rows, {outcome.tables} tables, {outcome.seconds:.1f} s")
    database = folder / "warehouse" / "aggregator.db"
    changelog = spark.read.format("delta").load(str(database.resolve() / "_changelog"))
    epochs = [row.epoch for row in changelog.select("epoch").distinct().orderBy("epoch").collect()]
    parquet = str((folder / "decoded").resolve())
    keyed(changelog).write.partitionBy("epoch").parquet(parquet)
    target, log = str((folder / "plain").resolve()), str((folder / "plain_log").resolve())
    seconds = [
        plain(spark, spark.read.parquet(parquet).where(F.col("epoch") == e), target, log) for e in epochs
    ]
    for outcome, theirs, name in zip(outcomes, seconds, ("first load", "onto existing rows"), strict=False):
        print(
            f"{name}: ours {outcome.seconds:.1f} s, plain Delta {theirs:.1f} s, ratio {outcome.seconds / theirs:.2f}"
        )
    return 0


def keyed(changelog: DataFrame) -> DataFrame:
    """Return the rows that change spaces; a row's key stands for its decoded columns."""
    rows = changelog.where(F.col("layout").isNotNull())
    return rows.withColumn("k", F.coalesce("key", F.expr("substring(tuple, 2, 9)")))


def plain(spark: SparkSession, rows: DataFrame, target: str, log: str) -> float:
    """Return how long plain Delta takes to append rows to a log and MERGE the last of each key into a table."""
    if not DeltaTable.isDeltaTable(spark, target):
        rows.limit(0).write.format("delta").save(target)
        rows.limit(0).write.format("delta").save(log)

    def work() -> None:
        rows.write.format("delta").mode("append").save(log)
        order = F.struct("segment", "position", "row")
        last = (
            rows.groupBy("space", "k").agg(F.max_by(F.struct(*rows.columns), order).alias("r")).select("r.*")
        )
        merge = (
            DeltaTable.forPath(spark, target)
            .alias("t")
            .merge(last.alias("s"), "t.space = s.space AND t.k = s.k")
        )
        merge = merge.whenMatchedDelete("s.type = 'DELETE'").whenMatchedUpdateAll()
        merge.whenNotMatchedInsertAll("s.type <> 'DELETE'").execute()

    return timed(work)


if __name__ == "__main__":
    sys.exit(main())
