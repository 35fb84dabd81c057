"""Time from a master's commit until SQL shows the change: live master → daemon → spool → job → epoch.

    python -m benchmarks.fresh [--seconds S] [--rate ROWS] [--trigger SECONDS]

A row's time goes from the master's timestamp in the row to the commit of its epoch, which is the time of the Delta
commit's file of `_epochs`. Daemon and job run as processes of their own on this machine, so one clock counts. Rows of
the first batches, while the job starts, are left out. Prints the median and the 95th percentile.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.live import Tarantool
from tests.live.commands import Command
from warehouse.delta.read import rows_of

WRITE = """
    local rate = ...
    local fiber = require('fiber')
    box.session.su('admin', function()
        box.schema.user.grant('guest', 'replication')
        for _, name in pairs({'one', 'two'}) do
            local format = {{'id', 'unsigned'}, {'text', 'string'}}
            box.schema.space.create(name, {format = format}):create_index('pk')
        end
    end)
    fiber.create(function()
        for k = 1, 1e9 do
            local space = k % 10 == 0 and box.space.two or box.space.one
            space:replace{k % 5000, tostring(k)}
            fiber.sleep(1 / rate)
        end
    end)
"""
CONFIG = """
warehouse: warehouse
checkpoint: checkpoint
trigger: {trigger} seconds
sources: [{{name: a, path: spool}}]
subscribe: {{replicasets: [{{name: a, spool: spool, peers: ["unix/:{socket}"]}}]}}
"""
WARM_UP_BATCHES = 3


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--trigger", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.seconds, options.rate, options.trigger)


def measure(folder: Path, seconds: float, rate: int, trigger: int) -> None:
    """Run a master, the daemon and the job in a folder for some seconds, and print the times."""
    config, spool = folder / "config.yaml", folder / "spool"
    with Tarantool(folder / "master") as master:
        config.write_text(CONFIG.format(trigger=trigger, socket=master.socket))
        master.eval(WRITE, rate)
        with Command("subscribe", config, folder / "daemon.log"):
            while not list(spool.glob("*.xlog")):
                time.sleep(0.1)
            with Command("aggregate", config, folder / "job.log") as job:
                while len(epochs(folder)) <= WARM_UP_BATCHES:
                    if not job.is_running:
                        raise RuntimeError((folder / "job.log").read_text())
                    time.sleep(0.2)
                time.sleep(seconds)
                job.stop()
        report(folder, trigger)


def table(folder: Path, name: str) -> DeltaTable:
    """Return a table of the warehouse."""
    return DeltaTable(str(folder / "warehouse" / "aggregator.db" / name))


def epochs(folder: Path) -> list[int]:
    """Return the committed epochs."""
    try:
        return sorted(int(row["epoch"]) for row in rows_of(table(folder, "_epochs"), ["epoch"]))
    except TableNotFoundError:
        return []


def report(folder: Path, trigger: int) -> None:
    """Print median and percentile of the times between the rows' timestamps and the commits of their epochs."""
    log = sorted((folder / "warehouse" / "aggregator.db" / "_epochs" / "_delta_log").glob("0*.json"))
    commit_times = [path.stat().st_mtime for path in log]
    known = epochs(folder)
    # The table's first version has no row; each epoch is one append.
    committed_at = dict(zip(known, commit_times[-len(known) :], strict=True))
    rows = rows_of(table(folder, "_changelog"), ["epoch", "timestamp", "file"])
    ages = np.array(
        [
            committed_at[row["epoch"]] - row["timestamp"].timestamp()
            for row in rows
            # A batch that the job did not finish has rows, but no epoch.
            if known[WARM_UP_BATCHES - 1] < row["epoch"] <= known[-1] and row["file"].endswith(".xlog")
        ]
    )
    median, p95 = np.percentile(ages, [50, 95])
    print(f"{ages.size:,} rows in {len(known) - WARM_UP_BATCHES} batches, trigger {trigger} s")
    print(
        f"from commit to SQL: median {median:.1f} s, p95 {p95:.1f} s: {p95 / trigger:.2f} trigger intervals"
    )


if __name__ == "__main__":
    main()
