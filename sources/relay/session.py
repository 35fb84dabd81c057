"""Answers the requests of one client of the relay.

It answers as Tarantool 2.6.0 answers an anonymous replica: AUTH, PING, VOTE, SELECT of `_cluster` and `_schema`,
FETCH_SNAPSHOT, SUBSCRIBE. For the subscription daemon it supports the extensions of docs/formats.md: a whitelist of
instance uuids, and the exchange of cluster information. Every other request is refused with the error of 2.6.0. No
replica is registered, and nothing is written.

A client must authenticate within some seconds, and until then its packets may have up to 4 KiB. Passwords from one
address are checked one at a time. A client that reads nothing or sends nothing for some time is disconnected.

`server` has the listening socket and refreshes the spool's catalog.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from schemas.cluster_checksum import checksum
from schemas.errors import (
    AggregatorError,
    ConnectionLostError,
    GapError,
    ProtocolError,
    UnknownInstanceError,
)
from schemas.iproto import TYPE_ERROR, VCLOCK_MAX, BallotKey, Command, HeaderKey, MessageKey, SystemSpace
from sources.iproto.greeting import SCRAMBLE_SIZE, scramble_matches
from sources.iproto.kernels.wire import AS_NOP, LEFT_OUT, SENT, UNKNOWN
from sources.iproto.messages import parse_uuid, parse_vclock_map, printable
from sources.iproto.packet import Packet, decode_packet, encode_packet, length_size
from sources.relay.admission import AdmittedConnection, ConnectionLimiter
from sources.relay.options import RELAY_EXTENSIONS_VERSION, RelayOptions
from sources.relay.row_packets import LogPackets, RowFramer, snapshot_packets
from sources.spool.acks import acknowledged_subscribers
from sources.spool.catalog import SpoolCatalog
from sources.spool.spool import ServerVersions
from sources.xlog.format.arrays import Ints

logger = logging.getLogger(__name__)

ACCESS_DENIED, PASSWORD, UNKNOWN_REQUEST, LOADING, GAP, INVALID = 42, 47, 48, 116, 32, 20
TIMED_OUT = 115
UNAUTHENTICATED_LIMIT, REQUEST_LIMIT = 1 << 12, 1 << 16
"""Longest accepted packet before and after authentication, in bytes; nested lists take 75 times as much memory."""
AUTH_METHOD = "chap-sha1"
GUEST_USER = "guest"


class RefusalError(Exception):
    """Refuses a request: the client gets the error as its answer."""

    def __init__(self, code: int, message: str, *, is_last: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.is_last = code, message, is_last


class RelaySession:
    """Answers the requests of one connection."""

    def __init__(
        self,
        options: RelayOptions,
        catalog: SpoolCatalog,
        limiter: ConnectionLimiter,
        admitted: AdmittedConnection,
        salt: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.peer = str(writer.get_extra_info("peername") or "a unix socket")
        self._limiter, self._admitted = limiter, admitted
        self.subscriber: str | None = None
        """Instance uuid of the subscriber; None before SUBSCRIBE."""
        self.acknowledged: dict[int, int] = {}
        self.sent_bytes = 0
        self._options, self._catalog, self._salt = options, catalog, salt
        self._reader, self._writer = reader, writer
        self._user = GUEST_USER
        self._wrong_passwords = 0
        self._last_received_at = self._started_at = time.monotonic()

    @property
    def _is_authenticated(self) -> bool:
        return self._user != GUEST_USER or self._options.allows_guest

    async def run(self) -> None:
        """Answer requests until the connection ends, or until the stream of a subscriber ends."""
        while True:
            packet = await self._read_request()
            if packet is None:
                return
            try:
                await self._answer(packet)
            except RefusalError as refusal:
                logger.info("%s: %s", self.peer, refusal)
                await self._send_refusal(packet.sync, refusal)
                if refusal.is_last:
                    return
            if packet.type == Command.SUBSCRIBE:
                return

    async def _read_request(self) -> Packet | None:
        """Return the client's next request; None if the connection ends or no request comes in time."""
        seconds = self._options.silence_seconds
        if not self._is_authenticated:
            seconds = self._started_at + self._options.limits.authentication_seconds - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await self._read_packet()
        except TimeoutError:
            logger.info("%s: connection closed, no request came in time", self.peer)
            return None

    async def _read_packet(self) -> Packet | None:
        """Read and return one packet, or None if the connection ended; a packet that is too long is not read."""
        limit = REQUEST_LIMIT if self._is_authenticated else UNAUTHENTICATED_LIMIT
        try:
            head = await self._reader.readexactly(1)
            size = length_size(head[0])
            length = head[0]
            if size:
                length = int.from_bytes(await self._reader.readexactly(size), "big")
            if not 0 < length <= limit:
                raise ProtocolError(f"a packet of {length} bytes; the limit is {limit}")
            return decode_packet(await self._reader.readexactly(length))
        except asyncio.IncompleteReadError:
            return None

    async def _answer(self, packet: Packet) -> None:
        match packet.type:
            case Command.PING:
                await self._send(encode_packet(0, packet.sync, {}))
            case Command.AUTH:
                await self._authenticate(packet)
                await self._send(encode_packet(0, packet.sync, {}))
            case Command.VOTE:
                body: dict[int, Any] = {
                    MessageKey.BALLOT: self._ballot_body(),
                    MessageKey.RELAY_EXTENSIONS_VERSION: RELAY_EXTENSIONS_VERSION,
                }
                await self._send(encode_packet(0, packet.sync, body))
            case Command.SELECT:
                self._check_access()
                await self._send(
                    encode_packet(0, packet.sync, {MessageKey.DATA: self._select_tuples(packet.body)})
                )
            case Command.FETCH_SNAPSHOT:
                self._check_access()
                await self._send_snapshot(packet)
            case Command.SUBSCRIBE:
                self._check_access()
                await self._subscribe(packet)
            case _:
                raise RefusalError(UNKNOWN_REQUEST, f"Unknown request type {printable(packet.type)}")

    async def _authenticate(self, packet: Packet) -> None:
        user, raw = _parse_auth(packet)
        address, limits = self._admitted.address, self._options.limits
        wait = self._limiter.seconds_before_password(address, time.monotonic())
        if wait > limits.authentication_seconds:
            raise RefusalError(PASSWORD, "too many passwords from this address", is_last=True)
        await asyncio.sleep(wait)
        password = self._options.users.get(user)
        # A wrong name and a wrong password get the same answer after the same comparison.
        is_right = scramble_matches(raw, "" if password is None else password.read(), self._salt)
        if not is_right or password is None:
            self._wrong_passwords += 1
            self._limiter.wrong_passwords += 1
            if user in self._options.users_of_servers:
                logger.warning(
                    "%s: %s is one of relay.aggregated.readers, who log in to the servers that follow the relay; "
                    "who follows it is one of relay.users",
                    self.peer,
                    user,
                )
            reason = "Incorrect password supplied for user or no such user"
            raise RefusalError(PASSWORD, reason, is_last=self._wrong_passwords >= limits.max_wrong_passwords)
        self._limiter.record_right_password(address)
        self._user, self._admitted.is_unauthenticated = user, False

    def _check_access(self) -> None:
        if self._user == GUEST_USER and not self._options.allows_guest:
            raise RefusalError(ACCESS_DENIED, "Read access to universe '' is denied for user 'guest'")
        if self._catalog.replicaset_uuid is None:
            raise RefusalError(LOADING, "Instance bootstrap hasn't finished yet")
        self._admitted.is_unauthenticated = (
            False  # a guest with the right to subscribe counts as authenticated
        )

    def _ballot_body(self) -> dict[int, Any]:
        return {
            BallotKey.IS_RO_CFG: True,
            BallotKey.IS_LOADING: self._catalog.replicaset_uuid is None,
            BallotKey.VCLOCK: self._catalog.vclock,
            BallotKey.GC_VCLOCK: self._catalog.gc_vclock,
        }

    def _select_tuples(self, body: Mapping[int, Any]) -> list[Any]:
        space, key = body.get(MessageKey.SPACE_ID), body.get(MessageKey.KEY) or []
        if not isinstance(key, list):
            raise RefusalError(INVALID, "Invalid MsgPack - request body")
        rows: list[list[Any]] = []
        if space == SystemSpace.CLUSTER:
            rows = [[id_, uuid] for id_, uuid in sorted(self._catalog.cluster.items())]
        elif space == SystemSpace.SCHEMA:
            rows = [["cluster", self._catalog.replicaset_uuid]]
        else:
            name = printable(space)
            raise RefusalError(ACCESS_DENIED, f"Read access to space '{name}' is denied: this is a relay")
        return [row for row in rows if not key or row[0] == key[0]]

    async def _send_snapshot(self, packet: Packet) -> None:
        if not self._catalog.snapshots:
            raise RefusalError(GAP, "the spool has no snapshot: set keep.snapshot of its daemon")
        newest = self._catalog.snapshots[-1]
        vclock = {i: n for i, n in newest.meta.vclock.items() if i}
        versions = ServerVersions.from_meta(newest.meta, newest.path.name)
        answer: dict[int, Any] = {
            MessageKey.VCLOCK: vclock,
            MessageKey.SERVER_VERSIONS: _encode_versions(versions),
        }
        await self._send(encode_packet(0, packet.sync, answer))
        for data in snapshot_packets(newest.path, packet.sync, self._catalog.limit):
            await self._send(data)
        await self._send(encode_packet(0, packet.sync, {MessageKey.VCLOCK: self._catalog.vclock}))

    async def _subscribe(self, packet: Packet) -> None:
        body = packet.body
        try:
            vclock = parse_vclock_map(body.get(MessageKey.VCLOCK))
            subscriber = parse_uuid(body.get(MessageKey.INSTANCE_UUID))
            _check_filters(body)
        except ProtocolError as error:
            raise RefusalError(INVALID, f"Invalid MsgPack - request body: {error}") from None
        if not body.get(MessageKey.REPLICA_ANON):
            raise RefusalError(UNKNOWN_REQUEST, "only anonymous replicas are served: set replication_anon")
        stored = acknowledged_subscribers(self._options.directory)
        if subscriber not in stored and len(stored) >= self._options.limits.max_subscribers:
            raise RefusalError(
                ACCESS_DENIED, f"{len(stored)} subscribers have acknowledgements: use the uuid of one of them"
            )
        self.subscriber, self._admitted.is_unauthenticated = subscriber, False
        if MessageKey.CLUSTER_CRC32 in body:
            await self._send_cluster_info(packet.sync, body[MessageKey.CLUSTER_CRC32])
        logs = LogPackets(self._catalog, RowFramer(packet.sync, vclock), partial(_row_treatments, body))
        answer: dict[int, Any] = {
            MessageKey.VCLOCK: self._catalog.vclock,
            MessageKey.REPLICASET_UUID: self._catalog.replicaset_uuid,
            MessageKey.SERVER_VERSIONS: _encode_versions(logs.versions),
        }
        if self._catalog.replicaset_name is not None:
            answer[MessageKey.REPLICASET_NAME] = self._catalog.replicaset_name
        acks = asyncio.create_task(self._read_acknowledgements())
        try:
            await self._send(encode_packet(0, packet.sync, answer, {HeaderKey.REPLICA_ID: 0}))
            logger.info("%s: %s subscribed from %s", self.peer, self.subscriber, vclock)
            await self._send_rows(packet, logs, acks)
        finally:
            acks.cancel()
            await asyncio.gather(acks, return_exceptions=True)
            logs.close()

    async def _send_rows(self, packet: Packet, logs: LogPackets, acks: asyncio.Task[None]) -> None:
        beat = 0.0
        while not acks.done():
            is_idle = True
            try:
                for data in logs.unsent_packets():
                    is_idle = False
                    await self._send(data)
            except GapError as gap:
                raise RefusalError(GAP, gap.reason) from None
            except UnknownInstanceError as unknown:
                # The daemon may still write the row of `_cluster`: the subscriber tries again.
                raise RefusalError(LOADING, unknown.reason) from None
            now = time.monotonic()
            if now - self._last_received_at > self._options.silence_seconds:
                raise RefusalError(TIMED_OUT, "timed out")
            if now - beat >= self._options.heartbeat_seconds and is_idle:
                beat = now
                await self._send(encode_packet(0, packet.sync, None, {HeaderKey.TIMESTAMP: time.time()}))
            if is_idle:
                await asyncio.sleep(self._options.poll_seconds)

    async def _read_acknowledgements(self) -> None:
        """Read and store the subscriber's acknowledgements until the connection ends or sends any other packet."""
        while (packet := await self._read_packet()) is not None:
            self._last_received_at = time.monotonic()
            try:
                self.acknowledged.update(parse_vclock_map(packet.body.get(MessageKey.VCLOCK)))
            except AggregatorError:
                return

    async def _send_cluster_info(self, sync: int, subscriber_checksum: object) -> None:
        """Send the spool's {replica id: instance uuid}, or an empty map if the subscriber's has the same checksum."""
        cluster = dict(sorted(self._catalog.cluster.items()))
        if subscriber_checksum == checksum(cluster):
            cluster = {}
        length: dict[int, Any] = {MessageKey.CLUSTER_LENGTH: len(cluster)}
        if not cluster:
            await self._send(encode_packet(Command.CLUSTER_INFO, sync, length))
        for id_, uuid in cluster.items():
            body = length | {MessageKey.REPLICA_ID: id_, MessageKey.INSTANCE_UUID: uuid}
            await self._send(encode_packet(Command.CLUSTER_INFO, sync, body))
            length = {}

    async def _send_refusal(self, sync: int, refusal: RefusalError) -> None:
        body: dict[int, Any] = {MessageKey.ERROR_24: refusal.message}
        await self._send(encode_packet(TYPE_ERROR | refusal.code, sync, body))

    async def _send(self, data: bytes) -> None:
        """Send bytes; if the send buffer is full and the client reads nothing for `silence_seconds`, disconnect it."""
        self.sent_bytes += len(data)
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._options.silence_seconds):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionLostError(
                f"the client read nothing for {self._options.silence_seconds:g} seconds: closed"
            ) from None


def _parse_auth(packet: Packet) -> tuple[str, bytes]:
    """Return the user and the scramble of an AUTH request; raise RefusalError if the request has another form."""
    user, proof = packet.body.get(MessageKey.USER_NAME), packet.body.get(MessageKey.TUPLE)
    if isinstance(user, str) and isinstance(proof, list) and len(proof) == 2 and proof[0] == AUTH_METHOD:
        sent_scramble = proof[1]
        if isinstance(sent_scramble, str):
            sent_scramble = sent_scramble.encode("utf-8", "surrogateescape")
        if isinstance(sent_scramble, bytes) and len(sent_scramble) == SCRAMBLE_SIZE:
            return user, sent_scramble
    raise RefusalError(INVALID, f"Invalid MsgPack - request body: only {AUTH_METHOD} is known", is_last=True)


def _check_filters(body: Mapping[int, Any]) -> None:
    origins, ids = body.get(MessageKey.ORIGINS) or [], body.get(MessageKey.ID_FILTER) or []
    if not isinstance(origins, list) or not all(isinstance(uuid, str) for uuid in origins):
        raise ProtocolError("the origins are not uuids")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < VCLOCK_MAX for i in ids):
        raise ProtocolError("the filter is not a list of replica ids")


def _row_treatments(body: Mapping[int, Any], owners: Mapping[int, str]) -> Ints:
    """Return what happens to the rows of each replica id, as an int64[32] of treatments such as `SENT`."""
    treatments = np.full(VCLOCK_MAX, SENT, np.int64)
    if origins := body.get(MessageKey.ORIGINS):
        treatments[:] = UNKNOWN
        for id_, uuid in owners.items():
            treatments[id_] = SENT if uuid in origins else AS_NOP
    for id_ in body.get(MessageKey.ID_FILTER) or ():
        treatments[id_] = LEFT_OUT
    return treatments


def _encode_versions(versions: ServerVersions) -> list[Any]:
    return [versions.main_version, dict(versions.by_replica_id)]
