"""A small local server: the report page, which the browser refreshes by itself, and the metrics of both commands.

`/` is the newest report, `/metrics/stream` and `/metrics/daemon` are what the commands serve at this moment. Not here:
what the page shows (`observe.report`).
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from schemas.errors import ConfigurationError

WAITING = b"<!doctype html><title>aggregator</title><p>The first report is being made.</p>"
WAIT_SECONDS = 2
ASK_SECONDS = 5.0


def answer(
    path: str, page: Path, metrics: Mapping[str, str], refresh: int
) -> tuple[int, Mapping[str, str], bytes]:
    """Return status, headers and body for a path.

    Parameters
    ----------
    path : str
    page : Path
        The report's file, which may not be there yet.
    metrics : mapping of str to str
        Name of a command to where it serves its metrics.
    refresh : int
        Seconds after which the browser loads the page again.

    """
    html = "text/html; charset=utf-8"
    if path == "/":
        if not page.is_file():
            return 200, {"Content-Type": html, "Refresh": str(WAIT_SECONDS)}, WAITING
        return 200, {"Content-Type": html, "Refresh": str(refresh)}, page.read_bytes()
    address = metrics.get(path.removeprefix("/metrics/"))
    plain = {"Content-Type": "text/plain; charset=utf-8"}
    if address is None:
        return 404, plain, b"/, /metrics/stream, /metrics/daemon\n"
    try:
        with urllib.request.urlopen(address, timeout=ASK_SECONDS) as found:
            return 200, plain, found.read()
    except (urllib.error.URLError, TimeoutError) as error:
        return 503, plain, f"{path}: {error}\n".encode()


@contextmanager
def page_server(port: int, page: Path, metrics: Mapping[str, str], refresh: int) -> Iterator[int]:
    """Serve on this machine while the block runs; yields the port.

    Raises
    ------
    ConfigurationError
        The port is taken.

    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answer(self.path, page, metrics, refresh)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing about requests."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigurationError(f"port {port} is taken: {error.strerror}", advice="see --port") from error
    thread = threading.Thread(target=server.serve_forever, name="page", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
