"""Serves one spool: accepts connections, refreshes the spool's catalog, and stores the subscribers' acknowledgements.

`session` answers the requests of one connection. `relay_status` and `RelayMetrics` report the server's status, as a
JSON document and as Prometheus metrics; the HTTP server is in `observe.status_page`.
"""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
import ssl
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from schemas.conditions import RELAY_LAG_ROWS, Job
from schemas.errors import AggregatorError, ConfigurationError
from schemas.problems import Problem, condition_metric, problem
from sources.iproto.address import Address
from sources.iproto.greeting import SALT_SIZE, Greeting, format_greeting
from sources.relay.admission import AdmittedConnection, ConnectionLimiter
from sources.relay.options import RelayOptions
from sources.relay.row_packets import compile_kernels
from sources.relay.session import RelaySession
from sources.spool.acks import SUBSCRIBER_PREFIX, renew_ack, write_ack
from sources.spool.catalog import SpoolCatalog
from sources.xlog.format.vclock import rows_ahead

logger = logging.getLogger(__name__)

GREETING_VERSION = (2, 6, 0)
"""The version of Tarantool that the greeting names."""

ACK_WRITE_SECONDS = 1.0
"""Seconds between two writes of the subscribers' acknowledgements."""
ACCEPT_RETRY_SECONDS = 0.5
"""Seconds between two attempts to accept a connection while the process has no free file descriptors."""
CLOSE_WAIT_SECONDS = 2.0
"""Seconds in which the last bytes of a closed connection may still be sent."""
BACKLOG, READ_BYTES = 128, 1 << 16
_RESOURCE_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors of accept that mean that file descriptors or memory are exhausted."""


class Relay:
    """Serves one spool to any number of subscribers.

    `durable_end` is that of `SpoolCatalog`; it is needed if this process also writes the spool.
    """

    def __init__(
        self, options: RelayOptions, durable_end: Callable[[], tuple[Path, int] | None] | None = None
    ) -> None:
        self.options = options
        self.catalog = SpoolCatalog(options.directory, options.max_block_bytes, durable_end)
        self.sessions: set[RelaySession] = set()
        self.error: AggregatorError | None = None
        self.port = 0
        self.is_listening = False
        self.limiter = ConnectionLimiter(options.limits)
        self.ack_error: str | None = None
        """Why acknowledgements cannot be written."""
        self._written_acks: dict[str, dict[int, int]] = {}
        self._lacks_descriptors = False

    async def run(self) -> None:
        """Serve until cancelled; raise ConfigurationError if the address is in use, or TLS files cannot be used."""
        compile_kernels()
        self._refresh_catalog()
        address, context = self.options.listen_address, self._tls_context()
        try:
            listeners = await _listening_sockets(address)
        except OSError as error:
            raise ConfigurationError(f"the relay cannot listen on {address}: {error}") from error
        self.is_listening = True
        if address.path is None:
            self.port = listeners[0].getsockname()[1]
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._refresh_repeatedly())
                tasks.create_task(self._write_acks_repeatedly())
                for listener in listeners:
                    tasks.create_task(self._accept(listener, context, tasks))
        finally:
            for listener in listeners:
                listener.close()
            if address.path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(address.path)  # noqa: PTH108

    def _tls_context(self) -> ssl.SSLContext | None:
        tls = self.options.tls
        if tls is None:
            return None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert_file or "", tls.key_file)
            if tls.ca_file is not None:
                context.load_verify_locations(tls.ca_file)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the TLS files cannot be used: {error}", file=tls.cert_file) from error
        return context

    def _refresh_catalog(self) -> None:
        try:
            self.catalog.refresh()
            self.error = None
        except Exception as error:  # rows that were read before are still served
            shown_error = (
                error
                if isinstance(error, AggregatorError)
                else AggregatorError(f"{type(error).__name__}: {error}")
            )
            if str(shown_error) != str(self.error):
                logger.error("%s: %s", self.options.name, shown_error)
            self.error = shown_error

    async def _refresh_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll_seconds)
            self._refresh_catalog()

    async def _write_acks_repeatedly(self) -> None:
        """Store the subscribers' acknowledgements in the spool regularly, for the daemon, which removes files."""
        while True:
            await asyncio.sleep(ACK_WRITE_SECONDS)
            for session in list(self.sessions):
                uuid = session.subscriber
                if uuid is not None and session.acknowledged:
                    await self._write_ack(uuid, dict(session.acknowledged))
            disconnected = self._written_acks.keys() - {session.subscriber for session in self.sessions}
            for uuid in disconnected:
                del self._written_acks[uuid]

    async def _write_ack(self, subscriber_uuid: str, vclock: dict[int, int]) -> None:
        """Write a connected subscriber's acknowledgement; renew an equal one, so that it does not expire."""
        spool, reader = self.options.directory, f"{SUBSCRIBER_PREFIX}{subscriber_uuid}"
        try:
            if self._written_acks.get(subscriber_uuid) == vclock and renew_ack(spool, reader):
                return
            await asyncio.to_thread(write_ack, spool, reader, vclock)
        except OSError as error:
            if str(error) != self.ack_error:
                logger.error("%s: an acknowledgement cannot be written: %s", self.options.name, error)
            self.ack_error = str(error)
        else:
            self._written_acks[subscriber_uuid], self.ack_error = vclock, None

    async def _accept(
        self, listener: socket.socket, context: ssl.SSLContext | None, tasks: asyncio.TaskGroup
    ) -> None:
        """Accept connections until cancelled; if file descriptors are exhausted, wait before the next attempt."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _RESOURCE_ERRNOS:
                    if not self._lacks_descriptors:
                        logger.error("%s: no connection can be accepted: %s", self.options.name, error)
                    self._lacks_descriptors = True
                    await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue  # any other error: the client closed the connection before it was accepted
            self._lacks_descriptors = False
            host = str(address[0]) if isinstance(address, tuple) else ""
            admitted = self.limiter.admit(host, lambda sock=sock: _abort_handshake(sock))  # type: ignore[misc]
            if admitted is None:
                sock.close()
                continue
            tasks.create_task(self._serve(sock, admitted, context))

    async def _serve(
        self, sock: socket.socket, admitted: AdmittedConnection, context: ssl.SSLContext | None
    ) -> None:
        """Serve one connection until it ends; an error ends only this connection."""
        try:
            reader, writer = await self._open_stream(sock, context)
        except Exception as error:  # a handshake that fails in any way ends this connection only
            logger.info("a connection could not be opened: %s", error)
            self.limiter.remove(admitted)
            sock.close()
            return
        admitted.close = writer.transport.abort
        salt = secrets.token_bytes(SALT_SIZE)
        session = RelaySession(self.options, self.catalog, self.limiter, admitted, salt, reader, writer)
        self.sessions.add(session)
        try:
            uuid = self.catalog.instance_uuid or "00000000-0000-0000-0000-000000000000"
            writer.write(format_greeting(Greeting(GREETING_VERSION, uuid, salt)))
            await session.run()
        except (AggregatorError, OSError) as error:
            logger.info("%s: %s", session.peer, error)
        except Exception:  # a bug ends this connection only
            logger.exception("%s: connection closed", session.peer)
        finally:
            self.sessions.discard(session)
            self.limiter.remove(admitted)
            writer.close()
            # The last bytes may still be sent; a client that does not read them is disconnected.
            asyncio.get_running_loop().call_later(CLOSE_WAIT_SECONDS, writer.transport.abort)

    async def _open_stream(
        self, sock: socket.socket, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(READ_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        seconds = None if context is None else self.options.limits.authentication_seconds
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=context, ssl_handshake_timeout=seconds
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _abort_handshake(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


async def _listening_sockets(address: Address) -> list[socket.socket]:
    """Open and return the sockets that listen on an address: one per IP address of the host."""
    if address.path is not None:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(address.path).st_mode):  # noqa: PTH116
                os.unlink(address.path)  # noqa: PTH108
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        listener.bind(address.path)
        listener.listen(BACKLOG)
        return [listener]
    loop, listeners = asyncio.get_running_loop(), []
    address_infos = await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    for family, kind, number, _, where in dict.fromkeys(address_infos):
        listener = socket.socket(family, kind, number)
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        listeners.append(listener)
    return listeners


def relay_status(relay: Relay) -> dict[str, Any]:
    """Return the status of one relay as a JSON object: its error, connections, vclock and subscribers."""
    return {
        "name": relay.options.name,
        "listen": str(relay.options.listen_address),
        "error": None if relay.error is None else str(relay.error),
        "connections": relay.limiter.connection_count,
        "refused_connections": relay.limiter.refused_connections,
        "wrong_passwords": relay.limiter.wrong_passwords,
        "acknowledgement_error": relay.ack_error,
        "vclock": {str(i): lsn for i, lsn in sorted(relay.catalog.vclock.items())},
        "subscribers": [
            {
                "instance": session.subscriber,
                "peer": session.peer,
                "sent_bytes": session.sent_bytes,
                "acknowledged": {str(i): lsn for i, lsn in sorted(session.acknowledged.items())},
                "lag_rows": rows_ahead(relay.catalog.vclock, session.acknowledged),
            }
            for session in relay.sessions
            if session.subscriber is not None
        ],
    }


def relay_problems(relay: Relay) -> Iterator[Problem]:
    """Yield what needs attention at one relay."""
    subject, status = f"relay of {relay.options.name}", relay_status(relay)
    error = status["error"] or status["acknowledgement_error"]
    if error is not None:
        yield problem("relay_failed", subject, error)
    for one in status["subscribers"]:
        if one["lag_rows"] > RELAY_LAG_ROWS:
            text = f"it has not acknowledged {one['lag_rows']} rows of {subject}"
            yield problem("relay_lag_high", f"subscriber {one['instance']}", text)


class RelayMetrics:
    """Collects the metrics of relays for `prometheus_client`."""

    def __init__(self, relays: Sequence[Relay]) -> None:
        self._relays = relays

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        count = GaugeMetricFamily("relay_subscribers", "Subscribers", labels=["spool"])
        lag = GaugeMetricFamily(
            "relay_lag_rows", "Rows that a subscriber has not acknowledged", labels=["spool", "instance"]
        )
        failed = GaugeMetricFamily(
            "relay_failed", "Whether the spool cannot be read or acknowledged", labels=["spool"]
        )
        connections = GaugeMetricFamily("relay_connections", "Connections", labels=["spool"])
        refused = CounterMetricFamily(
            "relay_refused_connections", "Connections closed as too many", labels=["spool"]
        )
        wrong = CounterMetricFamily("relay_wrong_passwords", "Wrong passwords", labels=["spool"])
        for status in [relay_status(relay) for relay in self._relays]:
            connections.add_metric([status["name"]], status["connections"])
            refused.add_metric([status["name"]], status["refused_connections"])
            wrong.add_metric([status["name"]], status["wrong_passwords"])
            count.add_metric([status["name"]], len(status["subscribers"]))
            is_failed = status["error"] is not None or status["acknowledgement_error"] is not None
            failed.add_metric([status["name"]], is_failed)
            for subscriber in status["subscribers"]:
                lag.add_metric([status["name"], subscriber["instance"]], subscriber["lag_rows"])
        found = (one for relay in self._relays for one in relay_problems(relay))
        yield from (count, lag, failed, connections, refused, wrong, condition_metric(Job.RELAY, found))
