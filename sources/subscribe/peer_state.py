"""Tracks the state of one peer: a connection of its own polls the peer's ballot (VOTE) and `_cluster`.

These requests need a connection without a stream, because a connection with a stream accepts only acknowledgements. A
peer that does not answer in time counts as disconnected even if its socket is open, because a frozen server accepts
connections but sends no greeting.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from schemas.cluster_checksum import checksum
from schemas.errors import AggregatorError, ConnectionLostError, ServerError
from sources.iproto.address import Peer
from sources.iproto.client import Connection, connect
from sources.iproto.messages import Ballot
from sources.spool.spool import Spool
from sources.subscribe.options import Timing

logger = logging.getLogger(__name__)

RETENTION_POLL_SECONDS = 5.0
"""Seconds between two requests for the vclock after which a peer retains logs for this daemon."""


class Backoff:
    """Computes how long to wait before a failed attempt is repeated.

    Waits are random, so that daemons that lost the same server do not all reconnect at one moment. The first wait is
    `min_seconds`. The upper bound of each wait is twice the bound before, up to `max_seconds`.
    """

    def __init__(self, min_seconds: float, max_seconds: float) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max(min_seconds, max_seconds)
        self.reset()

    def reset(self) -> None:
        """Forget the failures, after a success: the next wait is short again."""
        self._bound_seconds = self._min_seconds

    def next_wait_seconds(self) -> float:
        """Count one more failure, and return how many seconds to wait before the next attempt."""
        bound = self._bound_seconds
        self._bound_seconds = min(2 * bound, self._max_seconds)
        return random.uniform(self._min_seconds, bound)


@dataclass(frozen=True)
class LeftOut:
    """Why no rows are taken from a peer."""

    reason: str
    since: float
    """When the peer was first left out, for whatever reason; seconds since 1970."""
    is_decided: bool = False
    """Whether the peer answers, and its ballot is the reason."""


class PeerLink:
    """The state of one peer, from its last answers.

    `spool` has the vclock of the received rows, and the uuid under which the daemon subscribes. When the peer connects,
    disconnects or sends a ballot, `on_change` is called with the link and a time in seconds since 1970 UTC: that of the
    VOTE request, or of the disconnect.
    """

    def __init__(
        self,
        peer: Peer,
        timing: Timing,
        spool: Spool,
        on_change: Callable[[PeerLink, float], None],
    ) -> None:
        self.peer = peer
        self.uuid: str | None = None
        """The peer's instance uuid, from the last greeting."""
        self.version: tuple[int, int, int] = (0, 0, 0)
        self.is_relay = False
        self.replicaset_uuid: str | None = None
        self.cluster: Mapping[int, str] = {}
        """{replica id: instance uuid}, from the peer's `_cluster`."""
        self.ballot: Ballot | None = None
        """The peer's last ballot; None if it is not connected, or not ready to send rows."""
        self.spool_vclock_at_vote: Mapping[int, int] = {}
        """The spool's vclock when the ballot was requested; later the spool may have more rows."""
        self.error: AggregatorError | None = None
        """Why the peer is not connected, or why its stream ended."""
        self.left_out: LeftOut | None = LeftOut("the daemon has not reached it yet", time.time())
        """Why no rows are taken from the peer; None if they are, or could be."""
        self._logged_reason: str | None = None
        self.heard_at = time.time()
        """When the peer last sent a ballot, or the daemon began to ask for one; seconds since 1970."""
        self.connection_count = 0
        """How often this link has connected to the peer."""
        self.verified_connection = 0
        """The `connection_count` at which the peer's rows were last compared with its history."""
        self.timing, self._spool, self._on_change = timing, spool, on_change
        self.retained_vclock: Mapping[int, int] | None = None
        """The vclock after which the peer retains logs for this daemon; None if it retains none, or if not known."""
        self._next_retention_request = 0.0
        self._checksum: int | None = None
        self._backoff = Backoff(timing.min_retry_seconds, timing.max_retry_seconds)
        self._stream_backoff = Backoff(timing.poll_seconds, timing.max_retry_seconds)
        self._feeds_not_before = 0.0
        """Time of the loop's clock until which the peer's answers are ignored, because its stream has failed."""

    @property
    def name(self) -> str:
        """The peer's address."""
        return self.peer.name

    async def run(self) -> None:
        """Poll the peer until cancelled; reconnect after errors."""
        while True:
            connection: Connection | None = None
            try:
                connection = await connect(self.peer, self.timing.answer_seconds)
                await self._poll(connection)
            except AggregatorError as error:
                self._record_disconnect(error)
            finally:
                if connection is not None:
                    connection.close()
            await asyncio.sleep(self._backoff.next_wait_seconds())

    async def _poll(self, connection: Connection) -> None:
        self.is_relay = await connection.is_relay()
        self.uuid, self.version = connection.greeting.instance_uuid, connection.greeting.version
        self._checksum, self.retained_vclock, self._next_retention_request = None, None, 0.0
        self.connection_count += 1
        while True:
            asked_at, spool_vclock_at_vote = time.time(), dict(self._spool.vclock or {})
            ballot = await connection.request_ballot()
            self.heard_at = time.time()
            if ballot.is_loading:
                self.leave_out("the server is loading its data, or has none yet")
            elif asyncio.get_running_loop().time() >= self._feeds_not_before:
                await self._record_ballot(ballot, spool_vclock_at_vote, connection)
                self._on_change(self, asked_at)
            await asyncio.sleep(self.timing.poll_seconds)

    def leave_out(self, reason: str, *, is_decided: bool = False, log_after_seconds: float = 0.0) -> None:
        """Record why no rows are taken from the peer, and log a reason that has lasted for some seconds."""
        before, now = self.left_out, time.time()
        since = now if is_decided else self.heard_at  # a peer that is silent is so before it is noticed
        self.left_out = LeftOut(reason, since if before is None else before.since, is_decided)
        if reason != self._logged_reason and now - self.left_out.since >= log_after_seconds:
            self._logged_reason = reason
            logger.warning("%s is left out: %s", self.name, reason)

    def take_in(self) -> None:
        """Record that rows of the peer are taken, or could be."""
        if self._logged_reason is not None:
            logger.info("%s can be used again", self.name)
        self.left_out = self._logged_reason = None

    async def _record_ballot(
        self, ballot: Ballot, spool_vclock_at_vote: Mapping[int, int], connection: Connection
    ) -> None:
        previous = self.ballot
        if self._checksum is None or previous is None or previous.vclock.keys() != ballot.vclock.keys():
            self.replicaset_uuid = await connection.replicaset_uuid()
        # Read each time: the vclock does not change when an id is assigned to another instance.
        await self._read_cluster(connection)
        await self._read_retained_vclock(connection)
        self.ballot, self.spool_vclock_at_vote, self.error = ballot, spool_vclock_at_vote, None
        self._backoff.reset()
        if self.left_out is not None and not self.left_out.is_decided:
            self.take_in()
        if previous is None:
            logger.info("%s: connected, instance %s", self.name, self.uuid)

    async def _read_cluster(self, connection: Connection) -> None:
        """Read `_cluster` into `self.cluster`; if its checksum is unchanged, keep the old object."""
        cluster = await connection.cluster()
        if checksum(cluster) != self._checksum:
            self.cluster, self._checksum = cluster, checksum(cluster)

    async def _read_retained_vclock(self, connection: Connection) -> None:
        """Request the vclock after which the peer retains logs for this daemon; only the status uses it."""
        now, uuid = asyncio.get_running_loop().time(), self._spool.instance_uuid
        if uuid is not None and now >= self._next_retention_request:
            self._next_retention_request = now + RETENTION_POLL_SECONDS
            try:
                self.retained_vclock = await connection.retained_logs_vclock(uuid)
            except ServerError:  # a server whose schema was not upgraded has no such space
                self.retained_vclock = None

    def record_stream_end(self, age_seconds: float = 0.0) -> None:
        """Record that the peer's stream ended `age_seconds` after its start; another may start after a later ballot.

        If streams of the peer end soon after their start, ballots are ignored for a growing time.
        """
        self.ballot = None
        self._leave_out_with(f"its stream ended: {self.error or 'closed by the server'}")
        if age_seconds > self.timing.answer_seconds:
            self._stream_backoff.reset()
        self._feeds_not_before = asyncio.get_running_loop().time() + self._stream_backoff.next_wait_seconds()

    def _leave_out_with(self, reason: str) -> None:
        self._logged_reason = reason
        self.leave_out(reason)

    def _record_disconnect(self, error: AggregatorError) -> None:
        was_connected = self.ballot is not None
        if was_connected or str(error) != str(self.error):
            level = logging.WARNING if isinstance(error, ConnectionLostError) else logging.ERROR
            logger.log(level, "%s", error)
        self.ballot, self.error = None, error
        self._leave_out_with(str(error))
        if was_connected:
            self._on_change(self, time.time())


def left_out_text(links: Iterable[PeerLink]) -> str:
    """Return why each of some peers is left out, as one text."""
    shown = (
        f"{link.name}: {'connected' if link.left_out is None else link.left_out.reason}" for link in links
    )
    return "; ".join(shown)
