"""Masters of each version, a daemon and a relay behind them, and subscribers of each version behind the relay."""

import os
from pathlib import Path
from typing import Any

import pytest

from sources.iproto.address import PasswordSource, Peer, parse_address
from tests.live.mesh import REPLICASET, SPACE, instance_uuid
from tests.live.server import Tarantool, find_servers, version_of
from tests.live.spools import tuples_of
from tests.sources.relay.test_relay import serving
from tests.sources.subscribe.following import await_until, following, options

pytestmark = pytest.mark.live

SERVERS: list[Any] = find_servers() or [pytest.param("", marks=pytest.mark.skip("no Tarantool"))]
PASSWORD = "солёное-слово"
READER = """
    box.schema.user.create('reader', {password = '%s', if_not_exists = true})
    box.session.su('admin', box.schema.user.grant, 'reader', 'replication', nil, nil, {if_not_exists = true})
"""


def ids(binary: Any) -> str:
    return Path(binary).name if isinstance(binary, str) else ""


def release(binary: str) -> tuple[int, ...]:
    return tuple(map(int, version_of(binary).split("-")[0].split(".")[:2]))


@pytest.mark.parametrize("subscriber", SERVERS, ids=ids)
@pytest.mark.parametrize("master", SERVERS, ids=ids)
def test_a_subscriber_of_each_version_behind_a_master_of_each(
    tmp_path: Path, master: str, subscriber: str
) -> None:
    """An older server does not start from a newer one's snapshot, with or without the relay."""
    if release(subscriber) < release(master):
        pytest.skip("the subscriber is older than its master")
    name = {"replicaset_name": "rs-a", "instance_name": "one"} if release(master) >= (3, 0) else {}
    cfg = {"instance_uuid": instance_uuid(1), "replicaset_uuid": REPLICASET, **name}
    socket = tmp_path / "relay.sock"
    with (
        Tarantool(tmp_path / "master", cfg=cfg, lua=SPACE, binary=master) as server,
        following(options(tmp_path / "spool", f"unix/:{server.socket}")) as replicaset,
    ):
        await_until(lambda: bool(replicaset.feeds), "a stream")
        server.eval("for i = 1, 50 do box.space.load:replace{i, 'x'} end")
        lsn = server.eval("return box.info.lsn")
        await_until(lambda: replicaset.spool.vclock == {1: lsn}, "the rows")
        replica = {"replication": [f"unix/:{socket}"], "replication_anon": True, "read_only": True}
        with (
            serving(tmp_path / "spool", socket),
            Tarantool(tmp_path / "replica", cfg=replica, binary=subscriber) as behind,
        ):
            server.eval("box.space.load:delete{1} box.space.load:update({2}, {{'=', 2, 'u'}})")
            await_until(lambda: tuples_of(behind) == tuples_of(server), "the subscriber")
            assert behind.eval("return box.info.status") == "running"


@pytest.mark.parametrize("binary", SERVERS, ids=ids)
def test_a_user_with_a_password(tmp_path: Path, binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """chap-sha1; pap-sha256 is Tarantool Enterprise's."""
    monkeypatch.setenv("READER_PASSWORD", PASSWORD)
    assert os.environ["READER_PASSWORD"] == PASSWORD
    with Tarantool(tmp_path / "master", lua=SPACE + READER % PASSWORD, binary=binary) as server:
        address = parse_address(f"unix/:{server.socket}")[1]
        peer = Peer("master", address, "reader", PasswordSource(env_variable="READER_PASSWORD"))
        how = options(tmp_path / "spool")
        with following(type(how)(how.name, how.directory, (peer,), timing=how.timing)) as replicaset:
            await_until(lambda: bool(replicaset.feeds), "a stream")
            server.eval("box.space.load:replace{1, 'x'}")
            lsn = server.eval("return box.info.lsn")
            await_until(lambda: replicaset.spool.vclock == {1: lsn}, "the row")
