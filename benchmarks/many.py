"""What many replicasets cost: the driver's planning, the offset, and whole batches, by the number of sources.

    python -m benchmarks.many [--sources 1 8 64 1000] [--rows N]

Every replicaset writes the same space, each its own keys, as the shards of one cluster do. Planning is what happens
on the driver alone: the question where the logs end, Spark's own and a job's plan of the segments between two
offsets, the tasks. A batch is the whole trigger as Spark counts it, N rows over all sources.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from benchmarks.deployed import Ours, session_in
from benchmarks.logs import Member
from pipeline.source_options import stream_options
from pipeline.state import State
from sources.xlog.directory.offset import to_text
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.follow import Follower

STATE = Path(".state/bench")
SPACE = "orders"
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return how long a piece of work takes, in seconds, and what it returns."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def put(members: Sequence[Member], rows: int, base: int) -> None:
    """Have each member write its share of some rows, at least one."""
    share = max(1, rows // len(members))
    for number, member in enumerate(members):
        member.put(SPACE, range(base + number * share, base + (number + 1) * share))


def planning(options: dict[str, str], members: Sequence[Member], rows: int) -> str:
    """Return a line about the driver's planning, from a start to the tasks of a batch of some rows."""
    follower = Follower(parse_options(options))
    first, start = timed(lambda: follower.latest({}))
    start = follower.latest(start)
    idle, _ = timed(lambda: follower.latest(start))
    put(members, rows, 0)
    question, end = timed(lambda: follower.latest(start))
    plan, tasks = timed(lambda: tasks_of(follower, segments_between(follower, start, end)))
    told = {"start": first, "idle": idle, "question": question, "plan": plan}
    times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in told.items())
    return f"{times}, {len(tasks)} tasks, offset {len(to_text(end))} bytes"


def measure(spark: SparkSession, folder: Path, sources: int, rows: int) -> None:
    """Measure one number of sources, and print it."""
    members = [Member(folder / "logs", f"s{number:04d}", [SPACE]) for number in range(sources)]
    ours = Ours(spark, folder, members)
    options = stream_options(ours.config, State(), spark.sparkContext.defaultParallelism)
    first = ours.run()
    print(f"{sources} sources: {planning(dict(options), members, rows)}", flush=True)
    for number in range(3):
        seconds = ours.run()
        steps = ", ".join(f"{step} {took:.2f}" for step, took in ours.steps.items())
        print(f"    batch of {max(rows, sources)} rows {seconds:.2f} s ({steps})", flush=True)
        put(members, rows, (number + 1) * 10 * rows)
    print(f"    first batch, in which all of them begin {first:.2f} s", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 8, 64, 1000])
    parser.add_argument("--rows", type=int, default=1000, help="of each batch, over all sources")
    options = parser.parse_args()
    folder = STATE / f"many-{time.time_ns()}"
    spark = session_in(folder)
    try:
        measure(spark, folder / "warm-up", 2, options.rows)
        for sources in options.sources:
            measure(spark, folder / str(sources), sources, options.rows)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
