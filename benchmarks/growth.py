"""How time and memory grow with the rows of a load, and with the tables of a batch.

    python -m benchmarks.growth [--rows N ...] [--tables N ...] [--sizes N ...]

Rows: loads of one replicaset into one table, in batches of the default size. Tables: batches of as many rows, spread
over more and more tables, all of which are there already. Sizes: batches of INSERTs alone into one table that has so
many rows. Each line has the seconds of the triggers, as Spark counts
them, and the greatest resident memory of this process (the driver) and of Spark's processes beside it.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil
from pyspark.sql import SparkSession

from benchmarks.deployed import Ours, session_in
from benchmarks.logs import Member

STATE = Path(".state/bench")
ROWS_OF_TABLES = 100_000
"""Rows of each batch over many tables."""

MIB = 1 << 20
A_LOG = 500_000
"""Rows of one log file."""


class Peak:
    """The greatest resident memory of this process and of those that it started, while the block runs; in bytes."""

    def __init__(self) -> None:
        self.driver = self.others = 0
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
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
            self.driver = max(self.driver, own.memory_info().rss)
            found = 0
            for child in own.children(recursive=True):
                try:
                    found += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.others = max(self.others, found)

    def __str__(self) -> str:
        return f"driver {self.driver // MIB:,} MiB, Spark's processes {self.others // MIB:,} MiB"


def by_rows(spark: SparkSession, folder: Path, rows: int) -> None:
    """Measure one load into one table."""
    member = Member(folder / "logs", "a1", ["orders"])
    # The settings of the job as they are by default, so many batches.
    ours = Ours(spark, folder, [member], max_bytes_per_trigger=256 * MIB)
    for first in range(0, rows, A_LOG):
        member.put("orders", range(first, min(first + A_LOG, rows)))
    with Peak() as peak:
        seconds = ours.run()
    batches = len(ours.warehouse.opened("_epochs").to_pyarrow_table(columns=["epoch"]))
    print(
        f"{rows:>12,} rows, 1 table: {seconds:7.2f} s, {1e6 * seconds / rows:6.2f} µs a row, "
        f"{batches} batches; {peak}",
        flush=True,
    )


def by_tables(spark: SparkSession, folder: Path, tables: int, distributed: bool) -> None:
    """Measure a batch into so many tables that are there already."""
    spaces = [f"orders_{number}" for number in range(tables)]
    member = Member(folder / "logs", "a1", spaces)
    settings = {"local_bytes": 1} if distributed else {}
    ours = Ours(spark, folder, [member], **settings)
    share = max(1, ROWS_OF_TABLES // tables)
    member.change([(space, range(share)) for space in spaces])
    first = ours.run()
    member.change([(space, range(share // 2, share + share // 2)) for space in spaces])
    with Peak() as peak:
        seconds = ours.run()
    steps = ", ".join(f"{step} {took:.2f}" for step, took in ours.steps.items() if took >= 0.05)
    kind = "distributed" if distributed else "local"
    print(
        f"{share * tables:>12,} rows, {tables} tables, {kind}: {seconds:.2f} s onto rows, {first:.2f} s before; "
        f"{peak}\n             {steps}",
        flush=True,
    )


def by_table_size(spark: SparkSession, folder: Path, sizes: Sequence[int], distributed: bool) -> None:
    """Measure batches of INSERTs alone into one table while it grows: of keys behind all others, and between them."""
    member = Member(folder / "logs", "a1", ["orders"])
    settings = {"local_bytes": 1} if distributed else {}
    ours = Ours(spark, folder, [member], max_bytes_per_trigger=256 * MIB, **settings)
    kind = "distributed" if distributed else "local"
    # Every other key of the table is free.
    last = between = 0
    for size in (0, *sizes):
        while last < size:
            upto = min(last + A_LOG, size)
            member.insert("orders", range(2 * last, 2 * upto, 2))
            last = upto
        ours.run()
        for where in ("behind", "between"):
            if where == "behind":
                keys = range(2 * last, 2 * (last + ROWS_OF_TABLES), 2)
                last += ROWS_OF_TABLES
            else:
                step = max(1, last // ROWS_OF_TABLES)
                keys = range(2 * between + 1, 2 * last, 2 * step)[:ROWS_OF_TABLES]
                between += 1
            before = _bytes_of(folder)
            member.insert("orders", keys)
            seconds = ours.run()
            written = _bytes_of(folder) - before
            print(
                f"{len(keys):>12,} INSERTs {where} {size:,} rows, {kind}: {seconds:.2f} s, "
                f"{written / MIB:.1f} MiB written",
                flush=True,
            )


def _bytes_of(folder: Path) -> int:
    """Return the bytes of all files of the table, also of those that are no part of it any more."""
    return sum(path.stat().st_size for path in folder.rglob("orders/*.parquet"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000, 5_000_000, 20_000_000])
    parser.add_argument("--tables", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--distributed", action="store_true", help="batches over many tables on executors, too"
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
