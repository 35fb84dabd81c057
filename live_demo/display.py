"""Shows the demonstration: each new epoch's rows by SQL on the terminal, and a web page with the report and metrics.

The page is on a local port. `/` is the newest report (`observe.report`), which refreshes itself; `/metrics/stream` and
`/metrics/daemon` return the current metrics of the two commands.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from config.deployment import Config
from jobs.report import write_page
from observe.query_engines import engine_of
from observe.report.printed_queries import TitledQuery, result_lines
from observe.status_page import serve_in_thread
from schemas.errors import ConfigurationError
from warehouse.delta.location import location_of
from warehouse.delta.newest_epoch import NO_EPOCH, last_epoch
from warehouse.warehouse import Warehouse

PLACEHOLDER_PAGE = b"<!doctype html><title>aggregator</title><p>The first report is being made.</p>"
PLACEHOLDER_REFRESH_SECONDS = 2
METRICS_TIMEOUT_SECONDS = 5.0

WRITTEN_SPACE = "accounts"
"""The space that `server.lua` writes, and its table."""

QUERIED_TABLES = ("_cluster", "_changelog", "_conflicts", WRITTEN_SPACE)


class Response(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def response_to(
    path: str, report_file: Path, metrics_urls: Mapping[str, str], refresh_seconds: int
) -> Response:
    """Return the response of the page's server to a GET of a path.

    Args:
        report_file: The file of the report, which may not exist yet.
        metrics_urls: URL of the metrics of each command, by the command's name in the path `/metrics/<name>`.
        refresh_seconds: Seconds after which the browser loads the page again.
    """
    html = "text/html; charset=utf-8"
    if path == "/":
        if not report_file.is_file():
            headers = {"Content-Type": html, "Refresh": str(PLACEHOLDER_REFRESH_SECONDS)}
            return Response(200, headers, PLACEHOLDER_PAGE)
        return Response(
            200, {"Content-Type": html, "Refresh": str(refresh_seconds)}, report_file.read_bytes()
        )
    url = metrics_urls.get(path.removeprefix("/metrics/"))
    plain = {"Content-Type": "text/plain; charset=utf-8"}
    if url is None:
        return Response(404, plain, b"/, /metrics/stream, /metrics/daemon\n")
    try:
        with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_SECONDS) as answer:
            return Response(200, plain, answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        return Response(503, plain, f"{path}: {error}\n".encode())


@contextmanager
def serve_page(
    port: int, report_file: Path, metrics_urls: Mapping[str, str], refresh_seconds: int
) -> Iterator[int]:
    """Serve the responses of `response_to` on a port while the block runs, and yield the port.

    Args:
        port: Port of this machine; 0: any free one.
        report_file: The file of the report.
        metrics_urls: URL of the metrics of each command, by the command's name in the path `/metrics/<name>`.
        refresh_seconds: Seconds after which the browser loads the page again.

    Raises:
        ConfigurationError: The port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            response = response_to(self.path, report_file, metrics_urls, refresh_seconds)
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
    with serve_in_thread(server, "page") as opened_port:
        yield opened_port


def shown_queries(database: str) -> tuple[TitledQuery, ...]:
    """Return the queries that are shown at each new epoch."""
    pair = "winner_replicaset_id AS winner, loser_replicaset_id AS loser"
    return (
        TitledQuery(
            "The newest rows of one space over both replicasets, with the origin of the version that won",
            f"SELECT id, owner, balance, _replicaset_id, _global_id, _lsn, _timestamp FROM {database}.{WRITTEN_SPACE} "
            f"ORDER BY _timestamp DESC",
        ),
        TitledQuery(
            "Who won how many keys",
            f"SELECT {pair}, count(*) AS conflicts FROM {database}._conflicts "
            "GROUP BY winner_replicaset_id, loser_replicaset_id ORDER BY winner, loser",
        ),
        TitledQuery(
            "Rows of each instance: in each replicaset ids start at 1, global ids do not collide",
            f"SELECT c.replicaset_id, c.local_id, c.global_id, count(*) AS rows, max(l.timestamp) AS newest "
            f"FROM {database}._changelog l JOIN {database}._cluster c ON c.global_id = l.global_id "
            "GROUP BY c.replicaset_id, c.local_id, c.global_id ORDER BY c.replicaset_id, c.local_id, c.global_id",
        ),
    )


class EpochDisplay:
    """Queries the tables of a deployment, without Spark, while the stream writes them.

    `first_rows_at` is the time of the monotonic clock at which the first rows were printed; None before that.

    Args:
        report_file: The file of the report page.
    """

    def __init__(self, config: Config, report_file: Path) -> None:
        self._config, self._report_file = config, report_file
        self._shown_epoch = NO_EPOCH
        self._location = location_of(config.warehouse, config.database)
        self.first_rows_at: float | None = None

    def has_new_epoch(self) -> bool:
        """Whether an epoch was committed after the last shown one, and the table `WRITTEN_SPACE` exists."""
        return (
            last_epoch(self._location) > self._shown_epoch and self._location.open(WRITTEN_SPACE) is not None
        )

    def show(self) -> None:
        """Print the queries with their results, and write the page."""
        warehouse = Warehouse(None, self._config.warehouse, self._config.database)
        epoch = last_epoch(self._location)
        engine = engine_of(warehouse, QUERIED_TABLES)
        engine.register(QUERIED_TABLES)
        print(f"\n== epoch {epoch}", flush=True)
        for query in shown_queries(self._config.database):
            for line in result_lines(engine, query):
                print(line, flush=True)
            self.first_rows_at = self.first_rows_at or time.monotonic()
        written = self._report_file.with_suffix(".new")
        write_page(warehouse, written)
        written.replace(self._report_file)
        self._shown_epoch = epoch
