"""Hostile clients of a relay: no input takes more memory or time than its limit, and other clients are served."""

import asyncio
import base64
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigurationError
from schemas.iproto import SystemSpace
from sources.iproto.address import PasswordSource
from sources.iproto.greeting import scramble
from sources.iproto.messages import auth_body, select_body
from sources.iproto.packet import encode_packet
from sources.relay import server
from sources.relay.admission import ConnectionLimiter
from sources.relay.options import ClientLimits
from sources.relay.session import UNAUTHENTICATED_LIMIT
from sources.spool import acks
from sources.spool.acks import read_acks
from tests.sources.relay.spools import A1, DAEMON, START, Client, relaying, write_spool

PING, AUTH, SELECT, SUBSCRIBE = 0x40, 0x07, 0x01, 0x42
USERS: dict[str, Any] = {
    "users": {"central": PasswordSource(env_variable="RELAY_PASSWORD")},
    "allows_guest": False,
}
ME = "00000000-0000-4000-8000-0000000000{:02x}"


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_PASSWORD", "secret")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    write_spool(tmp_path / "spool", 3)
    return tmp_path / "spool"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def password_auth(client: Client, password: str) -> dict[int, Any]:
    return auth_body("central", scramble(password, base64.b64decode(client.salt)))


def subscription(number: int) -> dict[int, Any]:
    return {0x25: A1, 0x24: ME.format(number), 0x26: {1: START}, 0x06: 0x020600, 0x50: True}


@pytest.mark.parametrize("length", [UNAUTHENTICATED_LIMIT + 1, 24 << 20, 1 << 30, 2**32 - 1])
async def test_a_long_packet_before_authentication_is_refused_by_its_length(spool: Path, length: int) -> None:
    async with relaying(spool, **USERS) as relay, Client(relay) as evil, Client(relay) as good:
        await evil.greet()
        evil.writer.write(b"\xce" + length.to_bytes(4, "big") + b"\x90" * 64)
        assert await evil.is_closed()
        await good.greet()
        assert (await good.ask(PING, {})).type == 0


@pytest.mark.parametrize("sent", [b"", b"\xce", b"\xce\x00\x00\x0f\xff" + b"\x90" * 100])
async def test_a_client_that_does_not_authenticate_in_time_is_disconnected(spool: Path, sent: bytes) -> None:
    limits = ClientLimits(authentication_seconds=0.3)
    async with relaying(spool, limits, **USERS) as relay, Client(relay) as evil:
        await evil.greet()
        evil.writer.write(sent)
        assert await evil.is_closed()
        await until(lambda: relay.limiter.connection_count == 0)


async def send_ping(client: Client) -> None:
    while True:
        await client.ask(PING, {})


async def test_pings_do_not_extend_the_time_to_authenticate(spool: Path) -> None:
    async with (
        relaying(spool, ClientLimits(authentication_seconds=0.3), **USERS) as relay,
        Client(relay) as evil,
    ):
        await evil.greet()
        await asyncio.gather(send_ping(evil), return_exceptions=True)
        assert await evil.is_closed()


async def test_an_authenticated_client_without_requests_is_disconnected(spool: Path) -> None:
    async with relaying(spool, silence_seconds=0.3) as relay, Client(relay) as idle:
        await idle.greet()
        assert await idle.is_closed()


async def open_client(relay: server.Relay, source: str | None = None) -> tuple[Client, bool]:
    """Connect to a relay; return the client, and whether it received a greeting."""
    client = Client(relay, source)
    try:
        await (await client.__aenter__()).greet()
    except (asyncio.IncompleteReadError, ConnectionError):
        return client, False
    return client, True


async def test_connections_are_limited_in_all_and_by_address(spool: Path) -> None:
    limits = ClientLimits(max_connections=5, max_connections_per_address=3, max_unauthenticated=100)
    async with relaying(spool, limits, **USERS) as relay:
        near = [await open_client(relay, "127.0.0.2") for _ in range(4)]
        assert [greeted for _, greeted in near] == [True, True, True, False]
        others = [await open_client(relay, "127.0.0.3") for _ in range(3)]
        assert [greeted for _, greeted in others] == [True, True, False]
        await near[0][0].__aexit__()
        await until(lambda: relay.limiter.connection_count == 4)
        again, greeted = await open_client(relay, "127.0.0.3")
        assert greeted
        for client, _ in [*near, *others, (again, True)]:
            await client.__aexit__()


async def test_a_guest_with_rights_counts_as_authenticated(spool: Path) -> None:
    """If guests are allowed, a daemon's connection for requests never authenticates."""
    async with relaying(spool, ClientLimits(max_unauthenticated=2)) as relay, Client(relay) as daemon:
        await daemon.greet()
        assert (await daemon.ask(SELECT, select_body(SystemSpace.CLUSTER))).type == 0
        idle = [await open_client(relay) for _ in range(4)]
        assert await idle[0][0].is_closed()
        assert (await daemon.ask(SELECT, select_body(SystemSpace.CLUSTER))).type == 0
        for client, _ in idle:
            await client.__aexit__()


async def test_new_connections_replace_unauthenticated_ones_only(spool: Path) -> None:
    async with (
        relaying(spool, ClientLimits(max_unauthenticated=3), **USERS) as relay,
        Client(relay) as known,
    ):
        await known.greet()
        assert (await known.ask(AUTH, password_auth(known, "secret"))).type == 0
        strangers = [await open_client(relay) for _ in range(5)]
        assert all(greeted for _, greeted in strangers)
        assert await strangers[0][0].is_closed()
        assert await strangers[1][0].is_closed()
        assert (await known.ask(PING, {})).type == 0
        assert (await strangers[4][0].ask(PING, {})).type == 0
        for client, _ in strangers:
            await client.__aexit__()


async def test_a_reader_of_the_servers_is_named_when_it_follows_the_relay(
    spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    how = {**USERS, "users_of_servers": frozenset({"app"})}
    async with relaying(spool, **how) as relay, Client(relay) as client:
        await client.greet()
        body = auth_body("app", scramble("right", base64.b64decode(client.salt)))
        assert (await client.ask(AUTH, body)).error_code == 47
    assert "app is one of relay.aggregated.readers" in caplog.text


async def test_three_wrong_passwords_close_the_connection(spool: Path) -> None:
    async with (
        relaying(spool, ClientLimits(password_delay_seconds=0.01), **USERS) as relay,
        Client(relay) as evil,
    ):
        await evil.greet()
        for _ in range(3):
            assert (await evil.ask(AUTH, password_auth(evil, "wrong"))).error_code == 47
        assert await evil.is_closed()
        assert relay.limiter.wrong_passwords == 3


def test_passwords_from_one_address_are_checked_one_at_a_time() -> None:
    admission = ConnectionLimiter(ClientLimits(password_delay_seconds=1.0))
    assert [admission.seconds_before_password("a", 10.0) for _ in range(4)] == [0, 1, 2, 3]
    assert admission.seconds_before_password("b", 10.0) == 0
    assert admission.seconds_before_password("a", 12.5) == 1.5
    admission.record_right_password("b")
    assert admission.seconds_before_password("b", 10.0) == 0
    for number in range(10_000):
        admission.seconds_before_password(str(number), 0.0)
    assert len(admission._next_password_at) < 5000


ODD_PROOFS: list[Any] = [
    None,
    5,
    [],
    ["chap-sha1"],
    ["chap-sha1", -1],
    ["chap-sha1", None],
    ["chap-sha1", 1.5],
]
ODD_PROOFS += [["chap-sha1", 10**18], ["chap-sha1", ""], ["chap-sha1", "x" * 21], ["pap-sha256", "secret"]]
ODD_PROOFS += [{"a": 1}, [["chap-sha1"], "x" * 20], ["chap-sha1", ["x" * 20]]]


@pytest.mark.parametrize("given", ODD_PROOFS, ids=range(len(ODD_PROOFS)))
async def test_a_malformed_auth_is_refused_without_a_traceback(
    spool: Path, given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with relaying(spool, **USERS) as relay, Client(relay) as evil:
        await evil.greet()
        assert (await evil.ask(AUTH, {0x23: "central", 0x21: given})).error_code == 20
        assert await evil.is_closed()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


ODD_REQUESTS: list[tuple[int, dict[int, Any]]] = [
    (SELECT, {0x10: 320, 0x20: 5}),
    (SELECT, {0x10: [320], 0x20: []}),
    (SELECT, {0x10: "x\n\x1b[31m" + "y" * 60_000}),
    (SUBSCRIBE, subscription(1) | {0x73: 5}),
    (SUBSCRIBE, subscription(1) | {0x73: [5]}),
    (SUBSCRIBE, subscription(1) | {0x51: 5}),
    (SUBSCRIBE, subscription(1) | {0x51: [32]}),
    (SUBSCRIBE, subscription(1) | {0x51: [True]}),
    (SUBSCRIBE, subscription(1) | {0x26: {1: 2**64 - 1}}),
    (SUBSCRIBE, subscription(1) | {0x24: 5}),
    (SUBSCRIBE, subscription(1) | {0x24: "../../etc"}),
]


@pytest.mark.parametrize("request_", ODD_REQUESTS, ids=range(len(ODD_REQUESTS)))
async def test_a_malformed_request_is_refused_without_a_traceback(
    spool: Path, request_: tuple[int, dict[int, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with relaying(spool) as relay, Client(relay) as evil:
        await evil.greet()
        assert (await evil.ask(*request_)).error_code in (20, 42)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert all(len(record.getMessage()) < 1500 for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("is_acknowledging", [True, False])
async def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path, is_acknowledging: bool) -> None:
    write_spool(tmp_path / "spool", 40, 1 << 20)
    async with (
        relaying(tmp_path / "spool", silence_seconds=2) as relay,
        Client(relay) as slow,
        Client(relay) as good,
    ):
        await slow.greet()
        await good.greet()
        slow.writer.write(encode_packet(SUBSCRIBE, 1, subscription(1)))
        await until(lambda: any(session.subscriber for session in relay.sessions))
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
        while any(session.subscriber for session in relay.sessions):
            if is_acknowledging:
                slow.writer.write(encode_packet(0, 0, {0x26: {}}))
            await asyncio.sleep(0.05)
            assert (await good.ask(PING, {})).type == 0


async def test_the_relay_waits_while_file_descriptors_are_exhausted(
    spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "ACCEPT_RETRY_SECONDS", 0.01)
    real, failures = asyncio.SelectorEventLoop.sock_accept, [20]

    async def accept(loop: Any, listener: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return await real(loop, listener)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", accept)
    async with relaying(spool) as relay, Client(relay) as good:
        await good.greet()
        assert failures == [0]
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


async def subscribe_and_acknowledge(client: Client, number: int) -> int | None:
    """Subscribe and acknowledge all rows; return the code of the error, or None."""
    answer = await client.ask(SUBSCRIBE, subscription(number))
    if answer.error_code is None:
        client.writer.write(encode_packet(0, 0, {0x26: {1: START + 1}}))
    return answer.error_code


async def test_an_acknowledgement_does_not_expire_while_its_subscriber_is_connected(spool: Path) -> None:
    """A subscriber that waits, as for room on its disk, acknowledges the same vclock again and again."""
    name = f"relay-{ME.format(1)}"
    path = spool / acks.ACKS_FOLDER / f"{name}.json"
    async with relaying(spool) as relay, Client(relay) as client:
        await client.greet()
        assert await subscribe_and_acknowledge(client, 1) is None
        await until(lambda: name in read_acks(spool))
        os.utime(path, (1.0, 1.0))
        await until(lambda: read_acks(spool)[name].modified_at > 1.0)
        path.unlink()
        await until(lambda: name in read_acks(spool))


async def test_an_acknowledgement_that_cannot_be_written_is_retried(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ACK_WRITE_SECONDS", 0.01)
    real, failures = acks.write_ack, [3]

    def failing(*arguments: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(server, "write_ack", failing)
    async with relaying(spool) as relay, Client(relay) as good:
        await good.greet()
        assert await subscribe_and_acknowledge(good, 1) is None
        await until(lambda: relay.ack_error is not None)
        await until(lambda: f"relay-{ME.format(1)}" in read_acks(spool))
        await until(lambda: relay.ack_error is None)


async def test_a_malformed_acknowledgement_ends_only_its_own_connection(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ACK_WRITE_SECONDS", 0.01)
    async with relaying(spool) as relay, Client(relay) as evil, Client(relay) as good:
        for number, client in enumerate((evil, good)):
            await client.greet()
            assert await subscribe_and_acknowledge(client, number) is None
        evil.writer.write(encode_packet(0, 0, {0x26: {1: 2**63}}))
        assert await evil.is_closed()
        await until(lambda: f"relay-{ME.format(1)}" in read_acks(spool))
        assert all(ack.error is None for ack in read_acks(spool).values())
        assert good.writer.transport.is_closing() is False


async def test_the_number_of_subscribers_with_acknowledgements_is_limited(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ACK_WRITE_SECONDS", 0.01)
    async with relaying(spool, ClientLimits(max_subscribers=2)) as relay:
        for number in range(2):
            async with Client(relay) as client:
                await client.greet()
                assert await subscribe_and_acknowledge(client, number) is None
                await until(lambda n=number: f"relay-{ME.format(n)}" in read_acks(spool))  # type: ignore[misc]
        async with Client(relay) as third, Client(relay) as first:
            assert await subscribe_and_acknowledge(await third.greet(), 7) == 42
            assert await subscribe_and_acknowledge(await first.greet(), 1) is None


async def test_a_malformed_system_row_is_skipped(tmp_path: Path) -> None:
    members: tuple[list[Any], ...] = ([1, A1], ["2", A1], [3], [4, 5], [77, A1], [5, DAEMON])
    write_spool(tmp_path / "spool", 1, members=members)
    async with relaying(tmp_path / "spool") as relay, Client(relay) as good:
        await good.greet()
        rows = (await good.ask(SELECT, {0x10: 320})).body[0x30]
        assert rows == [[1, A1], [5, DAEMON]]
        assert relay.error is None


def test_an_empty_password_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELAY_PASSWORD", "")
    (tmp_path / "empty").write_text("\nsecond line")
    for password in (
        PasswordSource(env_variable="RELAY_PASSWORD"),
        PasswordSource(file=str(tmp_path / "empty")),
    ):
        with pytest.raises(ConfigurationError, match="empty"):
            password.read()


def test_a_password_file_that_others_can_write_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    assert PasswordSource(file=str(path)).read() == "secret"
    assert caplog.records == []
    path.chmod(0o644)
    for _ in range(3):
        assert PasswordSource(file=str(path)).read() == "secret"
    assert len(caplog.records) == 1
    path.chmod(0o622)
    with pytest.raises(ConfigurationError, match="change"):
        PasswordSource(file=str(path)).read()
