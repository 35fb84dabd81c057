"""What `aggregator prove` costs a server, and whether load makes it name a difference that is none.

    python -m benchmarks.prove [--rows N] [--minutes M] [--writes ROWS]

A server gets N tuples, `jobs.aggregate` makes the tables. Then the proof runs by checksums and by plain SELECTs: its
time, the server's processor time, and how long another client's SELECTs take meanwhile. One byte of one tuple is then
changed in the server's memory and found. At last, for M minutes, the server writes, the job follows, and proofs run one
after another: how many keys were looked at again, and how many were called different.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.deployment import Config, load
from jobs.prove import peers_of
from observe.proof.epoch_tables import EpochTables, newest_tables
from observe.proof.replicaset_proof import prove_spaces
from observe.proof.result import SpaceProof
from observe.proof.space_proof import ProofLimits
from pipeline.commit.load import load_state
from sources.iproto.address import Peer
from tests.jobs.test_prove import CHANGE_A_BYTE
from tests.live import Tarantool
from tests.live.commands import Command
from warehouse.place import place_of
from warehouse.warehouse import Warehouse

FILL = """
local rows = ...
local s = box.schema.space.create('orders', {format = {{'id', 'unsigned'}, {'state', 'string'}, {'count', 'integer'}}})
s:create_index('pk')
for begin = 1, rows, 1000 do
    box.begin()
    for i = begin, math.min(rows, begin + 999) do s:insert{i, 'state ' .. i, -i, ('x'):rep(i % 80)} end
    box.commit()
    require('fiber').yield()
end
"""
LOAD = """
local writes, rows = ...
require('fiber').create(function()
    local s, random, clock = box.space.orders, math.random, require('fiber').clock
    local begun, done = clock(), 0
    while true do
        while done < (clock() - begun) * writes do
            local id = random(rows)
            if id == 500 then id = 501 end
            local what = random(4)
            if what == 1 then s:replace{id, 'load ' .. random(1e6), random(1e6)}
            elseif what == 2 then s:upsert({id, 'new', 1}, {{'+', 3, 1}})
            elseif what == 3 then s:update(id, {{'-', 3, 5}})
            else s:delete(id) end
            done = done + 1
        end
        require('fiber').sleep(0.005)
    end
end)
"""
CONFIG = """
warehouse: {folder}/warehouse
checkpoint: {folder}/checkpoint
trigger: 2 seconds
sources: [{{name: a, path: {folder}/master}}]
"""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--writes", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.rows, options.minutes, options.writes)


def measure(folder: Path, rows: int, minutes: float, writes: int) -> None:
    """Measure in a folder."""
    file = folder / "config.yaml"
    file.write_text(CONFIG.format(folder=folder))
    with Tarantool(folder / "master", cfg={"memtx_memory": 1 << 30, "checkpoint_interval": 0}) as master:
        master.eval(FILL, rows)
        begun = time.monotonic()
        with Command("aggregate", file, folder / "said", "--once") as job:
            while job.is_running:
                time.sleep(0.2)
        print(f"{rows} tuples, tables made in {time.monotonic() - begun:.0f} s", flush=True)
        config = load(str(file))
        peers = peers_of(config, [f"unix/:{master.socket}"])[0]
        waited = probed(master, 5.0)
        print(f"nothing runs: SELECTs of another client {shown(waited)}", flush=True)
        for name, limits in (
            ("checksums, no limit", ProofLimits(by_checksums=True)),
            ("checksums, 50,000/s", ProofLimits(50_000.0, by_checksums=True)),
            ("SELECTs, no limit", ProofLimits()),
            ("SELECTs, 50,000/s", ProofLimits(50_000.0)),
        ):
            measured(name, master, config, peers, limits)
        changed = master.eval(CHANGE_A_BYTE, 500, "state 5O0")
        print(f"one byte of tuple 500 is changed: {changed!r}", flush=True)
        print(proof_of(config, peers, ProofLimits(None, 60)), flush=True)
        master.eval(CHANGE_A_BYTE, 500, "state 500")
        with Command("aggregate", file, folder / "said"):
            master.eval(LOAD, writes, rows)
            under_load(config, peers, minutes, writes)


def under_load(config: Config, peers: list[Peer], minutes: float, writes: int) -> None:
    """Prove for some minutes while the server writes and the job follows."""
    end, proven, again, different, moving, rows = time.monotonic() + 60 * minutes, 0, 0, 0, 0, 0
    while time.monotonic() < end:
        found = proof_of(config, peers, ProofLimits(50_000, 120))
        proven, again, rows = proven + 1, again + found.looked_again, rows + found.rows
        different, moving = different + len(found.differences), moving + found.moving
        print(
            f"  proof {proven}: {found.rows} tuples in {found.seconds:.0f} s, {found.looked_again} looked at again, "
            f"{len(found.differences)} different, {found.moving} moving, error {found.error}",
            flush=True,
        )
    print(
        f"{minutes:g} minutes, {writes} writes a second: {proven} proofs of {rows} tuples, "
        f"{again} keys looked at again, {different} called different, {moving} that always changed",
        flush=True,
    )


def measured(name: str, master: Tarantool, config: Config, peers: list[Peer], limits: ProofLimits) -> None:
    """Print what one proof takes, and what another client sees meanwhile."""
    waited: list[float] = []
    before = processor_seconds(master.pid)
    with probing(master, waited):
        found = proof_of(config, peers, limits)
    took = processor_seconds(master.pid) - before
    assert found.holds, str(found)
    print(
        f"{name}: {found.rows} tuples in {found.seconds:.1f} s, {1e6 * took / found.rows:.2f} us of the server's "
        f"processor a tuple (probe included); SELECTs of another client {shown(waited)}",
        flush=True,
    )


def proof_of(config: Config, peers: list[Peer], limits: ProofLimits) -> SpaceProof:
    """Return what comes of the one space."""
    place = place_of(config.warehouse, config.database)
    state = load_state(Warehouse(None, config.warehouse, config.database))

    def tables() -> EpochTables:
        return newest_tables(place)

    async def run() -> SpaceProof:
        found = [one async for one in prove_spaces(peers, state, tables, limits)]
        return found[0]

    return asyncio.run(run())


@contextmanager
def probing(master: Tarantool, waited: list[float]) -> Iterator[None]:
    """Ask the server for single tuples from another thread, and note how long each answer takes."""
    stop = threading.Event()

    def work() -> None:
        connection = master.connect()
        try:
            while not stop.is_set():
                begun = time.perf_counter()
                connection.eval("return box.space.orders:get(1)")
                waited.append(time.perf_counter() - begun)
                stop.wait(0.005)
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def probed(master: Tarantool, seconds: float) -> list[float]:
    """Return how long answers take while nothing else runs."""
    waited: list[float] = []
    with probing(master, waited):
        time.sleep(seconds)
    return waited


def shown(waited: list[float]) -> str:
    """Return times as text."""
    ordered = sorted(waited)
    median, most = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{1e3 * median:.2f} ms (median), {1e3 * most:.2f} ms (99 %)"


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    main()
