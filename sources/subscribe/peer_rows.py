"""Receives the rows of one peer: its stream (SUBSCRIBE), or its snapshot (FETCH_SNAPSHOT).

A stream has a connection of its own, acknowledges rows, and can be paused. `assignment` decides which replica ids it
has; `replicaset` writes its rows. A snapshot is written to the spool as a `.snap` file. The server sends a vclock
before the snapshot's rows and a newer one after them; SUBSCRIBE continues from the first one, which is the snapshot's.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from schemas.cluster_checksum import checksum
from schemas.errors import (
    AggregatorError,
    ConnectionLostError,
    GapError,
    PeerError,
    ProtocolError,
    ServerBusyError,
    SpoolError,
)
from schemas.iproto import MessageKey
from sources.iproto.client import Connection, connect
from sources.iproto.messages import Ballot, Subscription, answer_vclock, parse_cluster_info
from sources.iproto.packet import Packet
from sources.iproto.row_stream import RowStream, SnapshotStream, TransactionChunk
from sources.spool.disk_space import DISK_FULL_ERRNOS, DiskSpace
from sources.spool.spool import ServerVersions, Spool
from sources.subscribe.assignment import peer_fitness, start_vclock
from sources.subscribe.merge import StreamQueue
from sources.subscribe.options import Timing
from sources.subscribe.peer_state import PeerLink
from sources.subscribe.rewind import PeerHistory, compare_history
from sources.xlog.format.arrays import Bytes
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.vclock import is_at_most, without_local
from sources.xlog.format.writer import XlogWriter

logger = logging.getLogger(__name__)

REACH_SECONDS = 60.0
"""How long a snapshot next to the logs waits until the logs have reached it."""

DISK_CHECK_SECONDS = 0.05
"""Seconds between two checks of the disk while a snapshot is received."""


class PeerFeed:
    """A running subscription to one peer; `start_feed` creates it.

    `ids` are the replica ids whose rows the peer sends (None: all). `connection` is used by this stream only.
    """

    def __init__(
        self, link: PeerLink, ids: frozenset[int] | None, rows: RowStream, connection: Connection
    ) -> None:
        self.link, self.ids, self.rows = link, ids, rows
        self.queue = StreamQueue(ids, {})
        self.versions = ServerVersions(".".join(map(str, connection.greeting.version)))
        """Versions of the servers that made the rows: the peer's version, or the versions that a relay names."""
        self._connection = connection
        self.clock_ahead_seconds = 0.0
        """By how many seconds timestamps of rows exceeded the allowed clock skew when this was last logged."""
        self._is_paused = False
        self._started_at = asyncio.get_running_loop().time()

    @property
    def age_seconds(self) -> float:
        """Seconds since the stream began."""
        return asyncio.get_running_loop().time() - self._started_at

    @property
    def error(self) -> AggregatorError | None:
        """Why the stream ended; None while it runs."""
        end = self._connection.wire.end_of_stream
        if not end.done():
            return None
        error = end.exception()
        if isinstance(error, AggregatorError):
            return error
        return ProtocolError(f"the stream ended: {error or 'by an answer'}", peer=self.link.name)

    @property
    def is_silent(self) -> bool:
        """Whether the server sent nothing for `Timing.answer_seconds`, not even a heartbeat, while not paused."""
        loop = asyncio.get_running_loop()
        return (
            not self._is_paused
            and loop.time() - self._connection.wire.last_received_at > self.link.timing.answer_seconds
        )

    def set_paused(self, is_paused: bool) -> None:
        """Pause or resume reading; acknowledgements are sent in both states."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._connection.wire.last_received_at = asyncio.get_running_loop().time()
            self._connection.wire.set_paused(is_paused)

    def acknowledge(self, vclock: Mapping[int, int]) -> None:
        """Send the server an acknowledgement of the rows up to a vclock."""
        self._connection.acknowledge(vclock, to_relay=self.link.is_relay)

    def close(self) -> None:
        """End the stream by closing its connection."""
        self._connection.close()


async def start_feed(
    link: PeerLink,
    ids: frozenset[int] | None,
    checked_ids: frozenset[int],
    vclock: Mapping[int, int],
    instance_uuid: str,
    timing: Timing,
    origins: frozenset[str],
    on_chunk: Callable[[PeerFeed, TransactionChunk], None],
    history: PeerHistory,
    limit: int = BLOCK_LIMIT,
) -> PeerFeed:
    """Check that a peer has the needed rows, subscribe to it from a vclock on, and return the running stream.

    Args:
        checked_ids: Ids for which a new VOTE must show that the peer has all rows that the spool has, and the logs with
            the rows after them.
        origins: Uuids of the instances whose rows a relay sends; empty: all. A Tarantool sends all rows.

    Raises:
        RewindError: The peer's rows differ from those that it sent before.
        IprotoError: The server refused, or the connection broke.
    """
    feed: PeerFeed
    early_chunks: list[TransactionChunk] = []

    def receive(chunk: TransactionChunk) -> None:
        # The first rows may come in the same read as the answer, before `feed` is set.
        if is_started:
            on_chunk(feed, chunk)
        else:
            early_chunks.append(chunk)

    is_started = False
    connection = await connect(link.peer, timing.answer_seconds)
    try:
        if connection.greeting.instance_uuid != link.uuid:
            raise ConnectionLostError("another instance answers at this address now", peer=link.name)
        ballot = await connection.request_ballot()
        _check_peer_has_rows(link, ballot, checked_ids, vclock)
        await _check_history(link, ballot, checked_ids, vclock, instance_uuid, history, limit)
        rows = RowStream(vclock, receive, link.name, limit)
        start = start_vclock(ballot, vclock, ids)
        subscription = Subscription(link.replicaset_uuid or "", instance_uuid, start, link.version, ids)
        if link.is_relay:
            subscription = replace(subscription, cluster_crc32=checksum(link.cluster), origins=origins)
        answer = await connection.subscribe(subscription, rows)
        replicaset = answer.body.get(MessageKey.REPLICASET_UUID)
        if replicaset is not None and replicaset != link.replicaset_uuid:
            raise PeerError(f"the server is of replicaset {replicaset}", peer=link.name)
        link.cluster = parse_cluster_info(connection.wire.cluster_info) or link.cluster
    except BaseException:
        connection.close()
        raise
    feed = PeerFeed(link, ids, rows, connection)
    feed.queue.received_vclock.update(vclock)
    feed.versions = parse_relay_versions(answer) or feed.versions
    is_started = True
    for chunk in early_chunks:
        on_chunk(feed, chunk)
    return feed


async def _check_history(
    link: PeerLink,
    ballot: Ballot,
    ids: frozenset[int],
    vclock: Mapping[int, int],
    instance_uuid: str,
    history: PeerHistory,
    limit: int,
) -> None:
    """Compare a peer's rows with those that it sent before, unless this was done since `link` connected."""
    if link.verified_connection == link.connection_count or link.uuid is None:
        return
    fingerprints = {
        i: fingerprints
        for i, fingerprints in history.comparable_fingerprints(link.uuid, ballot, vclock).items()
        if i in ids
    }
    if fingerprints:
        connection = await connect(link.peer, link.timing.answer_seconds)
        try:
            if connection.greeting.instance_uuid != link.uuid:
                raise ConnectionLostError("another instance answers at this address now", peer=link.name)
            await compare_history(connection, link, instance_uuid, fingerprints, ballot, limit)
        finally:
            connection.close()
    link.verified_connection = link.connection_count


def parse_relay_versions(answer: Packet) -> ServerVersions | None:
    """Return the server versions in a relay's answer; None for an answer of a Tarantool, which has none."""
    versions = answer.body.get(MessageKey.SERVER_VERSIONS)
    if versions is None:
        return None
    try:
        version, by_replica_id = versions
        return ServerVersions(str(version), {int(i): str(text) for i, text in by_replica_id.items()})
    except (TypeError, ValueError, AttributeError):
        raise ProtocolError(f"the server versions of a relay are not {{id: version}}: {versions!r}") from None


def combined_versions(feeds: Collection[PeerFeed]) -> ServerVersions:
    """Return the newest version of the peers, and the version of each replica id whose rows come from another version.

    A row counts as of the version of the peer that sends it; its operations are applied by the rules of that version.
    """
    newest = max((feed.versions.main_version for feed in feeds), key=_version_numbers)
    by_replica_id: dict[int, str] = {}
    for feed in feeds:
        by_replica_id |= dict.fromkeys(feed.ids or (), feed.versions.main_version) | dict(
            feed.versions.by_replica_id
        )
    return ServerVersions(newest, {i: version for i, version in by_replica_id.items() if version != newest})


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _check_peer_has_rows(
    link: PeerLink, ballot: Ballot, ids: frozenset[int], vclock: Mapping[int, int]
) -> None:
    """Raise an error if the peer lacks logs after the vclock, or rows up to it; some servers do not report this."""
    fitness = peer_fitness(ballot, vclock, ids)
    if fitness.lost_log_starts:
        id_, oldest = next(iter(fitness.lost_log_starts.items()))
        raise GapError(
            "the server no longer has the logs",
            peer=link.name,
            replica_id=id_,
            wanted=vclock.get(id_, 0) + 1,
            oldest=oldest + 1,
        )
    if fitness.last_lsns_behind:
        id_, lsn = next(iter(fitness.last_lsns_behind.items()))
        raise ServerBusyError(
            f"the server is behind: it has {lsn} rows of replica id {id_}, we {vclock[id_]}", peer=link.name
        )


class _SnapshotWriter:
    """Writes a snapshot's rows to a file; rows that arrive before the file is open wait in memory."""

    def __init__(self, disk_space: DiskSpace) -> None:
        self._disk_space = disk_space
        self._early: list[Bytes] = []
        self._writer: XlogWriter | None = None

    def open(self, writer: XlogWriter) -> None:
        self._writer = writer
        for rows in self._early:
            writer.write_block(rows.tobytes())
        self._early.clear()

    def write(self, rows: Bytes) -> None:
        if self._writer is None:
            self._early.append(rows)
            return
        try:
            self._writer.write_block(rows.tobytes())
        except OSError as error:
            raise _snapshot_error(error, self._writer, self._disk_space) from error


def _snapshot_error(error: OSError, writer: XlogWriter, disk_space: DiskSpace) -> SpoolError:
    if error.errno in DISK_FULL_ERRNOS:
        return disk_space.full_error(writer.position, error.strerror or "no room")
    return SpoolError(f"the snapshot cannot be written: {error}", file=str(writer.path))


async def _await_logs(spool: Spool, vclock: Mapping[int, int]) -> None:
    try:
        async with asyncio.timeout(REACH_SECONDS):
            while not is_at_most(without_local(vclock), spool.vclock or {}):
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise SpoolError(
            f"the logs are at {spool.vclock}, and have not reached the snapshot at {dict(vclock)} in "
            f"{REACH_SECONDS:.0f} s",
            spool=str(spool.directory),
        ) from None


async def fetch_snapshot(
    link: PeerLink, spool: Spool, disk_space: DiskSpace, *, beside_logs: bool = False
) -> Mapping[int, int]:
    """Write a server's snapshot to a spool, make the spool continue from it, and return the snapshot's vclock.

    After an error, the spool is unchanged.

    Args:
        beside_logs: Whether the spool continues its logs instead. The snapshot is complete when the logs have reached
            it: so none is newer than the logs, as the first file of a generation is.

    Raises:
        IprotoError: The server refused, or the connection broke.
        SpoolFullError: The disk has too little space for the snapshot.
        SpoolError: The snapshot cannot be written.
    """
    disk_space.check_snapshot_fits()
    output = _SnapshotWriter(disk_space)
    rows = SnapshotStream(output.write, link.name, limit=spool.options.max_block_bytes)
    # A server with pending synchronous transactions answers after they are confirmed or rolled back.
    connection = await connect(link.peer, link.timing.answer_seconds)
    try:
        answer = await connection.fetch_snapshot(rows, spool.instance_uuid or "")
        vclock = answer_vclock(answer)
        server_versions = ServerVersions(".".join(map(str, connection.greeting.version)))
        versions = parse_relay_versions(answer) or server_versions
        if not beside_logs:
            spool.versions = versions
        writer = spool.create_snapshot(vclock, versions)
        try:
            output.open(writer)
            end = connection.wire.end_of_stream
            while not end.done():
                await asyncio.wait([end], timeout=DISK_CHECK_SECONDS)
                disk_space.check_snapshot_fits(writer.position)
                if (
                    asyncio.get_running_loop().time() - connection.wire.last_received_at
                    > 4 * link.timing.answer_seconds
                ):
                    raise ConnectionLostError("the server stopped sending the snapshot", peer=link.name)
            end.result()
            if beside_logs:
                await _await_logs(spool, vclock)
            writer.close()
        except BaseException as error:
            with contextlib.suppress(OSError):
                writer.abandon()
                writer.path.with_name(writer.path.name + ".inprogress").unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _snapshot_error(error, writer, disk_space) from error
            raise
    finally:
        connection.close()
    if not beside_logs:
        spool.continue_from(vclock)
    logger.info("%s: snapshot of %d rows at %s", link.name, rows.row_count, dict(vclock))
    return vclock
