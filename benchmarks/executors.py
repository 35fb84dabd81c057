"""Time of a distributed load by the number of Spark's executor processes, and the driver's share of it.

    python -m benchmarks.executors [--rows N] [--executors N ...] [--turns N]

For each number of executors, with one core each, a Spark cluster of its own runs on this machine (`local-cluster`): a
master, workers and executors are processes. With more executors than cores, only their overhead shows. The driver is
this Python and its Java: its share of all processor time, and its memory after each batch, which must not grow.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.logs import MemberLogs
from benchmarks.measured_job import MeasuredJob, session_in
from pipeline.batch import BatchResult

STATE = Path(".state/bench")
MIB = 1 << 20
ROWS_PER_LOG = 250_000
EXECUTOR_MIB = 2048
BATCH_MIB = 256


@dataclass(frozen=True)
class Usage:
    """What processes have used so far."""

    driver_seconds: float
    executor_seconds: float
    driver_mib: int


def usage() -> Usage:
    """Return the processor time of the driver and of all executors, and the driver's memory now."""
    own = psutil.Process()
    java = [one for one in own.children() if "java" in one.name()]
    executors = [below for one in java for below in one.children(recursive=True)]
    return Usage(
        sum(map(_seconds, [own, *java])),
        sum(map(_seconds, executors)),
        sum(one.memory_info().rss for one in [own, *java]) >> 20,
    )


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def measure(folder: Path, rows: int, turns: int) -> None:
    """Load the rows into a new warehouse several times, in one session, and print the results of each."""
    spark = session_in(folder)
    try:
        results = []
        for turn in range(turns):
            here = folder / str(turn)
            member = MemberLogs(here / "logs", "a1", ["orders"])
            for first in range(0, rows, ROWS_PER_LOG):
                member.replace("orders", range(first, min(first + ROWS_PER_LOG, rows)))
            job = MeasuredJob(spark, here, [member], executor="tasks", max_bytes_per_trigger=BATCH_MIB * MIB)
            memory: list[int] = []
            before = usage()

            def note_memory(_: BatchResult, memory: list[int] = memory) -> None:
                memory.append(usage().driver_mib)

            seconds = job.run(note_memory)
            after = usage()
            driver = after.driver_seconds - before.driver_seconds
            whole = driver + after.executor_seconds - before.executor_seconds
            results.append(
                f"{seconds:.2f} s, {rows / seconds:,.0f} rows/s, driver {driver / whole:.0%} of the processor time, "
                f"{memory[0]} to {memory[-1]} MiB in {len(memory)} batches"
            )
        print("measured: " + "; then ".join(results), flush=True)
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Start a cluster per number of executors, and print its times; with `--here`, measure in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument(
        "--turns",
        type=int,
        default=3,
        help="loads in one session; only later ones find Spark's processes started and their code compiled",
    )
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        measure(options.here, options.rows, options.turns)
        return
    for number in options.executors:
        folder = STATE / f"executors-{number}-{time.time_ns()}"
        root = Path(__file__).resolve().parents[1]
        submitted = (
            f"--master local-cluster[{number},1,{EXECUTOR_MIB}] --conf spark.executor.memory={EXECUTOR_MIB}m "
            "--conf spark.ui.showConsoleProgress=false pyspark-shell"
        )
        command = [sys.executable, "-m", __spec__.name, "--here", str(folder)]
        command += ["--rows", str(options.rows), "--turns", str(options.turns)]
        environment = {**os.environ, "PYTHONPATH": str(root), "PYSPARK_SUBMIT_ARGS": submitted}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        results = [line for line in done.stdout.splitlines() if line.startswith("measured")]
        if done.returncode or not results:
            raise SystemExit(f"{number} executors: exit code {done.returncode}\n{done.stderr[-2000:]}")
        print(f"{options.rows:>12,} rows, {number} executors: {results[0]}", flush=True)


if __name__ == "__main__":
    main()
