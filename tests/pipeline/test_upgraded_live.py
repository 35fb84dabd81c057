"""Real servers of several versions: the tables are what the servers hold, from their directories and from spools."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sources.subscribe.options import FeedMode
from sources.subscribe.replicaset import ReplicasetSubscription
from sources.xlog.format.meta import Meta, parse_meta, peer_versions
from tests.live.server import Tarantool, find_servers, version_of
from tests.pipeline.deployment import Deployment
from tests.sources.subscribe.following import await_until, following, has, options
from udfs.operations.update_rules import release_of, rules_of

pytestmark = pytest.mark.live

CREATE = """
    box.schema.space.create('s', {if_not_exists = true}):create_index('p', {if_not_exists = true})
"""
UPSERTS = """
    local key = ...
    box.begin()
    for _, k in ipairs({key, 100}) do
        box.space.s:upsert({k, 'a', 0}, {{'=', 2, 'a'}})
        box.space.s:upsert({k, 'x', 0}, {{'=', 5, 'late'}})
        box.space.s:upsert({k, 'x', 0}, {{'+', 3, 1}, {'+', 3, 1}})
        box.space.s:upsert({k, 'x', 0}, {{'+', 2, 1}, {'=', 2, 'b'}})
    end
    box.commit()
"""
"""What servers before 2.8, before 3.0 and since do otherwise (`udfs.operations.update_rules`)."""


def unlike() -> list[str]:
    """Return the servers here whose rules differ, the oldest first."""
    by_version = {version_of(binary): binary for binary in find_servers()}
    found: list[str] = []
    for version in sorted(by_version, key=release_of):
        if not found or rules_of(version) != rules_of(found[-1]):
            found.append(version)
    return [by_version[version] for version in found]


def binaries() -> list[str]:
    found = unlike()
    if len(found) < 2:
        pytest.skip("TARANTOOL names no two servers whose rules differ")
    return found


def truth(server: Tarantool) -> list[list[Any]]:
    return [list(row) for row in server.eval("return box.space.s:select()") or []]


def check(folder: Path, path: Path, start: str, expected: list[list[Any]]) -> None:
    """Compare the tables with what a server holds: one batch, and one for each block."""
    for name, cut in (("whole", None), ("apart", 1)):
        deployment = Deployment(folder / name, {"a1": path}, start=start)
        deployment.run(cut)
        assert deployment.fields() == expected, (path, name)


def metas(spool: Path) -> list[Meta]:
    return [parse_meta(path.read_bytes(), path.name) for path in sorted(spool.glob("*.xlog"))]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_server_that_is_upgraded(tmp_path: Path, is_restarted: bool) -> None:
    """The daemon runs through the upgrades, or is started again with each server."""
    chosen = binaries()
    folder, spool, socket = tmp_path / "a1", tmp_path / "spool", tmp_path / "a1.sock"
    cfg = {"checkpoint_count": 100, "replication_timeout": 0.5}
    states: list[list[list[Any]]] = []

    def work(number: int, binary: str, replicaset: ReplicasetSubscription) -> None:
        with Tarantool(folder, cfg=cfg, lua=CREATE, socket=str(socket), binary=binary) as server:
            if number:
                assert truth(server) == states[-1]  # what it recovered, from a snapshot alone
                server.eval("box.schema.upgrade()")
            await_until(lambda: bool(replicaset.feeds), "a stream")
            server.eval(UPSERTS, number)
            server.eval("box.snapshot()")
            states.append(truth(server))
            await_until(has(replicaset, [server]), "the server's rows")

    how = options(spool, f"unix/:{socket}")
    if is_restarted:
        for number, binary in enumerate(chosen):
            with following(how) as replicaset:
                work(number, binary, replicaset)
    else:
        with following(how) as replicaset:
            for number, binary in enumerate(chosen):
                work(number, binary, replicaset)
    own = [row[1:] for row in states[-1][: len(chosen)]]
    assert all(one != other for one, other in pairwise(own)), "the versions do the same"
    check(tmp_path / "of directory", folder, "logs", states[-1])
    check(tmp_path / "of spool", spool, "snapshot", states[-1])
    versions = [meta.other["Version"] for meta in metas(spool)]
    assert list(dict.fromkeys(versions)) == [
        ".".join(map(str, release_of(version_of(binary)))) for binary in chosen
    ]


def test_rows_since_the_last_snapshot_are_those_of_their_server(tmp_path: Path) -> None:
    """A server that starts applies them once more, by its own rules: a snapshot before an upgrade keeps them."""
    older, newer = binaries()[:2]
    folder = tmp_path / "a1"
    with Tarantool(folder, lua=CREATE, binary=older) as server:
        server.eval(UPSERTS, 0)
        executed = truth(server)
    with Tarantool(folder, lua=CREATE, binary=newer) as server:
        assert truth(server) != executed
    check(tmp_path / "tables", folder, "logs", executed)


def test_peers_of_several_versions(tmp_path: Path) -> None:
    """Each instance's rows come from its own peer, and are computed as that one did."""
    older, newer = binaries()[:2]
    sockets = [str(tmp_path / f"{n}.sock") for n in (1, 2)]
    base = {"replication_timeout": 0.5, "replication_connect_quorum": 0}
    with (
        Tarantool(tmp_path / "1", cfg=base, lua=CREATE, socket=sockets[0], binary=older) as first,
        Tarantool(
            tmp_path / "2",
            cfg={**base, "replication": [f"unix/:{sockets[0]}"]},
            socket=sockets[1],
            binary=newer,
        ) as second,
    ):
        first.eval("box.cfg{replication = ...}", [f"unix/:{one}" for one in sockets])
        how = options(tmp_path / "spool", *(f"unix/:{one}" for one in sockets), feed=FeedMode.OWN_PEER)
        expected: list[list[Any]] = []
        with following(how) as replicaset:
            await_until(lambda: len(replicaset.feeds) == 2, "both streams")
            for key in (1, 3):
                for number, server in enumerate((first, second)):
                    server.eval(UPSERTS.replace(", 100", ""), key + number)
                    expected += [row for row in truth(server) if row[0] == key + number]
                await_until(has(replicaset, [first, second]), "all rows")
    assert expected[0][1:] != expected[1][1:]
    check(tmp_path / "tables", tmp_path / "spool", "snapshot", expected)
    (meta,) = metas(tmp_path / "spool")
    assert sorted({meta.other["Version"], *peer_versions(meta, "f").values()}, key=release_of) == [
        ".".join(map(str, release_of(version_of(binary)))) for binary in (older, newer)
    ]
