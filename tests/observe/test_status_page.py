"""The status page with clients that do not finish their requests: it answers others, and keeps few of them."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from observe.metrics.stream_metrics import StreamMetrics
from observe.status_page import MOST_REQUESTS, status_page
from sources.iproto.address import Address

HALF = b"GET /status HTTP/1.1\r\nHost:"


@pytest.fixture
def port() -> Iterator[int]:
    metrics = StreamMetrics(5, None)
    with status_page(Address("127.0.0.1", 0), metrics, lambda: {"ok": 1}) as port:
        assert port is not None
        yield port


def half_requests(opened: ExitStack, port: int, count: int) -> list[socket.socket]:
    clients = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
    for client in clients:
        client.sendall(HALF)
        client.settimeout(20)
    return clients


def test_half_requests_neither_take_threads_without_end_nor_keep_others_out(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    with ExitStack() as opened:
        clients = half_requests(opened, port, 3 * MOST_REQUESTS)
        for client in clients[:MOST_REQUESTS]:
            assert client.recv(100) == b""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=20) as answer:
            assert json.load(answer) == {"ok": 1}
        assert threading.active_count() <= before + 2 * MOST_REQUESTS
    assert "Traceback" not in capfd.readouterr().err


def test_a_request_that_stops_halfway_is_dropped(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observe.status_page._RequestHandler.timeout", 0.2)
    with ExitStack() as opened:
        (client,) = half_requests(opened, port, 1)
        assert client.recv(100) == b""
