"""Time of a distributed load by the number of Spark's executor processes.

    python -m benchmarks.executors [--rows N] [--executors N ...]

For each number of executors, with one core each, a Spark cluster of its own runs on this machine (`local-cluster`): a
master, workers and executors are processes. With more executors than cores, only their overhead shows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.logs import MemberLogs
from benchmarks.measured_job import MeasuredJob, session_in

STATE = Path(".state/bench")
MIB = 1 << 20
ROWS_PER_LOG = 250_000
EXECUTOR_MIB = 2048


def measure(folder: Path, rows: int) -> None:
    """Load the rows into a new warehouse twice, in this process's session, and print the seconds of both."""
    spark = session_in(folder)
    try:
        seconds = []
        for turn in range(2):
            here = folder / str(turn)
            member = MemberLogs(here / "logs", "a1", ["orders"])
            for first in range(0, rows, ROWS_PER_LOG):
                member.replace("orders", range(first, min(first + ROWS_PER_LOG, rows)))
            job = MeasuredJob(spark, here, [member], local_bytes=1, max_bytes_per_trigger=256 * MIB)
            seconds.append(job.run())
        print("measured: {:.2f} s, then {:.2f} s".format(*seconds), flush=True)
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Start a cluster per number of executors, and print its times; with `--here`, measure in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        measure(options.here, options.rows)
        return
    for number in options.executors:
        folder = STATE / f"executors-{number}-{time.time_ns()}"
        root = Path(__file__).resolve().parents[1]
        submitted = (
            f"--master local-cluster[{number},1,{EXECUTOR_MIB}] --conf spark.executor.memory={EXECUTOR_MIB}m "
            "--conf spark.ui.showConsoleProgress=false pyspark-shell"
        )
        command = [sys.executable, "-m", __spec__.name, "--here", str(folder), "--rows", str(options.rows)]
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
