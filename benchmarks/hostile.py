"""A relay's honest subscriber beside many idle, slow and lying clients: how far behind its rows are, open loop.

    python -m benchmarks.hostile [--idle N] [--slow N] [--lying N] [--seconds S] [--rate ROWS]

The relay, the crowd and the honest subscriber are a process each. This one appends to the spool, ROWS a second by the
clock, whatever happens. The honest one subscribes before the others come, and reads all; the lag of a row is from its
append to its arrival. Idle clients connect and say nothing. Slow ones send a byte of a request a second. Lying ones
send lengths of 1 GiB, odd packets and wrong passwords as fast as they are let. Each that is closed comes back at once.
Prints the lag alone and beside them, the relay's memory and processor time, and how many connections it refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from schemas.errors import ConnectionLostError
from sources.iproto import inflow
from sources.iproto.address import Address, PasswordSource, Peer
from sources.iproto.client import connect
from sources.iproto.inflow import RowStream, TransactionChunk
from sources.iproto.messages import Subscription, auth_body
from sources.iproto.packet import encode_packet
from sources.spool.spool import Spool
from sources.xlog.format.encode import encode_body, encode_row
from tests.live.commands import Command
from tests.sources.relay.spools import write_spool

ME = "00000000-0000-4000-8000-000000000001"
CONFIG = """
relay:
  status: 127.0.0.1:{status}
  users: [{{name: central, password_env: RELAY_PASSWORD}}]
  spools: [{{name: a, spool: spool, listen: "127.0.0.1:{port}"}}]
"""
TICK_SECONDS = 0.02
BODY = encode_body(space_id=512, tuple_=msgpack.packb([1, "abcdefghijklmnopqrstuvwxyz"]))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=1000)
    parser.add_argument("--lying", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--port", type=int, default=33016)
    parser.add_argument("--crowd", action="store_true", help="be the crowd of a relay that runs")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if options.crowd:
        asyncio.run(crowd(options))
        return
    os.environ["RELAY_PASSWORD"] = "a password for a benchmark"
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options))


async def measure(folder: Path, options: argparse.Namespace) -> None:
    """Measure in a folder."""
    inflow.compile_kernels()
    write_spool(folder / "spool", 1)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(status=options.port + 1, port=options.port))
    with Command("relay", config, folder / "said") as relay, Spool(folder / "spool") as spool:
        honest = Honest(options.port)
        await honest.begin(dict(spool.vclock or {}))
        writing = asyncio.create_task(write(spool, honest, options.rate))
        await asyncio.sleep(options.seconds / 4)
        print(f"alone: {honest.shown()}")
        used = _processor(relay.pid)
        words = [f"--{name}={getattr(options, name)}" for name in ("idle", "slow", "lying", "port")]
        others = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.hostile", "--crowd", *words
        )
        await asyncio.sleep(options.seconds)
        print(f"beside {options.idle} idle, {options.slow} slow, {options.lying} lying: {honest.shown()}")
        print(
            f"relay: {_resident(relay.pid) / 2**20:.0f} MiB, {_processor(relay.pid) - used:.1f} s of processor"
        )
        shown = await asyncio.to_thread(_status, options.port + 1)
        print(
            f"relay: {shown['connections']} connections, {shown['refused_connections']:,} refused or given way"
        )
        others.kill()
        await others.wait()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        honest.close()
    print(f"relay's log: {(folder / 'said').stat().st_size / 2**10:.0f} KiB")


async def crowd(options: argparse.Namespace) -> None:
    """Be all clients but the honest one, until killed."""
    kinds = (idle, options.idle), (slow, options.slow), (lie, options.lying)
    await asyncio.gather(*(_again(talk, options.port) for talk, count in kinds for _ in range(count)))


class Honest:
    """The subscriber whose lag counts.

    Parameters
    ----------
    port : int
        The relay's.

    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._appended: dict[int, float] = {}
        self._lags: list[float] = []

    async def begin(self, vclock: dict[int, int]) -> None:
        """Subscribe."""
        peer = Peer(
            "relay", Address("127.0.0.1", self._port), "central", PasswordSource(env="RELAY_PASSWORD")
        )
        connection = None
        while connection is None:
            with contextlib.suppress(ConnectionLostError):
                connection = await connect(peer, 30.0)
            await asyncio.sleep(0.05)
        uuid = await connection.replicaset_uuid()
        rows = RowStream(vclock, self._take, "relay")
        await connection.subscribe(Subscription(uuid, ME, vclock, (2, 6, 0)), rows)
        self._connection = connection
        self._acks = asyncio.create_task(self._acknowledge(rows))

    async def _acknowledge(self, rows: RowStream) -> None:
        while True:
            self._connection.acknowledge(inflow.array_to_vclock(rows.vclock), to_relay=True)
            await asyncio.sleep(1)

    def appended(self, lsn: int) -> None:
        """Take note that a row was appended now."""
        self._appended[lsn] = time.monotonic()

    def _take(self, chunk: TransactionChunk) -> None:
        now = time.monotonic()
        self._lags += [now - self._appended.pop(int(lsn), now) for lsn in chunk.lsns]

    def shown(self) -> str:
        """Return the lag since the last question, rows that have not come included."""
        now = time.monotonic()
        lags = np.array([*self._lags, *(now - at for at in self._appended.values())])
        self._lags.clear()
        middle, high = np.percentile(lags, [50, 99]) * 1000
        return f"lag p50 {middle:.0f} ms, p99 {high:.0f} ms, max {lags.max() * 1000:.0f} ms of {lags.size:,} rows"

    def close(self) -> None:
        """Close the connection."""
        self._acks.cancel()
        self._connection.close()


async def write(spool: Spool, honest: Honest, rate: int) -> None:
    """Append rows by the clock."""
    began, done = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * rate)
        if due > done:
            first = (spool.vclock or {})[1] + 1
            lsns = range(first, first + due - done)
            rows = [encode_row(3, BODY, timestamp=1.5, replica_id=1, lsn=lsn) for lsn in lsns]
            for lsn in lsns:
                honest.appended(lsn)
            spool.append(np.frombuffer(b"".join(rows), np.uint8), {1: lsns[-1]})
            done = due
        await asyncio.sleep(TICK_SECONDS)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def _again(talk: Talk, port: int) -> None:
    """Connect as one of many addresses of this machine, and again whenever it is closed."""
    while True:
        source = f"127.0.{random.randrange(1, 40)}.{random.randrange(1, 250)}"
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            try:
                await talk(reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(random.random() / 10)


async def idle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Say nothing."""
    while await reader.read(1 << 16):
        pass


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a request by a byte a second."""
    await reader.readexactly(128)
    for byte in encode_packet(0x40, 1, {}) * 100:
        writer.write(bytes([byte]))
        await asyncio.sleep(1)
        if reader.at_eof():
            return


async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send lengths that are none, packets that are none, passwords that are wrong."""
    await reader.readexactly(128)
    writer.write(
        random.choice(
            [
                b"\xce\x40\x00\x00\x00" + bytes(1 << 16),
                b"\xce\x00\x00\x0f\xff\xdd" + b"\xff" * 4094,
                encode_packet(0x07, 1, auth_body("central", bytes(20))),
                encode_packet(0x07, 1, {0x23: "central", 0x21: ["chap-sha1", -1]}),
                encode_packet(0x42, 1, {}),
            ]
        )
    )
    await idle(reader, writer)


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)["spools"][0]
    return found


if __name__ == "__main__":
    main()
