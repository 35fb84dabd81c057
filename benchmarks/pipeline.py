"""The whole way, from log files to tables, against plain Delta doing the same writes from decoded Parquet.

    python -m benchmarks.pipeline [--rows N] [--repeat N] [--small-only]

Plain Delta's side gets every advantage: its rows are decoded, typed and lie in Parquet. It appends them all to one
table and MERGEs, for each space, the last row of each key; both sides run warm, in one session, on the same rows,
and write their spaces side by side. Ours is Spark's own time of the whole trigger: finding the end of the logs,
Spark's offset log, the batch, its commit.

Steps: a first load into empty tables; the same again onto existing rows of spaces that one replicaset writes; onto
existing rows of a space that two write, half of the keys both; batches of 100 rows over three spaces, one conflict.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.logs import ADMIN, FIRST_SPACE, FORMAT, Member
from jobs.batch import run
from jobs.batch.load import load_state
from jobs.batch.run import Outcome, Writer
from jobs.config import Config
from jobs.options import stream_options
from jobs.session import spark_session
from schemas.layout import table_layout
from schemas.space import Field, KeyPart, Space
from sources.xlog.datasource import register
from sources.xlog.segment import Segment
from tables import cluster
from tables.lock import WriterLock
from tables.warehouse import Warehouse
from udfs.tuples import tuple_columns

STATE = Path(".state/bench")
OWN, SHARED = ("own", "other"), "shared"
ORDER = ("timestamp", "segment", "position", "row")


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


class Plain:
    """Plain Delta: a log, and a table a space.

    Parameters
    ----------
    folder : Path
        Empty.

    """

    def __init__(self, spark: SparkSession, folder: Path, spaces: Sequence[str]) -> None:
        self.spark, self.folder, self.spaces = spark, folder, spaces
        self._batches = 0

    def path(self, name: str) -> str:
        """Return where a table lies."""
        return str((self.folder / name).resolve())

    def decode(self, changelog: DataFrame) -> Mapping[str, str]:
        """Write a batch's rows as Parquet, decoded and typed; return the files by space, "" for all rows."""
        fields = tuple(Field(name, kind) for name, kind in FORMAT)
        space = Space(FIRST_SPACE, ADMIN, "any", "memtx", fields, (KeyPart(0, "unsigned"),))
        decode = tuple_columns(table_layout([space]))
        rows = changelog.where(F.col("layout").isNotNull() & F.col("tuple").isNotNull())
        rows = rows.withColumn("typed", decode(F.col("tuple"), F.lit(0)))
        typed = rows.select("space", "timestamp", "segment", "position", "row", "tuple", "typed.*")
        self._batches += 1
        files = {"": self.path(f"decoded-{self._batches}")}
        changelog.write.parquet(files[""])
        for name in self.spaces:
            files[name] = self.path(f"decoded-{self._batches}-{name}")
            typed.where(F.col("space") == name).write.parquet(files[name])
        for name, file in files.items():
            target = self.path(name or "_log")
            if not DeltaTable.isDeltaTable(self.spark, target):
                self.spark.read.parquet(file).limit(0).write.format("delta").save(target)
        return files

    def write(self, files: Mapping[str, str], threads: int) -> None:
        """Append all rows, then MERGE each space, so many side by side."""
        self.spark.read.parquet(files[""]).write.format("delta").mode("append").save(self.path("_log"))
        changed = [name for name in files if name]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda name: self._merge(name, files[name]), changed))

    def _merge(self, name: str, file: str) -> None:
        session = self.spark.newSession()
        rows = session.read.parquet(file)
        last = (
            rows.groupBy("id")
            .agg(F.max_by(F.struct(*rows.columns), F.struct(*ORDER)).alias("r"))
            .select("r.*")
        )
        target = DeltaTable.forPath(session, self.path(name)).alias("t")
        merge = target.merge(last.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def timed(work: Callable[[], object]) -> float:
    """Return how long a piece of work takes, in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def tell(name: str, ours: float, plain: float, steps: Steps | None = None) -> None:
    """Print one line, and where the time goes."""
    print(f"{name:44} ours {ours:6.2f} s   plain Delta {plain:6.2f} s   ratio {ours / plain:.2f}", flush=True)
    if steps is not None:
        told = ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps.seconds.items())
        print(f"    {told}", flush=True)


def load(spark: SparkSession, folder: Path, rows: int, *, contended: bool, quiet: bool = False) -> None:
    """Measure a first load and a second one onto its rows."""
    folder.mkdir(parents=True)
    spaces = (SHARED,) if contended else OWN
    members = [Member(folder, name, spaces) for name in ("a1", "b1")]
    ours, plain = Ours(spark, folder, members), Plain(spark, folder, spaces)
    draw = random.Random(rows)
    # Keys are drawn from a space 0.8 as large as the rows; the second load meets about half of them again.
    for step in ("first load", "onto existing rows"):
        for number, member in enumerate(members):
            keys = [draw.randrange(rows * 8 // 10) for _ in range(rows // 2)]
            if contended:
                member.put(SHARED, [key + (number * rows * 4 // 10) for key in keys])
            else:
                member.put(spaces[number], keys)
        seconds = ours.run()
        files = plain.decode(ours.newest())
        theirs = timed(lambda files=files: plain.write(files, 2))  # type: ignore[misc]
        if not quiet:
            kind = "a space that two write" if contended else "spaces that one writes"
            tell(f"{step}, {kind}", seconds, theirs, ours.steps)
    check(spark, ours, plain, spaces)


def check(spark: SparkSession, ours: Ours, plain: Plain, spaces: Sequence[str]) -> None:
    """Stop if the two sides do not hold the same keys."""
    for space in spaces:
        own = ours.warehouse.read(space).count()
        theirs = spark.read.format("delta").load(plain.path(space)).count()
        if own != theirs:
            raise SystemExit(f"{space}: {own} rows, plain Delta has {theirs}")


def small(spark: SparkSession, folder: Path, repeat: int, base: int) -> None:
    """Measure batches of 100 rows over three spaces with one conflict, onto `base` rows a space."""
    folder.mkdir(parents=True)
    spaces = (*OWN, SHARED)
    members = [Member(folder, name, spaces) for name in ("a1", "b1")]
    ours, plain = Ours(spark, folder, members), Plain(spark, folder, spaces)
    draw = random.Random(base)
    for number, member in enumerate(members):
        member.put(spaces[number], range(base))
        member.put(SHARED, range(number * base // 2, number * base // 2 + base // 2 + 1))
    ours.run()
    plain.write(plain.decode(ours.newest()), 2)
    found = []
    for _ in range(repeat + 1):
        for number, member in enumerate(members):
            keys = [draw.randrange(number * base // 2 + 1, number * base // 2 + base // 2) for _ in range(16)]
            own = [draw.randrange(base) for _ in range(33)]
            member.change([(spaces[number], own), (SHARED, [*keys, base // 2])])
        seconds = ours.run()
        files = plain.decode(ours.newest())
        one = timed(lambda files=files: plain.write(files, 1))  # type: ignore[misc]
        files = plain.decode(ours.newest())
        together = timed(lambda files=files: plain.write(files, 3))  # type: ignore[misc]
        found.append((seconds, one, together))
    # The first one warms.
    seconds, one, together = (statistics.median(times) for times in zip(*found[1:], strict=True))
    tell("100 rows, against MERGEs one after another", seconds, one)
    tell("100 rows, against MERGEs side by side", seconds, together, ours.steps)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each load, over two replicasets")
    parser.add_argument("--repeat", type=int, default=5, help="small batches that are measured")
    parser.add_argument("--small-only", action="store_true", help="leave out the loads")
    options = parser.parse_args()
    folder = STATE / f"run-{time.time_ns()}"
    config = Config.model_validate(
        {
            "warehouse": str(folder.resolve()),
            "checkpoint": str((folder / "unused").resolve()),
            "sources": [{"name": "unused", "path": "/"}],
        }
    )
    spark = spark_session(config, "benchmark")
    register(spark)
    print(f"{platform.platform()}, Spark {spark.version}, {spark.sparkContext.defaultParallelism} cores")
    print(f"{options.rows} rows a load")
    try:
        if not options.small_only:
            load(spark, folder / "warm-up", 20_000, contended=False, quiet=True)
            load(spark, folder / "one", options.rows, contended=False)
            load(spark, folder / "warm-up-2", 20_000, contended=True, quiet=True)
            load(spark, folder / "two", options.rows, contended=True)
        small(spark, folder / "small", options.repeat, 100_000)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
