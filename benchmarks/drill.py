"""Disasters, really caused on live servers: how long is it until the tables are right again?

    python -m benchmarks.drill [--rows N] [--writes ROWS] [--only DISASTER …]

Two replicasets of two servers each are followed by the daemon and the stream, while clients write to their masters. For
each disaster both jobs are killed (`kill -9`), folders are deleted, and the steps of docs/runbook.md are done. Measured
is the time from the first step until the tables have every row that the servers had committed at the loss. Then the
writes stop, and all tuples are compared: by `aggregator prove`, and by exact sums.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path

import yaml

from observe.applied_rows import applied_row
from schemas.errors import AggregatorError
from tests.live.commands import ROOT, Command
from tests.live.mesh import KEEP_NO_LOGS
from tests.live.server import Tarantool
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.read import rows_of

SPACES = """
local first, rows = ...
local decimal = require('decimal')
local format = {{'id', 'unsigned'}, {'amount', 'decimal'}, {'note', 'string'}}
for _, name in ipairs({'orders', 'accounts'}) do
    box.schema.space.create(name, {format = format}):create_index('pk')
end
for begin = 1, rows, 1000 do
    box.begin()
    for i = begin, math.min(rows, begin + 999) do
        box.space.orders:insert{2 * i + first, decimal.new(i) / 100, 'note ' .. i}
        if i % 10 == 0 then box.space.accounts:insert{i, decimal.new(i) / 1000, 'of ' .. first} end
    end
    box.commit()
end
"""
"""Orders have odd ids in one replicaset, and even ones in the other; accounts have the same ids in both."""

LOAD = """
local first, rows, writes = ...
local decimal, fiber = require('decimal'), require('fiber')
rawset(_G, 'is_loading', true)
fiber.create(function()
    local begun, done = fiber.clock(), 0
    while is_loading do
        while is_loading and done < (fiber.clock() - begun) * writes do
            local id, what = math.random(2 * rows), math.random(10)
            local amount = decimal.new(math.random(1e9)) / 10000
            if what == 1 then box.space.accounts:replace{id, amount, 'load of ' .. first}
            elseif what == 2 then box.space.orders:delete(2 * id + first)
            else box.space.orders:replace{2 * id + first, amount, 'load ' .. done} end
            done = done + 1
        end
        fiber.sleep(0.01)
    end
end)
"""
SUM = """
local decimal, sum, count = require('decimal'), require('decimal').new(0), 0
for _, row in box.space.orders:pairs() do
    sum, count = sum + row.amount, count + 1
    if count % 1000 == 0 then require('fiber').yield() end
end
return tostring(sum), count
"""
REPLICASETS = {"a": 0, "b": 1}
SECONDS_MAX = 400.0


class Site:
    """The jobs and folders of one place: the daemon, its spools, the stream, the warehouse and the checkpoint.

    Args:
        folder: Of all that the site stores.
        servers: By replicaset, the servers that the daemon follows.
    """

    def __init__(self, folder: Path, servers: dict[str, Tarantool]) -> None:
        self.folder, self.servers = folder, servers
        self.warehouse, self.spools, self.checkpoint = (
            folder / name for name in ("warehouse", "spools", "checkpoint")
        )
        self.config = folder / "site.yaml"
        self.warehouse.mkdir(parents=True)
        self.configure()
        self.daemon = Command("subscribe", self.config, folder / "daemon.log")
        self.stream = Command("aggregate", self.config, folder / "stream.log")

    def configure(self, **sections: object) -> None:
        """Write the configuration of the site."""
        whole = {
            "warehouse": str(self.warehouse),
            "checkpoint": str(self.checkpoint),
            "trigger": "2 seconds",
            "sources": [{"name": name, "path": str(self.spools / name)} for name in REPLICASETS],
            "subscribe": {
                "warehouse": str(self.warehouse),
                "replicasets": [
                    {"name": name, "spool": str(self.spools / name), "peers": [f"unix/:{server.socket}"]}
                    for name, server in self.servers.items()
                ],
            },
            **sections,
        }
        self.config.write_text(yaml.safe_dump(whole))

    def start(self) -> None:
        """Start the daemon, then the stream as soon as there are spools, as docs/deploy.md says."""
        self.daemon.start()
        deadline = time.monotonic() + SECONDS_MAX
        while not all(any((self.spools / name).glob("*.[sx]*")) for name in REPLICASETS):
            self.require(time.monotonic() < deadline, "spools")
            time.sleep(0.1)
        self.stream.start()

    def kill(self) -> None:
        """Kill both jobs at once."""
        self.stream.kill()
        self.daemon.kill()

    def ends(self) -> dict[str, int]:
        """Return, by the uuid of each server that has written rows, its lsn now."""
        found = (server.eval("return box.info.uuid, box.info.lsn") for server in self.servers.values())
        return {uuid: lsn for uuid, lsn in found if lsn > 0}

    def await_rows(self, ends: dict[str, int]) -> None:
        """Wait until the tables have the rows of the servers up to some lsns."""
        location = location_of(str(self.warehouse))
        deadline = time.monotonic() + SECONDS_MAX
        for uuid, lsn in ends.items():
            while not _is_applied(location, uuid, lsn):
                self.require(time.monotonic() < deadline and self.stream.is_running, "the rows")
                time.sleep(0.25)

    def load(self, rows: int, writes: int) -> None:
        """Begin to write to the servers."""
        for name, server in self.servers.items():
            server.eval(LOAD, REPLICASETS[name], rows, writes)

    def stop_load(self) -> None:
        """End the writes."""
        for server in self.servers.values():
            server.eval("is_loading = false require('fiber').sleep(0.1)")

    def compare(self) -> str:
        """Compare the tables with the servers, which must not be written to; return what was compared."""
        self.await_rows(self.ends())
        words = [sys.executable, "-m", "aggregator", "prove", "--config", str(self.config)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        self.require(done.returncode == 0, f"equal tables: {done.stdout}{done.stderr}")
        sums = [server.eval(SUM) for server in self.servers.values()]
        expected = sum(Decimal(one[0]) for one in sums), sum(one[1] for one in sums)
        table = location_of(str(self.warehouse)).open("orders")
        if table is None:
            raise RuntimeError("there is no table orders")
        amounts = [row["amount"] for row in rows_of(table, ["amount"])]
        self.require((sum(amounts), len(amounts)) == expected, f"the sum {expected}")
        return f"{len(amounts):,} orders, sum {expected[0]}"

    def require(self, holds: bool, what: str) -> None:
        """Raise an error with the ends of the logs if something does not hold."""
        if not holds:
            logs = [file.read_text()[-3000:] for file in self.folder.glob("*.log")]
            raise RuntimeError("\n".join([f"{what} did not come", *logs]))

    def run(self, *words: str) -> None:
        """Run a command of the aggregator."""
        subprocess.run(
            [sys.executable, "-m", "aggregator", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )


def _is_applied(location: WarehouseLocation, uuid: str, lsn: int) -> bool:
    """Return whether the tables have a row; False where the tables are not there yet."""
    try:
        return applied_row(location, uuid, lsn).is_applied
    except (AggregatorError, OSError):
        return False


def lose(*folders: Path) -> None:
    """Delete folders."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def spools_lost(site: Site) -> Callable[[], None]:
    """Lose the spools; the checkpoint goes with them."""
    lose(site.spools)
    return lambda: lose(site.checkpoint)


def checkpoint_lost(site: Site) -> Callable[[], None]:
    """Lose the checkpoint."""
    lose(site.checkpoint)
    return lambda: None


def warehouse_lost(site: Site) -> Callable[[], None]:
    """Lose the warehouse; an empty one needs spools that begin with a snapshot, and a new checkpoint."""
    lose(site.warehouse)

    def steps() -> None:
        lose(site.checkpoint, site.spools)
        site.warehouse.mkdir()

    return steps


def all_lost(site: Site) -> Callable[[], None]:
    """Lose all that the site stores: warehouse, checkpoint and spools."""
    lose(site.warehouse, site.checkpoint, site.spools)
    return site.warehouse.mkdir


def older_copy(site: Site) -> Callable[[], None]:
    """Lose the warehouse, of which there is a copy that `copy_of_warehouse` made some time ago."""
    lose(site.warehouse)

    def steps() -> None:
        shutil.copytree(site.folder / "copy", site.warehouse)
        lose(site.checkpoint, site.spools)

    return steps


def copy_warehouse(site: Site) -> None:
    """Copy the warehouse of the stopped stream, as docs/corrections.md says, and let the stream go on for a while."""
    site.stream.stop()
    site.run("rid", "disconnect", str(site.warehouse))
    shutil.copytree(site.warehouse, site.folder / "copy")
    site.stream.start()
    site.await_rows(site.ends())
    time.sleep(20)


DISASTERS: dict[str, Callable[[Site], Callable[[], None]]] = {
    "checkpoint": checkpoint_lost,
    "spools": spools_lost,
    "warehouse": warehouse_lost,
    "copy": older_copy,
    "all": all_lost,
}
"""By name: what loses folders, and returns the steps before both jobs are started again."""


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, dict[str, Tarantool]]]:
    """Run a master in the east and its replica in the west for each replicaset."""
    with ExitStack() as stack:
        sites: dict[str, dict[str, Tarantool]] = {"east": {}, "west": {}}
        for name in REPLICASETS:
            cfg = {"memtx_memory": 512 << 20, "checkpoint_interval": 0}
            master = Tarantool(folder / f"{name}1", cfg=cfg, lua=KEEP_NO_LOGS)
            sites["east"][name] = stack.enter_context(master)
            follow = {"replication": [f"unix/:{master.socket}"], "replication_timeout": 0.5}
            replica = Tarantool(folder / f"{name}2", cfg=cfg | follow, lua=KEEP_NO_LOGS)
            sites["west"][name] = stack.enter_context(replica)
        yield sites


def measure(folder: Path, rows: int, writes: int, names: Sequence[str]) -> None:
    """Cause the disasters one after another, and print a line for each."""
    with servers(folder) as sites, ExitStack() as stack:
        for name, server in sites["east"].items():
            server.eval(SPACES, REPLICASETS[name], rows)
        east = Site(folder / "east", sites["east"])
        stack.callback(east.kill)
        begun = time.monotonic()
        east.start()
        east.await_rows(east.ends())
        print(f"first load: {time.monotonic() - begun:.0f} s; {east.compare()}", flush=True)
        for name in names:
            if name == "region":
                region_lost(east, Site(folder / "west", sites["west"]), stack, rows, writes)
                break  # nothing is left to be lost
            east.load(rows, writes)
            if name == "copy":
                copy_warehouse(east)
            time.sleep(10)
            east.kill()
            steps = DISASTERS[name](east)
            recover(name, east, steps, east.ends())


def recover(name: str, site: Site, steps: Callable[[], None], ends: dict[str, int]) -> None:
    """Do the steps, start the jobs, wait until the tables are right, compare, and print the time."""
    begun = time.monotonic()
    steps()
    site.start()
    site.await_rows(ends)
    seconds = time.monotonic() - begun
    site.stop_load()
    print(f"{name}: right after {seconds:.0f} s; {site.compare()}", flush=True)


def region_lost(east: Site, west: Site, stack: ExitStack, rows: int, writes: int) -> None:
    """Lose the masters, the jobs and the folders of the east; the west has the replicas and a standby.

    The writes end a second before, so that the replicas have them: what a master alone had is lost with it.
    """
    east.stream.stop()
    east.configure(standby={"peers": [str(west.warehouse)]})
    east.stream.start()
    stack.callback(west.kill)
    east.load(rows, writes)
    east.await_rows(east.ends())
    time.sleep(10)
    east.stop_load()
    time.sleep(1)
    ends = east.ends()
    for server in east.servers.values():
        server.kill()
    east.kill()
    lose(east.folder)

    def steps() -> None:
        for server in west.servers.values():
            server.eval("box.cfg{replication = {}}")
        west.run("rid", "promote", str(west.warehouse))

    recover("region", west, steps, ends)


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help="orders of each replicaset")
    parser.add_argument("--writes", type=int, default=300, help="a second, to each master")
    parser.add_argument("--only", nargs="+", choices=[*DISASTERS, "region"], default=[*DISASTERS, "region"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options.rows, options.writes, options.only)


if __name__ == "__main__":
    main()
