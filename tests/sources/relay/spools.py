"""Writes spools for tests, and runs a relay and a raw client in the test's event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgpack
import numpy as np

from sources.iproto.address import Address
from sources.iproto.packet import Packet, decode_packet, encode_packet
from sources.relay.options import ClientLimits, RelayOptions
from sources.relay.server import Relay
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body

DAEMON = "00000000-0000-4000-8000-0000000000ff"
REPLICASET = "bbbbbbbb-0000-4000-8000-000000000001"
A1 = "a0000001-0000-4000-8000-000000000001"
START = 5


def system_row(lsn: int, space: int, values: list[Any]) -> bytes:
    body = encode_body(space_id=space, tuple_=msgpack.packb(values))
    return bytes(encode_row(2, body, lsn=lsn, timestamp=1.5))


def write_spool(directory: Path, rows: int = 0, size: int = 100, members: tuple[list[Any], ...] = ()) -> None:
    """Write a spool: a snapshot with system rows, then single-row transactions."""
    with Spool(directory, SpoolOptions(compress=False)) as spool:
        spool.instance_uuid, spool.replicaset_uuid = DAEMON, REPLICASET
        if spool.vclock is None:
            with spool.create_snapshot({1: START}) as writer:
                writer.write([system_row(0, 272, ["cluster", REPLICASET])])
                for number, values in enumerate(members or ([1, A1],), 1):
                    writer.write([system_row(number, 320, values)])
            spool.continue_from({1: START})
        append(spool, rows, size)


def append(spool: Spool, count: int, size: int = 100) -> None:
    """Append single-row transactions."""
    body = encode_body(space_id=512, tuple_=msgpack.packb([1, "x" * size]))
    for _ in range(count):
        lsn = (spool.vclock or {})[1] + 1
        row = encode_row(3, body, timestamp=1.5, replica_id=1, lsn=lsn)
        spool.append(np.frombuffer(row, np.uint8), {1: lsn})


@asynccontextmanager
async def relaying(directory: Path, limits: ClientLimits | None = None, **other: Any) -> AsyncIterator[Relay]:
    """Run a relay on a free local port."""
    options: dict[str, Any] = {
        "allows_guest": True,
        "heartbeat_seconds": 0.1,
        "limits": limits or ClientLimits(),
    } | other
    relay = Relay(RelayOptions("a", directory, Address("127.0.0.1", 0), **options))
    task = asyncio.create_task(relay.run())
    while relay.port == 0 and not task.done():
        await asyncio.sleep(0.001)
    try:
        yield relay
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Client:
    """A client that sends any packets to a relay.

    Args:
        size: Bytes of the kernel's buffer for what it receives.
    """

    def __init__(self, relay: Relay, source: str | None = None) -> None:
        self._port, self._source = relay.port, source
        self.salt = b""

    async def __aenter__(self) -> Self:
        local = None if self._source is None else (self._source, 0)
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=local)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def greet(self) -> Self:
        """Read the greeting; raise IncompleteReadError if the connection is closed."""
        greeting = await self.reader.readexactly(128)
        self.salt = greeting[64:108]
        return self

    async def ask(self, kind: int, body: dict[int, Any]) -> Packet:
        """Send a request and return the answer."""
        self.writer.write(encode_packet(kind, 1, body))
        return await self.answer()

    async def answer(self) -> Packet:
        head = await self.reader.readexactly(5)
        return decode_packet(await self.reader.readexactly(int.from_bytes(head[1:], "big")))

    async def is_closed(self, seconds: float = 30.0) -> bool:
        """Wait until the relay closes the connection, ignoring what it sends before."""
        try:
            async with asyncio.timeout(seconds):
                while await self.reader.read(1 << 16):
                    pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True
