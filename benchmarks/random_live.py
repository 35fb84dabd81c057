"""Random changes, as they come, onto a large table: how fresh it is, and what that costs, minute by minute.

    python -m benchmarks.random_live [--rows N] [--rate CHANGES] [--minutes M] [--plot FILE]

A table gets its rows from logs. Then a log grows by `--rate` REPLACEs of random keys a second, and the job follows it
in a process of its own, with a trigger of one second. Each ten seconds are one point: the 95th percentile of the time
from a row's timestamp to the commit of its epoch, the bytes written to the table's folder, the memory of the job's
processes, and the table's files. `--plot` writes the points as a picture (SVG).
"""

import argparse
import itertools
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.fresh import epochs
from benchmarks.logs import MemberLogs
from benchmarks.random_changes import MIB, SPACE, STATE, LocalJob, load, written_bytes
from benchmarks.svg import Panel, panels_as_svg
from tests.live.commands import Command
from warehouse.delta.location import location_of
from warehouse.delta.read import rows_of
from warehouse.delta.table_log import read_log

POINT_SECONDS = 10
TICKS_PER_SECOND = 20
CONFIG = """
warehouse: {folder}/warehouse
checkpoint: {folder}/checkpoint
start: logs
trigger: 1 second
sources: [{{name: {name}, path: {path}, replicaset: {replicaset}}}]
"""


@dataclass(frozen=True)
class Point:
    """What was seen at one moment."""

    second: float
    """Since the first change."""
    written: int
    """The size of all files that were ever written to the table's folder, its log included, in bytes."""
    memory: int
    """The resident memory of the job's processes, in bytes."""
    files: int


def measure(
    folder: Path, rows: int, rate: int, seconds: float
) -> tuple[list[Point], list[tuple[float, float]]]:
    """Load the table, let the job follow random changes; return the points, and (second, age) of each change."""
    member = MemberLogs(folder / "logs", "a1", [SPACE])
    with ExitStack() as stack:
        job = LocalJob(folder, member, stack, trigger="1 second")
        print(f"{rows:,} rows loaded in {load(job, rows):.1f} s", flush=True)
    config = folder / "config.yaml"
    entry = member.source_entry()
    config.write_text(CONFIG.format(folder=folder.resolve(), **entry))
    known = len(epochs(folder))
    with member.growing(SPACE) as append, Command("aggregate", config, folder / "job.log") as job_process:
        append([2 * rows])
        while (
            len(epochs(folder)) == known
        ):  # the job starts, and makes the key copies with its first random change
            if not job_process.is_running:
                raise RuntimeError((folder / "job.log").read_text())
            time.sleep(0.5)
        append(2 * key for key in random.Random(0).sample(range(rows), rate))
        while len(epochs(folder)) == known + 1:
            time.sleep(0.5)
        known, began = len(epochs(folder)), time.time()
        with changing(append, rows, rate):
            points = list(watched(folder, job_process.pid, began, seconds))
        last = len(epochs(folder))
        while len(epochs(folder)) < last + 2 and job_process.is_running:
            time.sleep(0.5)
        job_process.stop()
    return points, ages(folder, known, began)


@contextmanager
def changing(append: object, rows: int, rate: int) -> Iterator[None]:
    """Append random changes at a steady rate while the block runs."""
    draw, is_done = random.Random(rows), threading.Event()

    def change() -> None:
        began, done = time.monotonic(), 0
        while not is_done.wait(1 / TICKS_PER_SECOND):
            due = int((time.monotonic() - began) * rate) - done
            append(2 * draw.randrange(rows) for _ in range(due))  # type: ignore[operator]
            done += due

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def watched(folder: Path, pid: int, began: float, seconds: float) -> Iterator[Point]:
    """Yield a point each `POINT_SECONDS`."""
    location, table = location_of(str(folder / "warehouse")), folder / "warehouse" / "aggregator.db" / SPACE
    while (second := time.time() - began) < seconds:
        memory = 0
        own = psutil.Process(pid)
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                memory += process.memory_info().rss
        yield Point(second, written_bytes(table), memory, len(read_log(location, SPACE).adds))
        time.sleep(POINT_SECONDS)


def ages(folder: Path, first_epoch: int, began: float) -> list[tuple[float, float]]:
    """Return for each change (the second of its commit, its age then), from the log of the table `_epochs` on."""
    folder_of = folder / "warehouse" / "aggregator.db"
    log = sorted((folder_of / "_epochs" / "_delta_log").glob("0*.json"))
    known = epochs(folder)
    times = [path.stat().st_mtime for path in log][-len(known) :]
    committed = dict(zip(known, times, strict=True))
    opened = location_of(str(folder / "warehouse")).open("_changelog")
    if opened is None:
        raise RuntimeError("there is no _changelog")
    found = []
    for row in rows_of(opened, ["epoch", "timestamp"]):
        epoch = int(row["epoch"])
        if epoch in committed and epoch > known[first_epoch - 1]:
            age = committed[epoch] - row["timestamp"].timestamp()
            found.append((committed[epoch] - began, age))
    return found


def print_minutes(points: Sequence[Point], found: Sequence[tuple[float, float]], rate: int) -> list[Panel]:
    """Print a line for each minute, and return the panels of the picture."""
    moments, waited = (np.array(column) for column in zip(*found, strict=True))
    seconds = [point.second for point in points[1:]]
    fresh = []
    for begin, end in itertools.pairwise(points):
        own = waited[(moments >= begin.second) & (moments < end.second)]
        fresh.append(float(np.percentile(own, 95)) if len(own) else float("nan"))
    per_change = [
        (end.written - begin.written) / max((end.second - begin.second) * rate, 1)
        for begin, end in itertools.pairwise(points)
    ]
    memory = [point.memory / MIB for point in points[1:]]
    files = [float(point.files) for point in points[1:]]
    step = max(1, 60 // POINT_SECONDS)
    for at in range(0, len(seconds), step):
        part = slice(at, at + step)
        print(
            f"minute {at // step + 1:3}: p95 {np.nanmax(fresh[part]):5.2f} s (worst ten seconds), "
            f"{np.mean(per_change[part]):6.0f} bytes a change, {max(memory[part]):6.0f} MiB, "
            f"{max(files[part]):4.0f} files",
            flush=True,
        )
    print(
        f"all: median {np.median(waited):.2f} s, p95 {np.percentile(waited, 95):.2f} s of {len(waited):,} changes"
    )
    return [
        Panel("seconds from the change to SQL, 95th percentile", seconds, fresh),
        Panel("bytes written for each change", seconds, per_change),
        Panel("memory of the job, MiB", seconds, memory),
        Panel("files of the table", seconds, files),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a folder of its own, and print the minutes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    folder = STATE / f"live-{time.time_ns()}"
    try:
        points, found = measure(folder, options.rows, options.rate, 60 * options.minutes)
        panels = print_minutes(points, found, options.rate)
        if options.plot is not None:
            title = (
                f"{options.rate:,} random changes a second onto {options.rows:,} rows, trigger of 1 second"
            )
            options.plot.write_text(panels_as_svg(title, panels))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
