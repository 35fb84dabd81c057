"""Time of the driver's planning and of whole batches, and size of the offset, by the number of replicasets.

    python -m benchmarks.many [--sources 1 8 64 1000] [--rows N]

All replicasets write keys of their own into the same space, as the shards of one cluster do. Planning happens in the
driver alone: finding the end offset of the logs, then the segments between two offsets and their tasks. A batch is a
whole trigger as Spark counts it, with N rows over all sources.
"""

import argparse
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from benchmarks.logs import MemberLogs
from benchmarks.measured_job import MeasuredJob, session_in
from pipeline.source_options import stream_options
from pipeline.state import State
from sources.xlog.directory.offset import to_text
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream

STATE = Path(".state/bench")
SPACE = "orders"
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds that a call takes, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def write_rows(members: Sequence[MemberLogs], rows: int, first_key: int) -> None:
    """Write `rows` rows over all members, at least one by each."""
    share = max(1, rows // len(members))
    for number, member in enumerate(members):
        member.replace(SPACE, range(first_key + number * share, first_key + (number + 1) * share))


def planning(options: dict[str, str], members: Sequence[MemberLogs], rows: int) -> str:
    """Measure the driver's planning of a batch, and return the times, number of tasks and offset's size as text."""
    log_stream = LogStream(parse_options(options))
    first, start = timed(lambda: log_stream.latest({}))
    start = log_stream.latest(start)
    idle, _ = timed(lambda: log_stream.latest(start))
    write_rows(members, rows, 0)
    latest, end = timed(lambda: log_stream.latest(start))
    plan, tasks = timed(lambda: tasks_of(log_stream, segments_between(log_stream, start, end)))
    measured = {
        "end offset at the start": first,
        "without new rows": idle,
        "with new rows": latest,
        "plan": plan,
    }
    times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in measured.items())
    return f"{times}, {len(tasks)} tasks, offset {len(to_text(end))} bytes"


def measure(spark: SparkSession, folder: Path, sources: int, rows: int) -> None:
    """Measure planning and batches with some number of sources, and print them."""
    members = [MemberLogs(folder / "logs", f"s{number:04d}", [SPACE]) for number in range(sources)]
    job = MeasuredJob(spark, folder, members)
    options = stream_options(job.config, State(), spark.sparkContext.defaultParallelism)
    first = job.run()
    print(f"{sources} sources: {planning(dict(options), members, rows)}", flush=True)
    for number in range(3):
        seconds = job.run()
        steps = ", ".join(f"{step} {took:.2f}" for step, took in job.steps.items())
        print(f"    batch of {max(rows, sources)} rows {seconds:.2f} s ({steps})", flush=True)
        write_rows(members, rows, (number + 1) * 10 * rows)
    print(f"    first batch, with the definitions of all sources {first:.2f} s", flush=True)


def main() -> None:
    """Measure each number of sources in one session, after a warm-up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 8, 64, 1000])
    parser.add_argument("--rows", type=int, default=1000, help="rows of each batch, over all sources")
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
