"""Rows per second from a live master into a spool, against a Tarantool that is an anonymous replica of the master.

    python -m benchmarks.live [--rows N] [--rounds K]

The master writes N rows once. Then replica and daemon in turn start at the vclock before them, and follow to the end;
the fastest of K rounds counts. Tarantool applies the rows to memory and writes its own log; the daemon writes the
spool. Prints both rates, their ratio, and the daemon's rate by processor time.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from sources.iproto import row_stream
from sources.iproto.address import Peer, parse_address
from sources.subscribe.options import ReplicasetOptions, SpoolStart, Timing
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.live import Tarantool

WRITE = """
    local n = ...
    for i = 1, n, 10 do
        box.begin()
        for j = i, i + 9 do box.space.load:replace{j % 100000, j, 'abcdefghijklmnopqrstuvwxyz'} end
        box.commit()
    end
"""
REPLICA = {"replication_anon": True, "read_only": True, "memtx_memory": 1 << 30}
POLL_SECONDS = 0.005


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=33013)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.rows, options.rounds, options.port)


def measure(folder: Path, rows: int, rounds: int, port: int) -> None:
    """Write the rows, let replica and daemon follow in turn, and print their rates."""
    row_stream.compile_kernels()
    address = f"127.0.0.1:{port}"
    with Tarantool(folder / "master", cfg={"memtx_memory": 1 << 30}) as master:
        master.eval("box.schema.space.create('load'):create_index('pk')")
        master.eval("box.cfg{listen = ...}", address)
        start = SpoolStart(
            master.eval("return box.info.cluster.uuid"), {1: int(master.eval("return box.info.lsn"))}
        )
        with Tarantool(folder / "base", cfg=REPLICA | {"replication": [address]}):
            pass
        began = time.monotonic()
        master.eval(WRITE, rows)
        written = time.monotonic() - began
        lsn = int(master.eval("return box.info.lsn"))
        print(f"the master wrote {rows:,} rows in {written:.2f} s: {rows / written:,.0f} rows/s")
        theirs, ours, processor = [], [], []
        for _ in range(rounds):
            theirs.append(_follow_with_tarantool(folder, address, lsn))
            seconds, processor_seconds = asyncio.run(_follow_with_daemon(folder, address, start, lsn))
            ours.append(seconds)
            processor.append(processor_seconds)
    count = lsn - start.vclock[1]
    print(f"a replica of Tarantool: {count / min(theirs):,.0f} rows/s (applied and logged)")
    print(
        f"the daemon: {count / min(ours):,.0f} rows/s; "
        f"{count / min(processor):,.0f} rows per second of processor time"
    )
    print(
        f"ratio: {min(theirs) / min(ours):.2f}x of Tarantool, {written / min(ours):.2f}x of the master's writing"
    )


def _follow_with_tarantool(folder: Path, address: str, lsn: int) -> float:
    """Return the seconds that an anonymous replica takes to reach an lsn; its start is left out."""
    directory = folder / "again"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(folder / "base", directory)
    with Tarantool(directory, cfg=REPLICA) as replica:
        began = time.monotonic()
        replica.eval("box.cfg{replication = ...}", address)
        while int(replica.eval("return box.info.vclock[1] or 0")) < lsn:
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began


async def _follow_with_daemon(folder: Path, address: str, start: SpoolStart, lsn: int) -> tuple[float, float]:
    """Return the seconds, and those of processor time, that the daemon takes to reach an lsn."""
    spool = folder / "spool"
    shutil.rmtree(spool, ignore_errors=True)
    peer = Peer(address, parse_address(address)[1])
    replicaset = ReplicasetSubscription(
        ReplicasetOptions("a", spool, (peer,), timing=Timing(poll_seconds=0.05)), start
    )
    task = asyncio.create_task(replicaset.run())
    while not replicaset.feeds:
        await asyncio.sleep(0.001)
    began, used = time.monotonic(), time.process_time()
    while (replicaset.spool.vclock or {}).get(1, 0) < lsn:
        await asyncio.sleep(POLL_SECONDS)
    result = time.monotonic() - began, time.process_time() - used
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return result


if __name__ == "__main__":
    main()
