"""Time and memory to load one log of a real server that changes the definitions of its many spaces all the time.

    python -m benchmarks.definitions [--rows N] [--tables N] [--distributed]

In each round, each space is written, and then one of: more fields; another primary key; a truncation; a drop, and a
space of the same name; a copy into another space that takes its name; a rename to and fro. At the end, the tables must
have the server's tuples.
"""

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import msgpack
from pyspark.sql import SparkSession

from benchmarks.growth import PeakMemory
from benchmarks.measured_job import MeasuredJob, session_in
from tests.live import Tarantool

STATE = Path(".state/bench")

CHANGE_DEFINITIONS = """
    local tables, rows = ...
    local rounds, changes = 6, 0
    local function format(n)
        local fields = {{'id', 'unsigned'}, {'name', 'string'}, {'value', 'integer', is_nullable = true}}
        for i = 1, n do fields[#fields + 1] = {'more_' .. i, 'any', is_nullable = true} end
        return fields
    end
    local function create(name)
        local space = box.schema.space.create(name, {format = format(0)})
        space:create_index('pk', {parts = {{1, 'unsigned'}}})
        changes = changes + 2
        return space
    end
    local share = math.floor(rows / tables / rounds)
    local function fill(space, round)
        box.begin()
        for k = 1, share do
            local id = (round * 7919 + k * 31) % (share * 3)
            if k % 10 == 0 then space:update({id}, {{'=', 3, k}})
            elseif k % 11 == 0 then space:delete{id}
            else space:replace{id, 'name of ' .. id, round * k} end
            if k % 500 == 0 then box.commit() box.begin() end
        end
        box.commit()
    end
    for t = 1, tables do create('table_' .. t) end
    for round = 1, rounds do
        for t = 1, tables do
            local name = 'table_' .. t
            local space = box.space[name]
            fill(space, round)
            local act = (round + t) % 6
            if act == 0 then space:format(format(round))
            elseif act == 1 then space:truncate()
            elseif act == 2 then
                space:drop()
                create(name)
            elseif act == 3 then
                local other = create('tmp_' .. t)
                for _, tuple in space:pairs() do other:replace(tuple) end
                space:drop()
                other:rename(name)
            elseif act == 4 then
                space:rename('away_' .. t)
                space:rename(name)
            else
                space.index.pk:alter{parts = {{1, 'integer'}}}
            end
            changes = changes + 1
        end
    end
    return changes, box.info.lsn
"""
SERVER_TUPLES = """
    local found = {}
    for t = 1, ... do
        local name, ids = 'table_' .. t, {}
        for _, tuple in box.space[name]:pairs() do ids[#ids + 1] = tuple:totable() end
        found[name] = ids
    end
    return found
"""


class ServerLogs:
    """A server's directory as a source of `MeasuredJob`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def source_entry(self) -> dict[str, Any]:
        """Return the entry under `sources` of the configuration."""
        return {"name": "a1", "path": str(self._path.resolve())}


def check(job: MeasuredJob, expected: dict[str, list[list[Any]]]) -> None:
    """Exit unless the tables have the server's tuples, given by space."""
    for name, tuples in expected.items():
        rows = job.warehouse.opened(name).to_pyarrow_table(columns=["_tuple"])["_tuple"].to_pylist()
        found = sorted(msgpack.unpackb(row) for row in rows)
        if found != sorted(tuples):
            raise SystemExit(f"{name}: {len(found)} rows are not the server's {len(tuples)}")


def measure(
    spark: SparkSession, folder: Path, logs: Path, tuples: dict[str, Any], rows: int, kind: str
) -> None:
    """Aggregate the log, compare the tables with the server's tuples, and print time and memory."""
    settings = {"local_bytes": 1} if kind == "distributed" else {}
    job = MeasuredJob(spark, folder / kind, [ServerLogs(logs)], **settings)
    with PeakMemory() as peak:
        seconds = job.run()
    check(job, tuples)
    steps = ", ".join(f"{step} {took:.2f}" for step, took in job.steps.items() if took >= 0.05)
    print(
        f"{kind}: {rows:,} rows in {seconds:.2f} s, as the server has them; {peak}\n    {steps}", flush=True
    )


def main() -> None:
    """Make the log, measure, and print a line per executor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--distributed", action="store_true", help="also as Spark tasks")
    options = parser.parse_args()
    folder = STATE / f"definitions-{time.time_ns()}"
    spark = session_in(folder)
    try:
        with Tarantool(folder / "a1", cfg={"memtx_memory": 1 << 29}) as server:
            changes, rows = server.eval(CHANGE_DEFINITIONS, options.tables, options.rows)
            tuples = server.eval(SERVER_TUPLES, options.tables)
        print(f"{rows:,} rows, {options.tables} tables, {changes} changes of definitions", flush=True)
        for kind in ("local", "distributed") if options.distributed else ("local",):
            measure(spark, folder, folder / "a1", tuples, rows, kind)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
