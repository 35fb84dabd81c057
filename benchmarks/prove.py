"""Cost of `aggregator prove` for a server, and whether the proof reports false differences while the server writes.

    python -m benchmarks.prove [--rows N] [--minutes M] [--writes ROWS] [--rolling]

A server gets N tuples, and `jobs.aggregate` makes the tables. Then the proof runs by checksums and by plain SELECTs;
measured are its time, the server's processor time, and how long SELECTs of another client take meanwhile. Next, one
byte of one tuple is changed in the server's memory, which the proof must find. Then the server writes for M minutes
while the job follows and proofs run one after another; counted are keys that were compared again, and differences.
Finally the job itself compares (`prove` in its configuration) for M minutes; measured are the server's processor time
without and with it, the number of epochs, and when it finds the changed byte. `--rolling` measures only this.
"""

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from config.deployment import Config, load
from jobs.prove import servers_to_read
from observe.facts import DeploymentFacts
from observe.proof.epoch_tables import EpochTables, newest_tables
from observe.proof.replicaset_proof import prove_spaces
from observe.proof.space_proof import ProofLimits, SpaceProof
from pipeline.commit.load import load_state
from sources.iproto.address import Peer
from tests.jobs.test_prove import CHANGE_A_BYTE
from tests.live import Tarantool
from tests.live.commands import Command
from warehouse.delta.location import location_of
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

ROLLING = "prove: {{every: 4 minutes, share_of_time: 0.02, peers: ['unix/:{socket}']}}\n"


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--writes", type=int, default=300)
    parser.add_argument("--rolling", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.rows, options.minutes, options.writes, only_rolling=options.rolling)


def measure(folder: Path, rows: int, minutes: float, writes: int, *, only_rolling: bool) -> None:
    """Run the proofs against a server in a folder, and print their cost and results."""
    file = folder / "config.yaml"
    file.write_text(CONFIG.format(folder=folder))
    with Tarantool(folder / "master", cfg={"memtx_memory": 1 << 30, "checkpoint_interval": 0}) as master:
        master.eval(FILL, rows)
        begun = time.monotonic()
        with Command("aggregate", file, folder / "job.log", "--once") as job:
            while job.is_running:
                time.sleep(0.2)
        print(f"{rows} tuples, tables made in {time.monotonic() - begun:.0f} s", flush=True)
        if only_rolling:
            master.eval(LOAD, writes, rows)
        else:
            measure_proofs(folder, master, rows, minutes, writes)
        measure_rolling(folder, master, minutes)


def measure_proofs(folder: Path, master: Tarantool, rows: int, minutes: float, writes: int) -> None:
    """Run each kind of `aggregator prove`, without and then under load, which stays."""
    file = folder / "config.yaml"
    config = load(str(file))
    peers = servers_to_read(config, [f"unix/:{master.socket}"])[0]
    with probing(master) as latencies:
        time.sleep(5)
    print(f"without a proof: SELECTs of another client {latency_text(latencies)}", flush=True)
    for name, limits in (
        ("checksums, no limit", ProofLimits(uses_checksums=True)),
        ("checksums, 50,000/s", ProofLimits(50_000.0, uses_checksums=True)),
        ("SELECTs, no limit", ProofLimits()),
        ("SELECTs, 50,000/s", ProofLimits(50_000.0)),
    ):
        measure_proof(name, master, config, peers, limits)
    changed = master.eval(CHANGE_A_BYTE, 500, "state 5O0")
    print(f"one byte of tuple 500 is changed: {changed!r}", flush=True)
    print(prove(config, peers, ProofLimits(None, 60)), flush=True)
    master.eval(CHANGE_A_BYTE, 500, "state 500")
    with Command("aggregate", file, folder / "job.log"):
        master.eval(LOAD, writes, rows)
        prove_under_load(config, peers, minutes, writes)


def measure_rolling(folder: Path, master: Tarantool, minutes: float) -> None:
    """Run the job for some minutes without, then with the rolling proof, while the server writes; print the load."""
    file = folder / "rolling.yaml"
    plain = CONFIG.format(folder=folder)
    config = load(str(folder / "config.yaml"))
    location = location_of(config.warehouse, config.database)
    for name, section in (("without", ""), ("with", ROLLING.format(socket=master.socket))):
        file.write_text(plain + section)
        with Command("aggregate", file, folder / f"{name}.log"):
            time.sleep(30)  # until batches follow each other
            server, begun = psutil.Process(master.pid), time.monotonic()
            processor, first = sum(server.cpu_times()[:2]), newest_tables(location).epoch
            if section:
                master.eval(CHANGE_A_BYTE, 500, "state 5O0")
            found = None
            while time.monotonic() < begun + 60 * minutes:
                time.sleep(1)
                if found is None and any(
                    one.difference_count for one in DeploymentFacts(location).server_proofs
                ):
                    found = time.monotonic() - begun
            seconds = time.monotonic() - begun
            share = 100 * (sum(server.cpu_times()[:2]) - processor) / seconds
            epochs = newest_tables(location).epoch - first
            print(
                f"{name} the rolling proof: the server uses {share:.2f} % of a core, {epochs} epochs in "
                f"{seconds:.0f} s; the changed byte found after {found} s",
                flush=True,
            )


def prove_under_load(config: Config, peers: list[Peer], minutes: float, writes: int) -> None:
    """Repeat the proof for some minutes while the server writes and the job follows, and print all results."""
    end, proofs = time.monotonic() + 60 * minutes, list[SpaceProof]()
    while time.monotonic() < end:
        one = prove(config, peers, ProofLimits(50_000, 120))
        proofs.append(one)
        print(
            f"  proof {len(proofs)}: {one.rows} tuples in {one.seconds:.0f} s, "
            f"{one.looked_again} compared again, {len(one.differences)} different, "
            f"{one.moving} without a result, error {one.error}",
            flush=True,
        )
    print(
        f"{minutes:g} minutes, {writes} writes a second: {len(proofs)} proofs of {sum(p.rows for p in proofs)} "
        f"tuples, {sum(p.looked_again for p in proofs)} keys compared again, "
        f"{sum(len(p.differences) for p in proofs)} different, "
        f"{sum(p.moving for p in proofs)} without a result, since they changed during each comparison",
        flush=True,
    )


def measure_proof(
    name: str, master: Tarantool, config: Config, peers: list[Peer], limits: ProofLimits
) -> None:
    """Run one proof, and print its time, the server's processor time, and the latency of another client."""
    server = psutil.Process(master.pid)
    before = sum(server.cpu_times()[:2])
    with probing(master) as latencies:
        proof = prove(config, peers, limits)
    seconds = sum(server.cpu_times()[:2]) - before
    assert proof.holds, str(proof)
    print(
        f"{name}: {proof.rows} tuples in {proof.seconds:.1f} s, "
        f"{1e6 * seconds / proof.rows:.2f} us of the server's processor per tuple (probe included); "
        f"SELECTs of another client {latency_text(latencies)}",
        flush=True,
    )


def prove(config: Config, peers: list[Peer], limits: ProofLimits) -> SpaceProof:
    """Compare the server's only space with its table."""
    location = location_of(config.warehouse, config.database)
    state = load_state(Warehouse(None, config.warehouse, config.database))

    def tables() -> EpochTables:
        return newest_tables(location)

    async def run() -> SpaceProof:
        (proof,) = [one async for one in prove_spaces(peers, state, tables, limits)]
        return proof

    return asyncio.run(run())


@contextmanager
def probing(master: Tarantool) -> Iterator[list[float]]:
    """Read single tuples from another thread while the block runs; yield the list of the seconds of each read."""
    stop, latencies = threading.Event(), list[float]()

    def work() -> None:
        connection = master.connect()
        try:
            while not stop.is_set():
                begun = time.perf_counter()
                connection.eval("return box.space.orders:get(1)")
                latencies.append(time.perf_counter() - begun)
                stop.wait(0.005)
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield latencies
    finally:
        stop.set()
        thread.join()


def latency_text(latencies: list[float]) -> str:
    """Return the median and the 99th percentile, in milliseconds."""
    ordered = sorted(latencies)
    median, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{1e3 * median:.2f} ms (median), {1e3 * p99:.2f} ms (99 %)"


if __name__ == "__main__":
    main()
