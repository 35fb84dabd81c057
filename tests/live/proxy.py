"""A TCP proxy in front of a server, which cuts, stops or refuses connections when a test calls for it.

It has a thread and an event loop of its own, so that tests may block.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Proxy:
    """A proxy on a free local port; a context manager that runs it.

    Args:
        socket: Path of the server's unix socket.
        budget: Called for each new connection: returns the number of bytes from the server after which to cut it, or
            None.
        tls: Serves clients by TLS, as a server with TLS would.
    """

    def __init__(
        self,
        socket: str,
        budget: Callable[[], int | None] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.port = 0
        self.accepted = 0
        self.sent = 0
        """Bytes from the server to clients."""
        self._socket, self._budget, self._tls = socket, budget, tls
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._is_forwarding = asyncio.Event()
        self._is_refusing = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def partition(self, parted: bool) -> None:
        """Stop or resume forwarding without closing connections."""
        event = self._is_forwarding
        self._loop.call_soon_threadsafe(event.clear if parted else event.set)

    def refuse(self, refusing: bool) -> None:
        """Close each new connection at once, or accept connections again."""
        self._is_refusing = refusing

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._is_forwarding.set()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        server = self._loop.run_until_complete(serving)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        budget = self._budget()
        if self._is_refusing:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_unix_connection(self._socket)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, to_server}
        tasks = [
            asyncio.ensure_future(self._forward(reader, to_server, None)),
            asyncio.ensure_future(self._forward(from_server, writer, budget)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for each in (writer, to_server):
                each.transport.abort()
            self._open -= {writer, to_server}

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None
    ) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                await self._is_forwarding.wait()
                if budget is not None:
                    data = data[:budget]
                    budget -= len(data)
                writer.write(data)
                await writer.drain()
                if budget is not None or writer.transport.get_extra_info("peername"):
                    self.sent += len(data)
                if budget == 0:
                    # What was written must arrive before the cut.
                    writer.close()
                    await writer.wait_closed()
                    return
