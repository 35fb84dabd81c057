"""Lag of a relay's honest subscriber while many idle, slow and lying clients use the relay, too.

    python -m benchmarks.hostile [--idle N] [--slow N] [--lying N] [--seconds S] [--rate ROWS]

The relay and the hostile clients (`--crowd`) run as one process each. This process is the honest subscriber, and also
appends ROWS a second to the spool by the clock, even if the relay falls behind (an open loop). A row's lag goes from
its append to its arrival. Idle clients connect and send nothing. Slow ones send one byte of a request per second. Lying
ones send lengths of 1 GiB, malformed packets and wrong passwords as fast as the relay takes them. A client whose
connection is closed connects again at once. Prints the lag without and with the clients, the relay's memory and
processor time, and how many connections it refused.
"""

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
import psutil

from schemas.errors import ConnectionLostError
from sources.iproto import row_stream
from sources.iproto.address import Address, PasswordSource, Peer
from sources.iproto.client import connect
from sources.iproto.messages import Subscription, auth_body
from sources.iproto.packet import encode_packet
from sources.iproto.row_stream import RowStream, TransactionChunk
from sources.spool.spool import Spool
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.live.commands import Command
from tests.sources.relay.spools import write_spool

SUBSCRIBER_UUID = "00000000-0000-4000-8000-000000000001"
CONFIG = """
relay:
  status: 127.0.0.1:{status}
  users: [{{name: central, password_env: RELAY_PASSWORD}}]
  spools: [{{name: a, spool: spool, listen: "127.0.0.1:{port}"}}]
"""
TICK_SECONDS = 0.02
BODY = encode_body(space_id=512, tuple_=msgpack.packb([1, "abcdefghijklmnopqrstuvwxyz"]))


def main() -> None:
    """Measure in a temporary folder; with `--crowd`, be the hostile clients of a running relay."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=1000)
    parser.add_argument("--lying", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--port", type=int, default=33016)
    parser.add_argument("--crowd", action="store_true", help="be the hostile clients of a running relay")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if options.crowd:
        asyncio.run(crowd(options))
        return
    os.environ["RELAY_PASSWORD"] = "a password for a benchmark"
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options))


async def measure(folder: Path, options: argparse.Namespace) -> None:
    """Run the relay and the clients for some seconds, and print the subscriber's lag and the relay's cost."""
    row_stream.compile_kernels()
    write_spool(folder / "spool", 1)
    config, log = folder / "config.yaml", folder / "relay.log"
    config.write_text(CONFIG.format(status=options.port + 1, port=options.port))
    with Command("relay", config, log) as relay, Spool(folder / "spool") as spool:
        subscriber = HonestSubscriber(options.port)
        await subscriber.subscribe(dict(spool.vclock or {}))
        writing = asyncio.create_task(append_rows(spool, subscriber, options.rate))
        await asyncio.sleep(options.seconds / 4)
        print(f"alone: {subscriber.take_lag_text()}")
        process = psutil.Process(relay.pid)
        seconds_before = sum(process.cpu_times()[:2])
        words = [f"--{name}={getattr(options, name)}" for name in ("idle", "slow", "lying", "port")]
        others = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.hostile", "--crowd", *words
        )
        await asyncio.sleep(options.seconds)
        counts = f"{options.idle} idle, {options.slow} slow, {options.lying} lying"
        print(f"with {counts} clients: {subscriber.take_lag_text()}")
        seconds = sum(process.cpu_times()[:2]) - seconds_before
        print(f"relay: {process.memory_info().rss / 2**20:.0f} MiB, {seconds:.1f} s of processor time")
        spool_status = await asyncio.to_thread(_spool_status, options.port + 1)
        print(
            f"relay: {spool_status['connections']} connections, "
            f"{spool_status['refused_connections']:,} closed as too many"
        )
        others.kill()
        await others.wait()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        subscriber.close()
    print(f"relay's log: {log.stat().st_size / 2**10:.0f} KiB")


async def crowd(options: argparse.Namespace) -> None:
    """Run all hostile clients, until killed."""
    kinds = (idle, options.idle), (slow, options.slow), (lie, options.lying)
    await asyncio.gather(*(_reconnect(talk, options.port) for talk, count in kinds for _ in range(count)))


class HonestSubscriber:
    """A subscriber of the relay at a port, whose lag is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._append_times: dict[int, float] = {}
        self._lags: list[float] = []

    async def subscribe(self, vclock: dict[int, int]) -> None:
        """Connect, as soon as the relay listens, and subscribe to the rows after a vclock."""
        peer = Peer(
            "relay",
            Address("127.0.0.1", self._port),
            "central",
            PasswordSource(env_variable="RELAY_PASSWORD"),
        )
        connection = None
        while connection is None:
            with contextlib.suppress(ConnectionLostError):
                connection = await connect(peer, 30.0)
            await asyncio.sleep(0.05)
        uuid = await connection.replicaset_uuid()
        rows = RowStream(vclock, self._receive, "relay")
        await connection.subscribe(Subscription(uuid, SUBSCRIBER_UUID, vclock, (2, 6, 0)), rows)
        self._connection = connection
        self._acks = asyncio.create_task(self._acknowledge(rows))

    async def _acknowledge(self, rows: RowStream) -> None:
        while True:
            self._connection.acknowledge(row_stream.array_to_vclock(rows.vclock), to_relay=True)
            await asyncio.sleep(1)

    def note_append(self, lsn: int) -> None:
        """Take the present as the time at which a row was appended."""
        self._append_times[lsn] = time.monotonic()

    def _receive(self, chunk: TransactionChunk) -> None:
        now = time.monotonic()
        self._lags += [now - self._append_times.pop(int(lsn), now) for lsn in chunk.last_lsns]

    def take_lag_text(self) -> str:
        """Return the lags since the last call as text; a row that has not arrived counts with its lag so far."""
        now = time.monotonic()
        lags = np.array([*self._lags, *(now - at for at in self._append_times.values())])
        self._lags.clear()
        p50, p99 = np.percentile(lags, [50, 99]) * 1000
        return f"lag p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {lags.max() * 1000:.0f} ms of {lags.size:,} rows"

    def close(self) -> None:
        """Close the connection."""
        self._acks.cancel()
        self._connection.close()


async def append_rows(spool: Spool, subscriber: HonestSubscriber, rate: int) -> None:
    """Append `rate` rows a second to the spool, until cancelled."""
    began, done = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * rate)
        if due > done:
            first = (spool.vclock or {})[1] + 1
            lsns = range(first, first + due - done)
            rows = [encode_row(3, BODY, timestamp=1.5, replica_id=1, lsn=lsn) for lsn in lsns]
            for lsn in lsns:
                subscriber.note_append(lsn)
            spool.append(np.frombuffer(b"".join(rows), np.uint8), {1: lsns[-1]})
            done = due
        await asyncio.sleep(TICK_SECONDS)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def _reconnect(talk: Talk, port: int) -> None:
    """Connect from a random address of this machine and talk; whenever the connection ends, do it again."""
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
    """Send nothing."""
    while await reader.read(1 << 16):
        pass


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send pings, one byte per second."""
    await reader.readexactly(128)
    for byte in encode_packet(0x40, 1, {}) * 100:
        writer.write(bytes([byte]))
        await asyncio.sleep(1)
        if reader.at_eof():
            return


async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send one of: two false lengths, two wrong passwords, and a request that the relay does not expect."""
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


def _spool_status(port: int) -> dict[str, Any]:
    """Return the relay's status of its only spool."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
        status: dict[str, Any] = json.load(answer)["spools"][0]
    return status


if __name__ == "__main__":
    main()
