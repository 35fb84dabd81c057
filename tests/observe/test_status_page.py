"""Clients that do not finish their requests: the status page still answers others, with a limited number of threads."""

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from observe.metrics.stream_metrics import StreamMetrics
from observe.status_page import MAX_CONCURRENT_REQUESTS, status_page
from sources.iproto.address import Address

UNFINISHED = b"GET /status HTTP/1.1\r\nHost:"


@pytest.fixture
def port() -> Iterator[int]:
    metrics = StreamMetrics(5, None)
    with status_page(Address("127.0.0.1", 0), metrics, lambda: {"ok": 1}) as port:
        assert port is not None
        yield port


def send_unfinished_requests(opened: ExitStack, port: int, count: int) -> list[socket.socket]:
    clients = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
    for client in clients:
        client.sendall(UNFINISHED)
        client.settimeout(20)
    return clients


def test_unfinished_requests_take_few_threads_and_do_not_block_others(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    with ExitStack() as opened:
        clients = send_unfinished_requests(opened, port, 3 * MAX_CONCURRENT_REQUESTS)
        for client in clients[:MAX_CONCURRENT_REQUESTS]:
            assert client.recv(100) == b""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=20) as answer:
            assert json.load(answer) == {"ok": 1}
        assert threading.active_count() <= before + 2 * MAX_CONCURRENT_REQUESTS
    assert "Traceback" not in capfd.readouterr().err


def test_an_unfinished_request_is_dropped_after_the_timeout(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("observe.status_page._RequestHandler.timeout", 0.2)
    with ExitStack() as opened:
        (client,) = send_unfinished_requests(opened, port, 1)
        assert client.recv(100) == b""
