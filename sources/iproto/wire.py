"""Receives the bytes of one connection, as an asyncio protocol: a greeting, answers to requests, then a stream.

Reads of a stream are batched: Tarantool 2.6 writes row by row, and waking the reader for each row costs more than the
row itself. So a TCP socket wakes its reader when it has `MIN_READ_BYTES`, or after some milliseconds (`SO_RCVLOWAT`,
which enlarges the kernel's buffer as well). A unix socket does not support this.

`server_error` converts a server's error codes to exceptions that say what to do and whether to retry. The codes are in
`src/box/errcode.h`; their meanings were observed on 2.6.0 or read in the source of later versions. `client` sends the
requests; `row_stream` decodes a stream's bytes.
"""

import asyncio
import socket
from typing import Any

import numpy as np

from schemas.errors import (
    AccessError,
    AggregatorError,
    ConnectionLostError,
    GapError,
    IprotoError,
    PeerError,
    ProtocolError,
    ServerBusyError,
    ServerError,
)
from schemas.iproto import Command, MessageKey
from sources.iproto.greeting import GREETING_SIZE, Greeting, parse_greeting
from sources.iproto.messages import REPLICA_IDS, printable
from sources.iproto.packet import (
    ANSWER_MAX_BYTES,
    PACKET_MAX_BYTES,
    Packet,
    decode_packet,
    decode_packet_header,
    packet_bounds,
)
from sources.iproto.row_stream import Sink

ACCESS_DENIED, NO_USER, PASSWORD = 42, 45, 47
WAL_MODE_NONE, ILLEGAL_PARAMS, INVALID_MSGPACK = 5, 1, 20
LOADING, LOADING_OLD, TIMED_OUT = 116, 32, 115
UNKNOWN_REQUEST = 48
XLOG_GAP = 219  # before 2.6.1: 32 (ER_PROC_LUA), with this text
SYNC_ROLLBACK = 217
TOO_EARLY = 220
"""From 2.7 on the same as `UNKNOWN_REPLICA`: a replica that is not anonymous subscribes before it has joined."""
DUPLICATE, UNKNOWN_REPLICA, OTHER_REPLICASET, SAME_UUID, NIL_UUID = 59, 62, 63, 117, 264
DUPLICATE_ADVICE = (
    "the server has not noticed yet that the daemon's last stream has ended: it is tried again. If it stays so for "
    "more than four times replication_timeout, another subscriber has the same uuid: give each daemon its own spool"
)
_MISSING_LOG_TEXT = "Missing .xlog file"

_ERRORS_BY_CODE: dict[int, tuple[type[IprotoError], str | None]] = {
    ACCESS_DENIED: (AccessError, "grant the role `replication` to the user"),
    NO_USER: (AccessError, "create the user, or correct its name"),
    PASSWORD: (AccessError, "correct the password"),
    LOADING: (ServerBusyError, None),
    SYNC_ROLLBACK: (ServerBusyError, None),
    TIMED_OUT: (ServerBusyError, None),
    DUPLICATE: (ServerBusyError, DUPLICATE_ADVICE),
    INVALID_MSGPACK: (ProtocolError, None),
    UNKNOWN_REQUEST: (PeerError, "this version of Tarantool does not know the request"),
    WAL_MODE_NONE: (PeerError, "the server writes no log (wal_mode = 'none')"),
    OTHER_REPLICASET: (PeerError, "list peers of one replicaset only"),
    SAME_UUID: (PeerError, "the spool has the server's own uuid: it is a copy of its log directory"),
    NIL_UUID: (ProtocolError, None),
}


def server_error(packet: Packet, peer: str) -> IprotoError:
    """Return the exception for an error packet of a server."""
    code = packet.error_code or 0
    message = packet.body.get(MessageKey.ERROR_24, "no message")
    text = printable(message)
    if code == XLOG_GAP or _MISSING_LOG_TEXT in text:
        return GapError(f"the server no longer has the logs: {text}", peer=peer, code=code)
    kind, advice = _ERRORS_BY_CODE.get(code, (ServerError, None))
    return kind(f"the server answered: {text}", peer=peer, code=code, advice=advice)


BUFFER_BYTES = 1 << 19
"""Initial size of the receive buffer, in bytes."""

MIN_READ_BYTES = 1 << 16
"""Number of received bytes at which a TCP socket wakes its reader."""

MAX_READ_DELAY_SECONDS = 0.01
"""Longest time that fewer than `MIN_READ_BYTES` bytes wait in the kernel, in seconds."""


class WireProtocol(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection: sets the futures of the greeting and the answers, and feeds a sink."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        loop = asyncio.get_running_loop()
        self.greeting: asyncio.Future[Greeting] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.cluster_info: list[Packet] = []
        """A relay's CLUSTER_INFO packets, which come before its answer to SUBSCRIBE."""
        self.received_bytes = 0
        self.last_received_at = loop.time()
        """When the last bytes were received, by the loop's clock."""
        self._loop = loop
        self._pending_answers: list[tuple[asyncio.Future[Packet], Sink | None, bool]] = []
        self._sink: Sink | None = None
        self._stream_end: asyncio.Future[Packet] | None = None
        self._buffer = np.empty(BUFFER_BYTES, np.uint8)
        self._begin = self._end = 0
        self._transport: asyncio.Transport | None = None
        self._cluster_info_left = 0
        self._batches_reads = False
        self._read_timer: asyncio.TimerHandle | None = None
        for future in (self.greeting, self.closed):
            future.add_done_callback(_mark_error_retrieved)

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the open connection; raises ConnectionLostError after its end."""
        if self._transport is None or self.closed.done():
            raise ConnectionLostError("the connection is closed", peer=self.peer)
        return self._transport

    def expect_answer(self, sink: Sink | None = None, *, is_body_raw: bool = False) -> asyncio.Future[Packet]:
        """Return a future of the answer to the next request.

        If a stream follows the answer, `sink` receives it. With `is_body_raw`, the body of the answer is not decoded.
        """
        future: asyncio.Future[Packet] = self._loop.create_future()
        future.add_done_callback(_mark_error_retrieved)
        self._pending_answers.append((future, sink, is_body_raw))
        return future

    def allow_cluster_info(self) -> None:
        """Accept a relay's CLUSTER_INFO packets before the next answer; without this call they are an error."""
        self._cluster_info_left = len(REPLICA_IDS)

    @property
    def end_of_stream(self) -> asyncio.Future[Packet]:
        """A future of the packet that ends the newest stream, or of the error that breaks it."""
        if self._stream_end is None:
            raise ConnectionLostError("no stream was started", peer=self.peer)
        return self._stream_end

    def set_paused(self, is_paused: bool) -> None:
        """Pause or resume reading; while reading is paused, rows wait on the server."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if is_paused:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the new connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._batches_reads = transport.get_extra_info("socket").family != socket.AF_UNIX

    def connection_lost(self, error: Exception | None) -> None:
        """Set an error on all pending futures."""
        reason = f"the connection broke: {error}" if error else "the server closed the connection"
        self._fail_pending(ConnectionLostError(reason, peer=self.peer))

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the free part of the buffer, which asyncio fills."""
        if self._end == self._buffer.size:
            self._make_room(0)
        return self._buffer.data[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Process the bytes that asyncio has written into the buffer; if this fails, close the connection."""
        self._end += count
        self.received_bytes += count
        self.last_received_at = self._loop.time()
        try:
            self._process_buffer()
        except AggregatorError as error:
            self.abort(error)
            return
        except Exception as error:
            self.abort(error)
            raise
        if self._batches_reads and self._sink is not None and self._read_timer is None:
            self._set_min_read_bytes(MIN_READ_BYTES)
            self._read_timer = self._loop.call_later(MAX_READ_DELAY_SECONDS, self._stop_batching_reads)

    def abort(self, error: Exception) -> None:
        """Close the connection at once, and set this error on all pending futures."""
        self._fail_pending(error)
        if self._transport is not None:
            self._transport.abort()

    def _stop_batching_reads(self) -> None:
        self._read_timer = None
        self._set_min_read_bytes(1)

    def _set_min_read_bytes(self, size: int) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _process_buffer(self) -> None:
        if not self.greeting.done():
            if self._end < GREETING_SIZE:
                return
            self.greeting.set_result(parse_greeting(self._buffer[:GREETING_SIZE].tobytes()))
            self._begin = GREETING_SIZE
        while self._begin < self._end:
            if self._sink is not None:
                self._begin, need, is_non_row_packet = self._sink.feed(self._buffer, self._begin, self._end)
                if not is_non_row_packet:
                    self._make_room(need)
                    return
            if not self._process_packet():
                return
        self._begin = self._end = 0
        if self._buffer.size > BUFFER_BYTES:
            self._buffer = np.empty(BUFFER_BYTES, np.uint8)  # frees the memory of a large packet

    def _process_packet(self) -> bool:
        data = self._buffer.data
        is_body_raw = self._sink is None and bool(self._pending_answers) and self._pending_answers[0][2]
        frame = packet_bounds(
            data, self._begin, self._end, PACKET_MAX_BYTES if is_body_raw else ANSWER_MAX_BYTES
        )
        if frame is None:
            self._make_room(2 * (self._end - self._begin))
            return False
        packet = (decode_packet_header if is_body_raw else decode_packet)(data[frame[0] : frame[1]])
        self._begin = frame[1]
        error = None if packet.error_code is None else server_error(packet, self.peer)
        if packet.type == Command.CLUSTER_INFO:
            if self._cluster_info_left == 0:
                raise ProtocolError(
                    "the server sent cluster information that was not requested", peer=self.peer
                )
            self._cluster_info_left -= 1
            self.cluster_info.append(packet)
            return True
        self._cluster_info_left = 0
        if self._sink is not None and self._stream_end is not None:
            future, self._sink, sink = self._stream_end, None, None
        elif self._pending_answers:
            future, sink, _ = self._pending_answers.pop(0)
        else:
            raise error or ProtocolError("the server sent a packet that was not requested", peer=self.peer)
        if future.done():
            return True
        if error is not None:
            future.set_exception(error)
        else:
            if sink is not None:
                self._sink, self._stream_end = sink, self._loop.create_future()
                self._stream_end.add_done_callback(_mark_error_retrieved)
            future.set_result(packet)
        return True

    def _make_room(self, needed_bytes: int) -> None:
        """Move unprocessed bytes to the front of the buffer, or of a larger one if the next packet has more bytes."""
        left = self._buffer[self._begin : self._end]
        size = BUFFER_BYTES
        while size < needed_bytes or size <= left.size:
            size *= 2
        if size == self._buffer.size and self._begin >= left.size:
            self._buffer[: left.size] = left
        else:
            grown = np.empty(size, np.uint8)
            grown[: left.size] = left
            self._buffer = grown
        self._begin, self._end = 0, left.size

    def _fail_pending(self, error: Exception) -> None:
        waiting = [future for future, _, _ in self._pending_answers]
        for future in (self.greeting, self._stream_end, *waiting):
            if future is not None and not future.done():
                future.set_exception(error)
        self._pending_answers = []
        self._sink = None
        if not self.closed.done():
            self.closed.set_exception(error)


def _mark_error_retrieved(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a future, so that asyncio does not warn that nothing has retrieved it."""
    if not future.cancelled():
        future.exception()
