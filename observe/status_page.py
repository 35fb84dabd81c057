"""The status page of a daemon: `/metrics` for Prometheus, `/status` as JSON, on a local port.

The server runs in its own thread, so that a slow client does not delay the daemon's work.
"""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import HTTPServer
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from schemas.errors import AggregatorError, ConfigurationError
from sources.iproto.address import Address

MAX_CONCURRENT_REQUESTS = 32
"""Maximum number of concurrent requests; a further one ends the oldest, so slow clients do not block the page."""


class _StatusServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 4 * MAX_CONCURRENT_REQUESTS
    """Maximum number of connections that wait to be accepted; beyond it, a client's retry takes a second or more."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in its own thread; if `MAX_CONCURRENT_REQUESTS` are open, end the oldest one first."""
        if len(self._open) >= MAX_CONCURRENT_REQUESTS:
            for oldest in list(self._open)[:1]:
                self._open.pop(oldest, None)
                with suppress(OSError):  # the request may have just ended
                    oldest.shutdown(socket.SHUT_RDWR)
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections that the client or `process_request` has closed; print other errors."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _RequestHandler(WSGIRequestHandler):
    timeout = 5.0
    """Seconds without a byte after which a request is dropped, since each has its own thread."""

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


@contextmanager
def status_page(
    address: Address | None,
    collector: Collector,
    status: Callable[[], Any],
    further_pages: Mapping[str, Callable[[Mapping[str, str]], Any]] | None = None,
) -> Iterator[int | None]:
    """Serve the status page while the block runs; yield the port, or None without an address.

    Args:
        further_pages: By path: returns the content of a page by the parameters of its address. A ValueError is the
            client's mistake.

    Raises:
        ConfigurationError: The port is taken.
    """
    if address is None:
        yield None
        return
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    metrics, pages = make_wsgi_app(registry), further_pages or {}

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            page: Iterable[bytes] = metrics(environ, start)
            return page
        if environ["PATH_INFO"] == "/status":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(status(), indent=1).encode() + b"\n"]
        page_of = pages.get(environ["PATH_INFO"])
        if page_of is not None:
            try:
                content = page_of(dict(parse_qsl(environ["QUERY_STRING"])))
            except (ValueError, AggregatorError) as error:
                start("400 Bad Request", [("Content-Type", "text/plain")])
                return [f"{error}\n".encode()]
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(content, indent=1).encode() + b"\n"]
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [f"{', '.join(('/metrics', '/status', *pages))}\n".encode()]

    try:
        server = make_server(address.host or "", address.port, app, _StatusServer, _RequestHandler)
    except OSError as error:
        raise ConfigurationError(f"the status page cannot listen on {address}: {error.strerror}") from error
    with serve_in_thread(server, "status") as port:
        yield port


@contextmanager
def serve_in_thread(server: HTTPServer, name: str) -> Iterator[int]:
    """Run a server in a thread with a name while the block runs, and yield its port; close the server at the end."""
    thread = threading.Thread(target=server.serve_forever, name=name, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
