"""The relay of one spool: listens, greets, keeps the catalog fresh, and tells the spool's daemon what readers have.

Not here: what one subscriber is answered (`session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import ssl

from schemas.errors import AggregatorError, ConfigurationError
from sources.iproto.greeting import SALT_SIZE, Greeting, format_greeting
from sources.relay.catalog import Catalog
from sources.relay.options import RelayOptions
from sources.relay.session import Session
from sources.spool.acks import write_ack

logger = logging.getLogger(__name__)

VERSION = (2, 6, 0)
"""What the greeting says: the protocol that is spoken."""

ACK_SECONDS = 1.0


class Relay:
    """Serves one spool.

    Parameters
    ----------
    options : RelayOptions

    """

    def __init__(self, options: RelayOptions) -> None:
        self.options = options
        self.catalog = Catalog(options.directory, options.max_block_bytes)
        self.sessions: set[Session] = set()
        self.error: AggregatorError | None = None
        self.port = 0
        self._acked: dict[str, dict[int, int]] = {}

    async def run(self) -> None:
        """Serve until cancelled.

        Raises
        ------
        ConfigurationError
            The address is taken.

        """
        self._refresh()
        address, context = self.options.listen, self._tls()
        try:
            if address.path is not None:
                server = await asyncio.start_unix_server(self._serve, address.path, ssl=context)
            else:
                server = await asyncio.start_server(self._serve, address.host, address.port, ssl=context)
                self.port = server.sockets[0].getsockname()[1]
        except OSError as error:
            raise ConfigurationError(f"the relay cannot listen on {address}: {error}") from error
        try:
            async with server:
                await asyncio.gather(self._keep_fresh(), self._tell_acks())
        finally:
            if address.path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(address.path)  # noqa: PTH108

    def _tls(self) -> ssl.SSLContext | None:
        tls = self.options.tls
        if tls is None:
            return None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert_file or "", tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the TLS files cannot be used: {error}", file=tls.cert_file) from error
        return context

    def _refresh(self) -> None:
        try:
            self.catalog.refresh()
            self.error = None
        except (AggregatorError, OSError) as error:
            found = error if isinstance(error, AggregatorError) else AggregatorError(str(error))
            if str(found) != str(self.error):
                logger.error("%s: %s", self.options.name, found)
            self.error = found

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll)
            self._refresh()

    async def _tell_acks(self) -> None:
        """Write what subscribers acknowledged to where the daemon looks before it removes files."""
        while True:
            await asyncio.sleep(ACK_SECONDS)
            for session in self.sessions:
                uuid = session.subscriber
                if uuid is not None and session.acked and self._acked.get(uuid) != session.acked:
                    self._acked[uuid] = dict(session.acked)
                    write_ack(self.options.directory, f"relay-{uuid}", session.acked)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        salt = secrets.token_bytes(SALT_SIZE)
        session = Session(self.options, self.catalog, salt, reader, writer)
        self.sessions.add(session)
        try:
            uuid = self.catalog.instance_uuid or "00000000-0000-0000-0000-000000000000"
            writer.write(format_greeting(Greeting(VERSION, uuid, salt)))
            await session.run()
        except (AggregatorError, OSError) as error:
            logger.info("%s: %s", session.peer, error)
        finally:
            self.sessions.discard(session)
            writer.close()
