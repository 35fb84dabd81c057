"""Time of the job from log files to tables, against plain Delta that writes the same rows from decoded Parquet.

    python -m benchmarks.pipeline [--rows N] [--repeat N] [--small-only]

Plain Delta gets every advantage: its rows are already decoded and typed, in Parquet. It appends all of them to one
table, and MERGEs the last row of each key into one table per space. Both sides run after a warm-up, in one session, on
the same rows, and write several spaces in parallel. The job's time is Spark's own of the whole trigger: finding the end
of the logs, Spark's offset log, the batch and its commit.

Measured are: a first load into empty tables, from logs and from snapshots; a load onto existing rows, of spaces that
one replicaset writes, and of a space that two write, which share half of the keys; and batches of 100 rows over three
spaces, with one conflict.
"""

import argparse
import platform
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.logs import MemberLogs
from benchmarks.measured_job import MeasuredJob, session_in
from benchmarks.plain_delta import PlainDelta

STATE = Path(".state/bench")
OWN, SHARED = ("own", "other"), "shared"


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def print_line(name: str, ours: float, plain: float, steps: Mapping[str, float] | None = None) -> None:
    """Print the seconds of both sides and their ratio, and those of the job's steps."""
    print(f"{name:44} ours {ours:6.2f} s   plain Delta {plain:6.2f} s   ratio {ours / plain:.2f}", flush=True)
    if steps is not None:
        print("    " + ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items()), flush=True)


def load(spark: SparkSession, folder: Path, rows: int, *, contended: bool, quiet: bool = False) -> None:
    """Measure a first load, and a second one onto its rows; `quiet` prints nothing, for a warm-up."""
    folder.mkdir(parents=True)
    spaces = (SHARED,) if contended else OWN
    members = [MemberLogs(folder, name, spaces) for name in ("a1", "b1")]
    job, plain = MeasuredJob(spark, folder, members), PlainDelta(spark, folder, spaces)
    draw = random.Random(rows)
    # With so many different keys, about half of the second load's keys are in the table.
    for step in ("first load", "onto existing rows"):
        for number, member in enumerate(members):
            keys = [draw.randrange(rows * 8 // 10) for _ in range(rows // 2)]
            if contended:
                member.replace(SHARED, [key + (number * rows * 4 // 10) for key in keys])
            else:
                member.replace(spaces[number], keys)
        seconds = job.run()
        files = plain.decode(job.newest_changes())
        theirs = timed(lambda files=files: plain.write(files, 2))  # type: ignore[misc]
        if step == "first load" and not quiet and not contended:
            scan(spark, members, files[""])
        if not quiet:
            kind = "a space that two write" if contended else "spaces that one writes"
            print_line(f"{step}, {kind}", seconds, theirs, job.steps)
    check(spark, job, plain, spaces)


def from_snapshots(spark: SparkSession, folder: Path, rows: int) -> None:
    """Measure a first load of rows that are in snapshots."""
    folder.mkdir(parents=True)
    members = [MemberLogs(folder, name, OWN) for name in ("a1", "b1")]
    for member, space in zip(members, OWN, strict=True):
        member.snapshot(space, range(rows // 2))
    job, plain = MeasuredJob(spark, folder, members, start="snapshot"), PlainDelta(spark, folder, OWN)
    seconds = job.run()
    files = plain.decode(job.newest_changes())
    theirs = timed(lambda: plain.write(files, 2))
    print_line("first load, from snapshots", seconds, theirs, job.steps)
    check(spark, job, plain, OWN)


def scan(spark: SparkSession, members: Sequence[MemberLogs], decoded: str) -> None:
    """Measure a Spark read of the logs into the noop sink, against one of the same rows from Parquet."""
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


def check(spark: SparkSession, job: MeasuredJob, plain: PlainDelta, spaces: Sequence[str]) -> None:
    """Exit unless the tables of both sides have the same number of rows."""
    for space in spaces:
        ours = job.warehouse.read(space).count()
        theirs = spark.read.format("delta").load(plain.path(space)).count()
        if ours != theirs:
            raise SystemExit(f"{space}: {ours} rows, plain Delta has {theirs}")


def small_batches(spark: SparkSession, folder: Path, repeat: int, base: int) -> None:
    """Measure batches of 100 rows over three spaces of `base` rows each, with one conflict per batch."""
    folder.mkdir(parents=True)
    spaces = (*OWN, SHARED)
    members = [MemberLogs(folder, name, spaces) for name in ("a1", "b1")]
    job, plain = MeasuredJob(spark, folder, members), PlainDelta(spark, folder, spaces)
    draw = random.Random(base)
    for number, member in enumerate(members):
        member.replace(spaces[number], range(base))
        member.replace(SHARED, range(number * base // 2, number * base // 2 + base // 2 + 1))
    job.run()
    plain.write(plain.decode(job.newest_changes()), 2)
    measured = []
    for _ in range(repeat + 1):
        for number, member in enumerate(members):
            keys = [draw.randrange(number * base // 2 + 1, number * base // 2 + base // 2) for _ in range(16)]
            own = [draw.randrange(base) for _ in range(33)]
            member.replace_in_spaces([(spaces[number], own), (SHARED, [*keys, base // 2])])
        seconds = job.run()
        files = plain.decode(job.newest_changes())
        serial = timed(lambda files=files: plain.write(files, 1))  # type: ignore[misc]
        files = plain.decode(job.newest_changes())
        parallel = timed(lambda files=files: plain.write(files, 3))  # type: ignore[misc]
        measured.append((seconds, serial, parallel))
    # The first batch is a warm-up.
    seconds, serial, parallel = (statistics.median(times) for times in zip(*measured[1:], strict=True))
    print_line("100 rows, against MERGEs one after another", seconds, serial)
    print_line("100 rows, against MERGEs in parallel", seconds, parallel, job.steps)


def main() -> None:
    """Measure all loads and the small batches in one session."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each load, over two replicasets")
    parser.add_argument("--repeat", type=int, default=5, help="number of small batches")
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
        small_batches(spark, folder / "small", options.repeat, 100_000)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
