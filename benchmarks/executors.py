"""How the time of a distributed load changes with the number of executor processes.

    python -m benchmarks.executors [--rows N] [--executors N ...]

Each number of executors, with one core each, is a cluster of its own (`local-cluster`): a master, workers and executors
as processes of this machine. More executors than cores can only show what they cost.
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

from benchmarks.deployed import Ours, session_in
from benchmarks.logs import Member

STATE = Path(".state/bench")
MIB = 1 << 20
A_LOG = 250_000
"""Rows of one log file."""

MEMORY = 2048
"""Of each executor, in MiB."""


def measure(folder: Path, rows: int) -> None:
    """Load rows twice into tables of their own, in this process's session, and print the seconds of both triggers."""
    spark = session_in(folder)
    try:
        seconds = []
        for turn in range(2):
            here = folder / str(turn)
            member = Member(here / "logs", "a1", ["orders"])
            for first in range(0, rows, A_LOG):
                member.put("orders", range(first, min(first + A_LOG, rows)))
            ours = Ours(spark, here, [member], local_bytes=1, max_bytes_per_trigger=256 * MIB)
            seconds.append(ours.run())
        print("measured: {:.2f} s, then {:.2f} s".format(*seconds), flush=True)
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
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
            f"--master local-cluster[{number},1,{MEMORY}] --conf spark.executor.memory={MEMORY}m "
            "--conf spark.ui.showConsoleProgress=false pyspark-shell"
        )
        command = [sys.executable, "-m", __spec__.name, "--here", str(folder), "--rows", str(options.rows)]
        environment = {**os.environ, "PYTHONPATH": str(root), "PYSPARK_SUBMIT_ARGS": submitted}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        told = [line for line in done.stdout.splitlines() if line.startswith("measured")]
        if done.returncode or not told:
            raise SystemExit(f"{number} executors: exit code {done.returncode}\n{done.stderr[-2000:]}")
        print(f"{options.rows:>12,} rows, {number} executors: {told[0]}", flush=True)


if __name__ == "__main__":
    main()
