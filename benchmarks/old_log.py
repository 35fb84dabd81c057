"""What a commit costs in a table that has many already: `python -m benchmarks.old_log [--commits 100 2000 20000]`.

A stream with a trigger of 5 seconds makes 17,280 commits a day. The commits of a batch (`warehouse.commits`) are
compared with delta-rs' own way: look for the newest version, commit with its default hooks, look again.
"""

from __future__ import annotations

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

from warehouse.commits import OpenTables
from warehouse.data_files import DataFile
from warehouse.place import Place, place_of

TABLE = "_epochs"
FILE = ("part.parquet", 100)


def with_commits(folder: Path, count: int) -> Place:
    """Return a place with a table of so many commits, and checkpoints as delta-rs makes them."""
    place = place_of(str(folder))
    path = place.uri(TABLE)
    write_deltalake(path, pa.table({"epoch": [1]}))
    log = Path(path) / "_delta_log"
    for version in range(1, count):
        action = {"commitInfo": {"timestamp": time.time_ns() // 1_000_000}}
        (log / f"{version:020}.json").write_text(json.dumps(action) + "\n")
    DeltaTable(path).create_checkpoint()
    return place


def median_ms(work: Callable[[int], object], times: int = 20) -> float:
    """Return the median time of some runs, in milliseconds."""
    taken = []
    for number in range(times):
        began = time.perf_counter()
        work(number)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def plain(place: Place) -> Callable[[int], object]:
    """Return a commit as delta-rs makes it by default."""
    table = DeltaTable(place.uri(TABLE))

    def commit(_: int) -> None:
        table.update_incremental()
        table.create_write_transaction([AddAction(*FILE, {}, 1, True, "{}")], "append", table.schema())
        table.update_incremental()

    return commit


def ours(place: Place) -> Callable[[int], object]:
    """Return a commit of a batch."""
    tables = OpenTables(place)
    return lambda _: tables.commit(TABLE, [DataFile(TABLE, *FILE, 1, "{}")])


def main() -> None:
    """Print a line for each number of commits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, nargs="+", default=[100, 2_000, 20_000])
    print("commits in the log   delta-rs, ms   a batch's commit, ms   ratio")
    for count in parser.parse_args().commits:
        with tempfile.TemporaryDirectory() as folder:
            place = with_commits(Path(folder), count)
            usual, own = median_ms(plain(place)), median_ms(ours(place))
            print(f"{count:>18,}   {usual:12.1f}   {own:20.1f}   {own / usual:5.2f}")


if __name__ == "__main__":
    main()
