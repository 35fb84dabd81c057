"""Time of one commit to a Delta table that has many commits: `python -m benchmarks.old_log [--commits N ...]`.

A stream with a trigger of 5 seconds makes 17,280 commits a day. A commit by `warehouse.delta.commits` is compared with
delta-rs' own way: look for the newest version, commit with the default hooks, look for the newest version again.
A second table compares intervals between checkpoints, by 100 commits of a batch to tables with few and with many files.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import DataFile
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.write import CHECKPOINT_INTERVAL

TABLE = "_epochs"
FILE = ("part.parquet", 100)
INTERVALS = (10, 30, 100)
FILES = (1, 300, 3_000)
COLUMNS = 15


def make_table(folder: Path, count: int) -> WarehouseLocation:
    """Make a table of `count` commits with delta-rs' checkpoint in a folder, and return its location."""
    location = location_of(str(folder))
    path = location.uri(TABLE)
    write_deltalake(path, pa.table({"epoch": [1]}))
    log = Path(path) / "_delta_log"
    for version in range(1, count):
        action = {"commitInfo": {"timestamp": time.time_ns() // 1_000_000}}
        (log / f"{version:020}.json").write_text(json.dumps(action) + "\n")
    DeltaTable(path).create_checkpoint()
    return location


def median_ms(work: Callable[[int], object], times: int = 20) -> float:
    """Return the median time of some runs, in milliseconds."""
    taken = []
    for number in range(times):
        began = time.perf_counter()
        work(number)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def delta_rs_commit(location: WarehouseLocation) -> Callable[[int], object]:
    """Return a function that commits as delta-rs does by default."""
    table = DeltaTable(location.uri(TABLE))

    def commit(_: int) -> None:
        table.update_incremental()
        table.create_write_transaction([AddAction(*FILE, {}, 1, True, "{}")], "append", table.schema())
        table.update_incremental()

    return commit


def batch_commit(location: WarehouseLocation) -> Callable[[int], object]:
    """Return a function that commits as a batch does."""
    tables = OpenTables(location)
    return lambda _: tables.commit(TABLE, [DataFile(TABLE, *FILE, 1, "{}")])


def mean_ms_per_interval(folder: Path, interval: int, files: int, commits: int = 100) -> float:
    """Return the mean time of a commit to a table with some files and an interval between checkpoints, in ms."""
    location = location_of(str(folder))
    columns = {f"c{number}": [1] for number in range(COLUMNS)}
    settings = {CHECKPOINT_INTERVAL: str(interval)}
    write_deltalake(location.uri(TABLE), pa.table(columns), configuration=settings)
    bounds = dict.fromkeys(columns, 1)
    stats = json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds})
    tables = OpenTables(location)
    tables.commit(
        TABLE, [DataFile(TABLE, f"{number}-{FILE[0]}", FILE[1], 1, stats) for number in range(files)]
    )
    began = time.perf_counter()
    for number in range(commits):
        tables.commit(TABLE, [DataFile(TABLE, f"new-{number}-{FILE[0]}", FILE[1], 1, stats)])
    return 1000 * (time.perf_counter() - began) / commits


def main() -> None:
    """Print the median time of both ways, and their ratio, per number of commits; then the second table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, nargs="+", default=[100, 2_000, 20_000])
    print("commits in the log   delta-rs, ms   a batch's commit, ms   ratio")
    for count in parser.parse_args().commits:
        with tempfile.TemporaryDirectory() as folder:
            location = make_table(Path(folder), count)
            delta_rs, batch = median_ms(delta_rs_commit(location)), median_ms(batch_commit(location))
            print(f"{count:>18,}   {delta_rs:12.1f}   {batch:20.1f}   {batch / delta_rs:5.2f}")
    print(
        "files of the table   a commit, ms, with a checkpoint every "
        + ", ".join(map(str, INTERVALS))
        + " commits"
    )
    for files in FILES:
        times = []
        for interval in INTERVALS:
            with tempfile.TemporaryDirectory() as folder:
                times.append(mean_ms_per_interval(Path(folder), interval, files))
        print(f"{files:>18,}   " + "   ".join(f"{ms:6.1f}" for ms in times))


if __name__ == "__main__":
    main()
