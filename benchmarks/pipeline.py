"""The whole way, from log files to tables, against plain Delta doing the same writes from decoded Parquet.

    python -m benchmarks.pipeline [--rows N] [--repeat N] [--small-only]

Plain Delta's side gets every advantage: its rows are decoded, typed and lie in Parquet. It appends them all to one
table and MERGEs, for each space, the last row of each key; both sides run warm, in one session, on the same rows,
and write their spaces side by side. Ours is Spark's own time of the whole trigger: finding the end of the logs,
Spark's offset log, the batch, its commit.

Steps: a first load into empty tables; the same from snapshots; the same again onto existing rows of spaces that one
replicaset writes; onto existing rows of a space that two write, half of the keys both; batches of 100 rows over three
spaces, one conflict.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.deployed import Ours, session_in
from benchmarks.logs import Member
from benchmarks.plain import Plain

STATE = Path(".state/bench")
OWN, SHARED = ("own", "other"), "shared"


def timed(work: Callable[[], object]) -> float:
    """Return how long a piece of work takes, in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def tell(name: str, ours: float, plain: float, steps: Mapping[str, float] | None = None) -> None:
    """Print one line, and where the time goes."""
    print(f"{name:44} ours {ours:6.2f} s   plain Delta {plain:6.2f} s   ratio {ours / plain:.2f}", flush=True)
    if steps is not None:
        told = ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items())
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
        if step == "first load" and not quiet and not contended:
            scan(spark, members, files[""])
        if not quiet:
            kind = "a space that two write" if contended else "spaces that one writes"
            tell(f"{step}, {kind}", seconds, theirs, ours.steps)
    check(spark, ours, plain, spaces)


def from_snapshots(spark: SparkSession, folder: Path, rows: int) -> None:
    """Measure a first load of which all rows but the definitions are in snapshots."""
    folder.mkdir(parents=True)
    members = [Member(folder, name, OWN) for name in ("a1", "b1")]
    for member, space in zip(members, OWN, strict=True):
        member.snapshot(space, range(rows // 2))
    ours, plain = Ours(spark, folder, members, start="snapshot"), Plain(spark, folder, OWN)
    seconds = ours.run()
    files = plain.decode(ours.newest())
    theirs = timed(lambda: plain.write(files, 2))
    tell("first load, from snapshots", seconds, theirs, ours.steps)
    check(spark, ours, plain, OWN)


def scan(spark: SparkSession, members: Sequence[Member], decoded: str) -> None:
    """Measure reading the logs alone, against the same rows from Parquet."""
    logs = spark.read.format("xlog").option("minPartitions", spark.sparkContext.defaultParallelism)
    frames = [logs.load([str(member.path.resolve()) for member in members]), spark.read.parquet(decoded)]
    ours, theirs = (
        min(timed(lambda f=frame: f.write.format("noop").mode("overwrite").save()) for _ in range(2))  # type: ignore[misc]
        for frame in frames
    )
    print(
        f"{'scan into noop':44} ours {ours:6.2f} s   Parquet     {theirs:6.2f} s   ratio {ours / theirs:.2f}",
        flush=True,
    )


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
    spark = session_in(folder)
    print(f"{platform.platform()}, Spark {spark.version}, {spark.sparkContext.defaultParallelism} cores")
    print(f"{options.rows} rows a load")
    try:
        if not options.small_only:
            load(spark, folder / "warm-up", 20_000, contended=False, quiet=True)
            load(spark, folder / "one", options.rows, contended=False)
            from_snapshots(spark, folder / "snapshots", options.rows)
            load(spark, folder / "warm-up-2", 20_000, contended=True, quiet=True)
            load(spark, folder / "two", options.rows, contended=True)
        small(spark, folder / "small", options.repeat, 100_000)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
