"""A day of a deployment in some minutes: what `aggregator size` says of it, beside what it took.

    python -m benchmarks.day [--hour SECONDS] [--peak ROWS] [--trigger SECONDS]

Clients insert, update and delete rows of a server, few at night and many by day: an hour takes `--hour` seconds. Daemon
and stream follow. Prints the rows of each hour; then, beside each other, the estimate from the server's logs alone, and
the measured sizes, memory, and seconds of a processor.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.fresh import epochs, table
from config.deployment import load
from observe import sizing
from observe.applied_rows import AppliedRows
from tests.live import Tarantool
from tests.live.commands import Command
from warehouse.delta.location import location_of
from warehouse.delta.read import rows_of

SHARES = (9, 6, 4, 4, 5, 8, 16, 34, 62, 80, 88, 95, 100, 96, 93, 90, 84, 78, 74, 66, 52, 38, 24, 14)
"""Rows of each hour, in percent of those at noon."""

DAY_OF_CLIENTS = """
local seconds, rates = ...
local clock, fiber, random = require('fiber').clock, require('fiber'), math.random
local spaces, last = {box.space.orders, box.space.items, box.space.accounts}, 0
local function change()
    local space, what = spaces[random(3)], random(10)
    if what < 6 then
        last = last + 1
        space:insert{last, 'customer ' .. random(1e6), random(1e9)}
    elseif what < 10 then space:update(random(last + 1), {{'+', 3, 1}})
    else space:delete(random(last + 1)) end
end
fiber.create(function()
    for _, rate in ipairs(rates) do
        local begun, done = clock(), 0
        while clock() - begun < seconds do
            while done < (clock() - begun) * rate do change() done = done + 1 end
            fiber.sleep(0.01)
        end
    end
    rawset(_G, 'is_over', true)
end)
"""
CREATE = """
box.session.su('admin', box.schema.user.grant, 'guest', 'replication')
local format = {{'id', 'unsigned'}, {'customer', 'string'}, {'count', 'integer'}}
for _, name in ipairs{'orders', 'items', 'accounts'} do
    box.schema.space.create(name, {format = format}):create_index('pk')
end
"""
CONFIG = """
warehouse: {folder}/warehouse
checkpoint: {folder}/checkpoint
start: logs
trigger: {trigger} seconds
sources: [{{name: a, path: {folder}/spool}}]
subscribe:
  keep: {{size: 10 GiB}}
  replicasets: [{{name: a, spool: {folder}/spool, peers: ["unix/:{socket}"]}}]
"""


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hour", type=float, default=2.0)
    parser.add_argument("--peak", type=int, default=2000)
    parser.add_argument("--trigger", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options.hour, options.peak, options.trigger)


def measure(folder: Path, hour: float, peak: int, trigger: int) -> None:
    """Run the day in a folder, and print it."""
    config = folder / "config.yaml"
    with Tarantool(folder / "a", cfg={"checkpoint_interval": 0, "memtx_memory": 1 << 30}) as server:
        config.write_text(CONFIG.format(folder=folder, trigger=trigger, socket=server.socket))
        server.eval(CREATE)
        daemon, job = (Command(name, config, folder / f"{name}.log") for name in ("subscribe", "aggregate"))
        with daemon, job:
            while not epochs(folder):
                server.eval("box.space.orders:replace{0, '', 0}")
                if not job.is_running:  # there was no log in the spool yet
                    job.start()
                time.sleep(0.5)
            print("the day begins", flush=True)
            used, began = [processor(one.pid) for one in (job, daemon)], time.time()
            server.eval(DAY_OF_CLIENTS, hour, [peak * share / 100 for share in SHARES])
            memory = 0
            while not server.eval("return is_over == true"):
                with suppress(psutil.Error):
                    memory = max(memory, sum(one.memory_info().rss for one in processes(job.pid)))
                time.sleep(0.5)
            uuid, lsn = server.eval("return box.info.uuid, box.info.lsn")
            AppliedRows(location_of(str(folder / "warehouse"))).wait(uuid, lsn, 10 * hour)
            used = [processor(one.pid) - before for one, before in zip((job, daemon), used, strict=True)]
    found = batches(folder)
    by_hour = [sum(rows for at, rows in found if int((at - began) // hour) == one) for one in range(25)]
    print(f"{len(found)} epochs; rows/s in the tables by hour:", *(round(rows / hour) for rows in by_hour))
    print_sizes(folder, config, memory, used, 24 * hour)


def processes(pid: int) -> list[psutil.Process]:
    """Return a process and those that it has started."""
    own = psutil.Process(pid)
    return [own, *own.children(recursive=True)]


def processor(pid: int) -> float:
    """Return the seconds of a processor that a process and its children have used."""
    return sum(sum(one.cpu_times()[:2]) for one in processes(pid))


def batches(folder: Path) -> list[tuple[float, int]]:
    """Return for each epoch when it was committed, and its rows."""
    rows = rows_of(table(folder, "_epochs"), ["committed_at", "rows"])
    return sorted((row["committed_at"].timestamp(), int(row["rows"] or 0)) for row in rows)


def print_sizes(folder: Path, config: Path, memory: int, used: Sequence[float], seconds: float) -> None:
    """Print the estimate beside what was measured."""
    deployment, mib, count = load(str(config)), float(1 << 20), len(batches(folder))
    source = deployment.sources[0].model_copy(update={"path": str(folder / "a")})
    logs = sizing.measure_source(source, deployment.max_block_bytes)
    tables = sizing.measure_tables(location_of(deployment.warehouse))
    said, share = sizing.estimate(deployment, [logs], None), seconds / sizing.DAY
    stored = sizing.estimate(deployment, [logs], tables).table_disk_bytes or 0.0
    fixed = sizing.BATCH_SECONDS + sizing.SOURCE_SECONDS + 3 * sizing.TABLE_SECONDS
    warehouse = folder / "warehouse" / "aggregator.db"
    spaces = sum(size(warehouse / name) for name in ("orders", "items", "accounts"))
    for name, expected, measured in (
        ("memory of the job, MiB", said.memory_bytes / mib, memory / mib),
        ("spool, MiB", said.spool_bytes_per_day * share / mib, size(folder / "spool") / mib),
        ("_changelog, MiB", said.changelog_bytes_per_day * share / mib, size(warehouse / "_changelog") / mib),
        ("tables with older versions, MiB", stored / mib, spaces / mib),
        ("job, seconds", count * fixed + logs.rows * sizing.ROW_SECONDS, used[0]),
        ("daemon, seconds", logs.rows * sizing.DAEMON_ROW_SECONDS, used[1]),
    ):
        print(f"{name:<46} {expected:>10,.1f} {measured:>10,.1f}")
    copies = size(folder / "checkpoint-keys")
    print(f"whole warehouse {size(warehouse) / mib:,.1f} MiB, key copies {copies / mib:,.1f} MiB")


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
