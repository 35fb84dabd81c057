"""One subscriber of the relay: what it may ask, and what it is answered.

Speaks as Tarantool 2.6.0 does to an anonymous replica: AUTH, PING, VOTE, SELECT of `_cluster` and `_schema`,
FETCH_SNAPSHOT, SUBSCRIBE; and to a daemon that says so, the extensions of docs/formats.md: a whitelist of instance
uuids that is filtered here, and the exchange of cluster information. Everything else is refused with the error that
2.6.0 gives. Nobody is registered, nothing is written.

Not here: the listening socket, the spool's catalog being kept fresh (`server`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from schemas.cluster_checksum import checksum
from schemas.errors import AggregatorError, GapError, ProtocolError
from schemas.iproto import TYPE_ERROR, VCLOCK_MAX, BallotKey, Command, HeaderKey, MessageKey, SystemSpace
from sources.iproto.greeting import is_scramble_of
from sources.iproto.messages import read_vclock
from sources.iproto.packet import Packet, decode_packet, encode_packet, frame_at
from sources.relay.catalog import Catalog
from sources.relay.options import RELAY_VERSION, RelayOptions
from sources.relay.outflow import Framer, LogFrames, everything, snapshot_frames
from sources.spool.spool import ServerVersions
from sources.xlog.arrays import Ints

logger = logging.getLogger(__name__)

ACCESS_DENIED, PASSWORD, UNKNOWN_REQUEST, LOADING, GAP, INVALID = 42, 47, 48, 116, 32, 20
GUEST = "guest"


class RefusalError(Exception):
    """An answer that is an error.

    Parameters
    ----------
    code : int
        Tarantool's.
    message : str

    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Session:
    """One connection.

    Parameters
    ----------
    options : RelayOptions
    catalog : Catalog
        Of the spool.
    salt : bytes
        Of the greeting that was sent.
    reader, writer
        Its streams.

    """

    def __init__(
        self,
        options: RelayOptions,
        catalog: Catalog,
        salt: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.peer = str(writer.get_extra_info("peername") or "a unix socket")
        self.subscriber: str | None = None
        """Uuid, once it has subscribed."""
        self.acked: dict[int, int] = {}
        self.sent = 0
        """Bytes."""
        self._options, self._catalog, self._salt = options, catalog, salt
        self._reader, self._writer = reader, writer
        self._user = GUEST
        self._data = b""
        self._heard = time.monotonic()

    async def run(self) -> None:
        """Answer until the connection ends."""
        while True:
            packet = await self._packet()
            if packet is None:
                return
            try:
                await self._answer(packet)
            except RefusalError as refusal:
                logger.info("%s: %s", self.peer, refusal)
                await self._refuse(packet.sync, refusal)
                if packet.type == Command.SUBSCRIBE:
                    return

    async def _packet(self) -> Packet | None:
        while (frame := frame_at(self._data, 0, len(self._data))) is None:
            data = await self._reader.read(1 << 16)
            if not data:
                return None
            self._data += data
        packet = decode_packet(self._data[frame[0] : frame[1]])
        self._data = self._data[frame[1] :]
        return packet

    async def _answer(self, packet: Packet) -> None:
        match packet.type:
            case Command.PING:
                await self._send(encode_packet(0, packet.sync, {}))
            case Command.AUTH:
                self._authenticate(packet)
                await self._send(encode_packet(0, packet.sync, {}))
            case Command.VOTE:
                await self._send(encode_packet(0, packet.sync, {MessageKey.BALLOT: self._ballot()}))
            case Command.ID:
                body: dict[int, Any] = {
                    MessageKey.VERSION: 0,
                    MessageKey.FEATURES: [],
                    MessageKey.RELAY_VERSION: RELAY_VERSION,
                }
                await self._send(encode_packet(0, packet.sync, body))
            case Command.SELECT:
                self._check_rights()
                await self._send(encode_packet(0, packet.sync, {MessageKey.DATA: self._select(packet.body)}))
            case Command.FETCH_SNAPSHOT:
                self._check_rights()
                await self._send_snapshot(packet)
            case Command.SUBSCRIBE:
                self._check_rights()
                await self._subscribe(packet)
            case _:
                raise RefusalError(UNKNOWN_REQUEST, f"Unknown request type {packet.type}")

    def _authenticate(self, packet: Packet) -> None:
        user = packet.body.get(MessageKey.USER_NAME)
        proof = packet.body.get(MessageKey.TUPLE)
        password = self._options.users.get(user) if isinstance(user, str) else None
        given = proof[1] if isinstance(proof, list) and len(proof) == 2 and proof[0] == "chap-sha1" else ""
        raw = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else bytes(given)
        # One answer for a wrong name and a wrong password; the comparison is made in both cases.
        if (
            not is_scramble_of(raw, "" if password is None else password.read(), self._salt)
            or password is None
        ):
            raise RefusalError(PASSWORD, "Incorrect password supplied for user or no such user")
        self._user = str(user)

    def _check_rights(self) -> None:
        if self._user == GUEST and not self._options.guest:
            raise RefusalError(ACCESS_DENIED, "Read access to universe '' is denied for user 'guest'")
        if self._catalog.replicaset_uuid is None:
            raise RefusalError(LOADING, "Instance bootstrap hasn't finished yet")

    def _ballot(self) -> dict[int, Any]:
        return {
            BallotKey.IS_RO_CFG: True,
            BallotKey.IS_LOADING: self._catalog.replicaset_uuid is None,
            BallotKey.VCLOCK: self._catalog.vclock,
            BallotKey.GC_VCLOCK: self._catalog.gc_vclock,
        }

    def _select(self, body: Mapping[int, Any]) -> list[Any]:
        space, key = body.get(MessageKey.SPACE_ID), body.get(MessageKey.KEY)
        rows: list[list[Any]] = []
        if space == SystemSpace.CLUSTER:
            rows = [[id_, uuid] for id_, uuid in sorted(self._catalog.cluster.items())]
        elif space == SystemSpace.SCHEMA:
            rows = [["cluster", self._catalog.replicaset_uuid]]
        else:
            raise RefusalError(ACCESS_DENIED, f"Read access to space '{space}' is denied: this is a relay")
        return [row for row in rows if not key or row[0] == key[0]]

    async def _send_snapshot(self, packet: Packet) -> None:
        if not self._catalog.snapshots:
            raise RefusalError(GAP, "the spool has no snapshot: set keep.snapshot of its daemon")
        newest = self._catalog.snapshots[-1]
        vclock = {i: n for i, n in newest.meta.vclock.items() if i}
        versions = ServerVersions.of(newest.meta, newest.path.name)
        answer: dict[int, Any] = {MessageKey.VCLOCK: vclock, MessageKey.SERVER_VERSIONS: _packed(versions)}
        await self._send(encode_packet(0, packet.sync, answer))
        for data in snapshot_frames(newest.path, packet.sync, self._catalog.limit):
            await self._send(data)
        await self._send(encode_packet(0, packet.sync, {MessageKey.VCLOCK: self._catalog.vclock}))

    async def _subscribe(self, packet: Packet) -> None:
        body = packet.body
        try:
            vclock = read_vclock(body.get(MessageKey.VCLOCK))
            self.subscriber = str(UUID(body[MessageKey.INSTANCE_UUID]))
        except (ProtocolError, KeyError, ValueError, AttributeError, TypeError) as error:
            raise RefusalError(INVALID, f"Invalid MsgPack - request body: {error}") from None
        if not body.get(MessageKey.REPLICA_ANON):
            raise RefusalError(UNKNOWN_REQUEST, "only anonymous replicas are served: set replication_anon")
        if MessageKey.CLUSTER_CRC32 in body:
            await self._exchange(packet.sync, body[MessageKey.CLUSTER_CRC32])
        framer = Framer(packet.sync, vclock, self._filter(body, everything()))
        logs = LogFrames(self._catalog, framer)
        answer: dict[int, Any] = {
            MessageKey.VCLOCK: self._catalog.vclock,
            MessageKey.REPLICASET_UUID: self._catalog.replicaset_uuid,
            MessageKey.SERVER_VERSIONS: _packed(logs.versions),
        }
        acks = asyncio.create_task(self._listen())
        try:
            await self._send(encode_packet(0, packet.sync, answer, {HeaderKey.REPLICA_ID: 0}))
            logger.info("%s: %s subscribed from %s", self.peer, self.subscriber, vclock)
            await self._send_rows(packet, framer, logs, acks)
        finally:
            acks.cancel()
            logs.close()

    async def _send_rows(
        self, packet: Packet, framer: Framer, logs: LogFrames, acks: asyncio.Task[None]
    ) -> None:
        beat = 0.0
        while not acks.done():
            self._filter(packet.body, framer.wanted)
            is_idle = True
            try:
                for data in logs.more():
                    is_idle = False
                    await self._send(data)
            except GapError as gap:
                raise RefusalError(GAP, gap.reason) from None
            now = time.monotonic()
            if now - self._heard > self._options.silence:
                raise RefusalError(115, "timed out")
            if now - beat >= self._options.heartbeat and is_idle:
                beat = now
                await self._send(encode_packet(0, packet.sync, None, {HeaderKey.TIMESTAMP: time.time()}))
            if is_idle:
                await asyncio.sleep(self._options.poll)

    async def _listen(self) -> None:
        """Take acknowledgements until the connection ends."""
        while (packet := await self._packet()) is not None:
            self._heard = time.monotonic()
            try:
                self.acked.update(read_vclock(packet.body.get(MessageKey.VCLOCK)))
            except AggregatorError:
                return

    def _filter(self, body: Mapping[int, Any], wanted: Ints) -> Ints:
        """Return which ids are wanted; an id that was stays so, though its instance be expelled."""
        origins = body.get(MessageKey.ORIGINS)
        if origins:
            known = [id_ for id_, uuid in self._catalog.cluster.items() if uuid in origins]
            before = wanted.copy() if not wanted.all() else wanted * 0
            wanted[:] = before
            wanted[known] = 1
        for id_ in body.get(MessageKey.ID_FILTER) or ():
            if not isinstance(id_, int) or not 0 <= id_ < VCLOCK_MAX:
                raise RefusalError(INVALID, "Invalid MsgPack - request body")
            wanted[id_] = 0
        return wanted

    async def _exchange(self, sync: int, theirs: object) -> None:
        """Send whose ids there are, unless the subscriber knows: its checksum is the same."""
        cluster = dict(sorted(self._catalog.cluster.items()))
        if theirs == checksum(cluster):
            cluster = {}
        length: dict[int, Any] = {MessageKey.CLUSTER_LENGTH: len(cluster)}
        if not cluster:
            await self._send(encode_packet(Command.CLUSTER_INFO, sync, length))
        for id_, uuid in cluster.items():
            body = length | {MessageKey.REPLICA_ID: id_, MessageKey.INSTANCE_UUID: uuid}
            await self._send(encode_packet(Command.CLUSTER_INFO, sync, body))
            length = {}

    async def _refuse(self, sync: int, refusal: RefusalError) -> None:
        body: dict[int, Any] = {MessageKey.ERROR_24: refusal.message}
        await self._send(encode_packet(TYPE_ERROR | refusal.code, sync, body))

    async def _send(self, data: bytes) -> None:
        self.sent += len(data)
        self._writer.write(data)
        await self._writer.drain()


def _packed(versions: ServerVersions) -> list[Any]:
    return [versions.version, dict(versions.by_origin)]
