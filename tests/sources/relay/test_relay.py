"""The relay against real subscribers: a Tarantool that follows it, and daemons, with and without a whitelist."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.cluster_checksum import checksum
from schemas.errors import AccessError, IprotoError
from sources.iproto.address import Address, PasswordSource, Peer
from sources.iproto.client import Connection, connect
from sources.iproto.messages import Subscription, parse_cluster_info
from sources.iproto.row_stream import RowStream
from sources.relay.options import RelayOptions
from sources.relay.server import Relay
from sources.spool.acks import read_acks
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.live import Tarantool
from tests.live.mesh import Mesh, instance_uuid, mesh
from tests.live.spools import read_spool, tuples_of
from tests.sources.subscribe.following import await_until, following, options
from tests.sources.subscribe.test_following import addresses, await_all, check, write

pytestmark = pytest.mark.live

ME = "00000000-0000-4000-8000-0000000000ff"


@contextmanager
def serving(directory: Path, socket: Path, **other: Any) -> Iterator[Relay]:
    loop = asyncio.new_event_loop()
    how = RelayOptions(
        "a",
        directory,
        Address(path=str(socket)),
        **({"allows_guest": True, "heartbeat_seconds": 0.2} | other),
    )
    relay = Relay(how)
    task: list[asyncio.Task[None]] = []

    def run() -> None:
        asyncio.set_event_loop(loop)
        task.append(loop.create_task(relay.run()))
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task[0])
        for rest in asyncio.all_tasks(loop):
            rest.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    await_until(lambda: relay.is_listening, "the relay")
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Mesh]:
    with mesh(tmp_path, 2) as found:
        yield found


@contextmanager
def chain(masters: Mesh, tmp_path: Path) -> Iterator[tuple[ReplicasetSubscription, Relay, str]]:
    """Run a daemon on the masters and a relay on its spool."""
    with following(options(tmp_path / "region", *addresses(masters))) as region:
        await_until(lambda: bool(region.feeds), "a stream")
        write(masters, 1, 0, 50)
        write(masters, 2, 100, 50)
        await_all(masters, region)
        with serving(tmp_path / "region", tmp_path / "relay.sock") as relay:
            yield region, relay, f"unix/:{tmp_path}/relay.sock"


def test_a_second_daemon_follows(masters: Mesh, tmp_path: Path) -> None:
    with (
        chain(masters, tmp_path) as (region, _, address),
        following(options(tmp_path / "central", address)) as central,
    ):
        write(masters, 1, 200, 50)
        await_all(masters, region)
        await_until(lambda: central.spool.vclock == region.spool.vclock, "the second spool")
        assert central.links[0].is_relay
        assert central.links[0].cluster == {1: instance_uuid(1), 2: instance_uuid(2)}
        name = f"relay-{central.spool.instance_uuid}"
        await_until(lambda: name in read_acks(tmp_path / "region"), "an acknowledgement")
        await_until(
            lambda: read_acks(tmp_path / "region")[name].vclock == region.spool.vclock, "the last one"
        )
    check(masters, tmp_path / "central")


def test_a_whitelist_is_filtered_at_the_sender(masters: Mesh, tmp_path: Path) -> None:
    with (
        chain(masters, tmp_path) as (region, _, address),
        following(options(tmp_path / "central", address, origins=frozenset({instance_uuid(2)}))) as central,
    ):
        await_until(lambda: bool(central.feeds), "a stream")
        before = dict(central.spool.vclock or {})
        write(masters, 1, 300, 70)
        write(masters, 2, 400, 30)
        await_all(masters, region)
        await_until(lambda: (central.spool.vclock or {}).get(2) == (region.spool.vclock or {})[2], "its rows")
        await_until(
            lambda: central.spool.vclock == region.spool.vclock, "a NOP for each row of the other one"
        )
        assert (central.spool.vclock or {})[1] >= before[1] + 70
        feed = next(iter(central.feeds.values()))
        assert feed.rows.row_counts[2] >= 30
    _, faults, tuples = read_spool(masters[1], tmp_path / "central")
    assert faults == []
    assert {t[0] for t in tuples} >= set(range(400, 430))
    assert not {t[0] for t in tuples} & set(range(300, 370))


def test_a_real_tarantool_follows(masters: Mesh, tmp_path: Path) -> None:
    with chain(masters, tmp_path) as (region, relay, address):
        cfg = {"replication": [address], "replication_anon": True, "read_only": True}
        with Tarantool(tmp_path / "replica", cfg=cfg) as replica:
            write(masters, 1, 500, 50)
            write(masters, 2, 600, 50)
            masters[1].eval("box.space.load:delete{500} box.space.load:update({501}, {{'=', 2, 'u'}})")
            await_all(masters, region)
            await_until(lambda: tuples_of(replica) == tuples_of(masters[1]), "the replica")
            upstream = replica.eval("return box.info.replication_anon and box.info.status")
            assert upstream == "running"
            await_until(
                lambda: any(session.acknowledged for session in relay.sessions), "its acknowledgement"
            )
            assert tuples_of(replica)[0] == [0, "x"]


async def close_connection(connection: Connection) -> None:
    """Close a connection, and let the event loop process this before the loop ends."""
    connection.close()
    await asyncio.sleep(0.02)


def connect_and_select(address: str, user: str | None = None, password: str = "") -> None:
    async def connected() -> None:
        peer = Peer("relay", Address(path=address), user, PasswordSource(env_variable=password or None))
        await close_connection(await connect(peer, 5.0))
        await asyncio.sleep(0.02)

    asyncio.run(connected())


def test_a_user_without_rights_is_refused(
    masters: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGHT_PASSWORD", "secret")
    monkeypatch.setenv("WRONG_PASSWORD", "Secret")
    socket = tmp_path / "closed.sock"
    with (
        chain(masters, tmp_path) as _,
        serving(
            tmp_path / "region",
            socket,
            allows_guest=False,
            users={"central": PasswordSource(env_variable="RIGHT_PASSWORD")},
        ),
    ):
        connect_and_select(str(socket), "central", "RIGHT_PASSWORD")
        for user, password in (("central", "WRONG_PASSWORD"), ("nobody", "RIGHT_PASSWORD")):
            with pytest.raises(AccessError):
                connect_and_select(str(socket), user, password)

        async def as_guest() -> None:
            connection = await connect(Peer("relay", Address(path=str(socket))), 5.0)
            await connection.request_ballot()
            with pytest.raises(AccessError):
                await connection.cluster()
            await close_connection(connection)

        asyncio.run(as_guest())


def test_cluster_information_is_exchanged_once(masters: Mesh, tmp_path: Path) -> None:
    """If the checksums are equal, the length is 0; else there is one packet per instance, the first with the length."""
    with chain(masters, tmp_path) as (region, relay, address):
        path = address.removeprefix("unix/:")
        cluster = {1: instance_uuid(1), 2: instance_uuid(2)}

        async def cluster_info(crc: int) -> tuple[list[dict[int, object]], dict[int, str] | None]:
            connection = await connect(Peer("relay", Address(path=path)), 5.0)
            uuid = await connection.replicaset_uuid()
            rows = RowStream({}, lambda _: None, "relay")
            start = dict(region.spool.vclock or {})
            await connection.subscribe(Subscription(uuid, ME, start, (2, 6, 0), cluster_crc32=crc), rows)
            packets = connection.wire.cluster_info
            await close_connection(connection)
            return [dict(packet.body) for packet in packets], parse_cluster_info(packets)

        assert asyncio.run(cluster_info(checksum(cluster))) == ([{0x72: 0}], None)
        bodies, learned = asyncio.run(cluster_info(0))
        assert learned == cluster
        assert bodies == [{0x72: 2, 2: 1, 0x24: instance_uuid(1)}, {2: 2, 0x24: instance_uuid(2)}]
        assert relay.catalog.cluster == cluster


def test_a_subscriber_behind_the_logs_gets_an_error(masters: Mesh, tmp_path: Path) -> None:
    with chain(masters, tmp_path) as (_, _, address):

        async def subscribe() -> IprotoError:
            connection = await connect(Peer("relay", Address(path=address.removeprefix("unix/:"))), 5.0)
            rows = RowStream({}, lambda _: None, "relay")
            uuid = await connection.replicaset_uuid()
            await connection.subscribe(Subscription(uuid, ME, {}, (2, 6, 0)), rows)
            with pytest.raises(IprotoError) as error:
                await connection.wire.end_of_stream
            await close_connection(connection)
            return error.value

        assert "Missing .xlog file" in str(asyncio.run(subscribe()))
