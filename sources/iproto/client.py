"""One connection to one server: sends requests, returns answers, and begins streams of rows.

`connect` reads the greeting and authenticates. Requests are answered in order. After `subscribe` the server sends only
rows, and the connection sends only acknowledgements. The caller must send acknowledgements regularly, even if it
reads no rows, because a server disconnects a subscriber that is silent for four times its `replication_timeout`.

`packet`, `messages` and `row_stream` decode bytes; `sources.subscribe` decides which requests are sent.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import ConnectionLostError, PeerError
from schemas.iproto import Command, MessageKey, SystemSpace
from sources.iproto import messages
from sources.iproto.address import Peer
from sources.iproto.greeting import Greeting, scramble
from sources.iproto.packet import Packet, encode_packet
from sources.iproto.row_stream import Sink
from sources.iproto.wire import WireProtocol


class Connection:
    """An authenticated connection to a server; `connect` creates it."""

    def __init__(self, peer: Peer, wire: WireProtocol, greeting: Greeting, timeout: float) -> None:
        self.peer, self.wire, self.greeting = peer, wire, greeting
        self._timeout = timeout
        self._sync = 0
        self._unanswered, self._unanswered_since = 0, 0.0
        self.answer_seconds = 0.0
        """Seconds in which a request waited for its answer: the most that this connection has taken of the server."""

    async def request(
        self,
        command: Command,
        body: Mapping[int, Any] | None = None,
        sink: Sink | None = None,
        *,
        is_body_raw: bool = False,
    ) -> Packet:
        """Send a request and return its answer.

        If a stream follows the answer, `sink` receives it. With `is_body_raw`, the body of the answer stays undecoded
        (`Packet.raw_body`) and may have up to `PACKET_MAX_BYTES` bytes.

        Raises:
            IprotoError: The server refused, did not answer in time, or the connection broke.
        """
        self._sync += 1
        transport = self.wire.transport
        answer = self.wire.expect_answer(sink, is_body_raw=is_body_raw)
        transport.write(encode_packet(command, self._sync, body))
        if not self._unanswered:
            self._unanswered_since = time.monotonic()
        self._unanswered += 1
        try:
            async with asyncio.timeout(self._timeout):  # wait_for may swallow a cancellation
                return await answer
        except TimeoutError:
            error = ConnectionLostError(f"no answer in {self._timeout:g} seconds", peer=self.peer.name)
            self.wire.abort(error)
            raise error from None
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self.answer_seconds += time.monotonic() - self._unanswered_since

    async def request_ballot(self) -> messages.Ballot:
        """Send VOTE and return the answer: the server's vclock, where its oldest log begins, whether it is loading."""
        return messages.parse_ballot(await self.request(Command.VOTE), self.greeting.version)

    async def select(self, space: SystemSpace, key: Sequence[Any] = ()) -> list[Any]:
        """Return the tuples of a system space with this primary key, or all tuples if the key is empty."""
        return messages.parse_tuples(await self.request(Command.SELECT, messages.select_body(space, key)))

    async def replicaset_uuid(self) -> str:
        """Return the uuid of the server's replicaset, from `_schema`."""
        for key in ("replicaset_uuid", "cluster"):  # the key in 3.x, and in versions before
            uuid = messages.parse_replicaset_uuid(await self.select(SystemSpace.SCHEMA, (key,)))
            if uuid is not None:
                return uuid
        raise PeerError("the server belongs to no replicaset yet", peer=self.peer.name)

    async def cluster(self) -> dict[int, str]:
        """Return {replica id: instance uuid}, from `_cluster`."""
        return messages.parse_cluster(await self.select(SystemSpace.CLUSTER))

    async def retained_logs_vclock(self, instance_uuid: str) -> dict[int, int] | None:
        """Return the vclock after which the server retains its logs for a subscriber; None if it retains none."""
        if self.greeting.version < messages.KEEPS_LOGS_SINCE:
            return None
        return messages.parse_gc_consumer(await self.select(SystemSpace.GC_CONSUMERS, (instance_uuid,)))

    async def fetch_snapshot(self, sink: Sink, instance_uuid: str) -> Packet:
        """Send FETCH_SNAPSHOT and return its answer, which has the vclock from which SUBSCRIBE continues.

        The sink receives the snapshot's rows; after the last row the future `wire.end_of_stream` is done.
        `instance_uuid` must be the uuid under which `subscribe` is called later.
        """
        self._check_version()
        body = messages.fetch_snapshot_body(instance_uuid, self.greeting.version)
        return await self.request(Command.FETCH_SNAPSHOT, body, sink)

    async def subscribe(self, subscription: messages.Subscription, sink: Sink) -> Packet:
        """Send SUBSCRIBE and return its answer; then the sink receives rows until the connection ends."""
        self._check_version()
        if subscription.cluster_crc32 is not None:
            self.wire.allow_cluster_info()
        return await self.request(Command.SUBSCRIBE, subscription.body(), sink)

    async def is_relay(self) -> bool:
        """Return whether the server is a relay (`sources.relay`), which supports extensions of Tarantool's protocol.

        A relay says so in its answer to VOTE. Versions before 2.10 log an error for a request of the type ID.
        """
        return MessageKey.RELAY_EXTENSIONS_VERSION in (await self.request(Command.VOTE)).body

    def acknowledge(self, vclock: Mapping[int, int], *, to_relay: bool = False) -> None:
        """Send an acknowledgement of all rows up to a vclock; if the connection is closed, do nothing.

        Some server versions get an empty vclock instead (`messages.ack_body`).
        """
        with contextlib.suppress(ConnectionLostError):
            body = messages.ack_body(vclock, self.greeting.version, to_relay=to_relay)
            self.wire.transport.write(encode_packet(0, 0, body))

    def close(self) -> None:
        """Close the connection."""
        self.wire.abort(ConnectionLostError("closed by this program", peer=self.peer.name))

    def _check_version(self) -> None:
        """Raise PeerError if the server is too old for anonymous subscribers that filter rows by replica id."""
        if self.greeting.version < messages.ANONYMOUS_SINCE:
            version = ".".join(map(str, self.greeting.version))
            raise PeerError(
                f"Tarantool {version} does not support anonymous subscribers with a filter",
                peer=self.peer.name,
                advice="2.4.1 is the first that does; read the server's log directory instead",
            )


async def connect(peer: Peer, timeout: float) -> Connection:
    """Connect to a server, read its greeting, authenticate if the peer has a user, and return the connection.

    Raises:
        IprotoError: Nothing listens at the address, the service is not a Tarantool, or the server refuses the user.
    """
    wire: WireProtocol | None = None
    try:
        async with asyncio.timeout(timeout):
            wire = await _open_wire(peer)
            greeting = await wire.greeting
    except TimeoutError:
        _abort_if_open(wire)
        raise ConnectionLostError(f"no greeting in {timeout:g} seconds", peer=peer.name) from None
    except OSError as error:
        raise ConnectionLostError(f"cannot connect: {error}", peer=peer.name) from error
    except BaseException:
        _abort_if_open(wire)
        raise
    connection = Connection(peer, wire, greeting, timeout)
    if peer.user is not None:
        try:
            proof = scramble(peer.password.read(), greeting.salt)
            await connection.request(Command.AUTH, messages.auth_body(peer.user, proof))
        except BaseException:
            connection.close()
            raise
    return connection


def _abort_if_open(wire: WireProtocol | None) -> None:
    if wire is not None:
        wire.abort(ConnectionLostError("connecting was given up", peer=wire.peer))


async def _open_wire(peer: Peer) -> WireProtocol:
    loop = asyncio.get_running_loop()
    context = peer.tls.client_context() if peer.tls is not None else None
    name = peer.tls.server_name if peer.tls is not None else None
    address = peer.address

    def new_protocol() -> WireProtocol:
        return WireProtocol(peer.name)

    if address.path is not None:
        name = name or ("localhost" if context else None)
        _, protocol = await loop.create_unix_connection(
            new_protocol, address.path, ssl=context, server_hostname=name
        )
    else:
        _, protocol = await loop.create_connection(
            new_protocol,
            address.host or "",
            address.port,
            ssl=context,
            server_hostname=name if context else None,
        )
    return protocol
