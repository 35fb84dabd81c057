"""Time and memory of the job, as loads, the number of tables in a batch, and a table itself get larger.

    python -m benchmarks.growth [--rows N ...] [--tables N ...] [--sizes N ...]

`--rows`: one replicaset loads N rows into one table, in batches of the default size. `--tables`: a batch of 100,000
rows changes N tables that exist. `--sizes`: batches of INSERTs go into a table of N rows. Each line has the seconds of
the triggers, as Spark counts them, and the peak of resident memory: of this process (the driver), and of its child
processes (Spark's).
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
from pyspark.sql import SparkSession

from benchmarks.logs import MemberLogs
from benchmarks.measured_job import MeasuredJob, session_in

STATE = Path(".state/bench")
ROWS_PER_BATCH = 100_000
"""Rows of each batch of `--tables` and `--sizes`."""

MIB = 1 << 20
ROWS_PER_LOG = 500_000


class PeakMemory:
    """Context manager that records the peak of resident memory, in bytes, of this process and of its children."""

    def __init__(self) -> None:
        self.driver_bytes = self.children_bytes = 0
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_done.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._is_done.wait(0.2):
            self.driver_bytes = max(self.driver_bytes, own.memory_info().rss)
            children_bytes = 0
            for child in own.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    children_bytes += child.memory_info().rss
            self.children_bytes = max(self.children_bytes, children_bytes)

    def __str__(self) -> str:
        return (
            f"driver {self.driver_bytes // MIB:,} MiB, Spark's processes {self.children_bytes // MIB:,} MiB"
        )


def by_rows(spark: SparkSession, folder: Path, rows: int) -> None:
    """Measure one load into one table, in as many batches as the default of `max_bytes_per_trigger` makes."""
    member = MemberLogs(folder / "logs", "a1", ["orders"])
    job = MeasuredJob(spark, folder, [member], max_bytes_per_trigger=256 * MIB)
    for first in range(0, rows, ROWS_PER_LOG):
        member.replace("orders", range(first, min(first + ROWS_PER_LOG, rows)))
    with PeakMemory() as peak:
        seconds = job.run()
    batches = len(job.warehouse.opened("_epochs").to_pyarrow_table(columns=["epoch"]))
    print(
        f"{rows:>12,} rows, 1 table: {seconds:7.2f} s, {1e6 * seconds / rows:6.2f} µs a row, "
        f"{batches} batches; {peak}",
        flush=True,
    )


def by_tables(spark: SparkSession, folder: Path, tables: int, distributed: bool) -> None:
    """Measure a batch that creates some tables, and a second one that replaces half of their rows and adds others."""
    spaces = [f"orders_{number}" for number in range(tables)]
    member = MemberLogs(folder / "logs", "a1", spaces)
    settings = {"local_bytes": 1} if distributed else {}
    job = MeasuredJob(spark, folder, [member], **settings)
    share = max(1, ROWS_PER_BATCH // tables)
    member.replace_in_spaces([(space, range(share)) for space in spaces])
    created = job.run()
    member.replace_in_spaces([(space, range(share // 2, share + share // 2)) for space in spaces])
    with PeakMemory() as peak:
        seconds = job.run()
    steps = ", ".join(f"{step} {took:.2f}" for step, took in job.steps.items() if took >= 0.05)
    kind = "distributed" if distributed else "local"
    print(
        f"{share * tables:>12,} rows, {tables} tables, {kind}: {seconds:.2f} s onto existing rows, "
        f"{created:.2f} s into new tables; {peak}\n             {steps}",
        flush=True,
    )


def by_table_size(spark: SparkSession, folder: Path, sizes: Sequence[int], distributed: bool) -> None:
    """Measure batches of INSERTs into one growing table: with keys after all of its keys, and between them."""
    member = MemberLogs(folder / "logs", "a1", ["orders"])
    settings = {"local_bytes": 1} if distributed else {}
    job = MeasuredJob(spark, folder, [member], max_bytes_per_trigger=256 * MIB, **settings)
    kind = "distributed" if distributed else "local"
    # The table gets even keys; odd ones are left for the INSERTs between them.
    count = between = 0
    for size in (0, *sizes):
        while count < size:
            upto = min(count + ROWS_PER_LOG, size)
            member.insert("orders", range(2 * count, 2 * upto, 2))
            count = upto
        job.run()
        for where in ("after", "between"):
            if where == "after":
                keys = range(2 * count, 2 * (count + ROWS_PER_BATCH), 2)
                count += ROWS_PER_BATCH
            else:
                step = max(1, count // ROWS_PER_BATCH)
                keys = range(2 * between + 1, 2 * count, 2 * step)[:ROWS_PER_BATCH]
                between += 1
            before = _written_bytes(folder)
            member.insert("orders", keys)
            seconds = job.run()
            written = _written_bytes(folder) - before
            print(
                f"{len(keys):>12,} INSERTs {where} the keys of {size:,} rows, {kind}: {seconds:.2f} s, "
                f"{written / MIB:.1f} MiB written",
                flush=True,
            )


def _written_bytes(folder: Path) -> int:
    """Return the bytes of all files that were ever written to the table, removed ones included."""
    return sum(path.stat().st_size for path in folder.rglob("orders/*.parquet"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each number of rows, table size and number of tables, each in its own folder, and print a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000, 5_000_000, 20_000_000])
    parser.add_argument("--tables", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--distributed", action="store_true", help="measure `--tables` and `--sizes` also as Spark tasks"
    )
    options = parser.parse_args(arguments)
    folder = STATE / f"growth-{time.time_ns()}"
    spark = session_in(folder)
    try:
        by_rows(spark, folder / "warm-up", 1000)
        for rows in options.rows:
            by_rows(spark, folder / f"rows-{rows}", rows)
            shutil.rmtree(folder / f"rows-{rows}")
        for distributed in (False, True) if options.distributed else (False,):
            if options.sizes:
                by_table_size(spark, folder / f"sizes-{distributed}", options.sizes, distributed)
        for tables in options.tables:
            for distributed in (False, True) if options.distributed else (False,):
                by_tables(spark, folder / f"tables-{tables}-{distributed}", tables, distributed)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
