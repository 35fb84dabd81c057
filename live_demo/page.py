"""Serves the newest report page, which refreshes itself, and the metrics of stream and daemon on a local port.

`/` is the report (`observe.report`); `/metrics/stream` and `/metrics/daemon` pass on the present metrics of the two.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import ConfigurationError

PAGE_WITHOUT_REPORT = b"<!doctype html><title>aggregator</title><p>The first report is being made.</p>"
REFRESH_WITHOUT_REPORT_SECONDS = 2
METRICS_TIMEOUT_SECONDS = 5.0


class Response(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def response_to(path: str, page: Path, metrics: Mapping[str, str], refresh: int) -> Response:
    """Return the response to a GET of a path.

    Parameters
    ----------
    path : str
    page : Path
        The file of the report, which may not exist yet.
    metrics : mapping of str to str
        URL of the metrics, by the name under `/metrics/`.
    refresh : int
        Seconds after which the browser loads the page again.

    """
    html = "text/html; charset=utf-8"
    if path == "/":
        if not page.is_file():
            headers = {"Content-Type": html, "Refresh": str(REFRESH_WITHOUT_REPORT_SECONDS)}
            return Response(200, headers, PAGE_WITHOUT_REPORT)
        return Response(200, {"Content-Type": html, "Refresh": str(refresh)}, page.read_bytes())
    url = metrics.get(path.removeprefix("/metrics/"))
    plain = {"Content-Type": "text/plain; charset=utf-8"}
    if url is None:
        return Response(404, plain, b"/, /metrics/stream, /metrics/daemon\n")
    try:
        with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_SECONDS) as answer:
            return Response(200, plain, answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        return Response(503, plain, f"{path}: {error}\n".encode())


@contextmanager
def page_server(port: int, page: Path, metrics: Mapping[str, str], refresh: int) -> Iterator[int]:
    """Serve on a port of this machine while the block runs, and yield the port; 0 takes any free one.

    Raises
    ------
    ConfigurationError
        The port is taken.

    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            response = response_to(self.path, page, metrics, refresh)
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests."""

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
