"""Events in a replicaset while the daemon follows it: elections, owners of the queue, names, a new member."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from sources.spool.catalog import SpoolCatalog
from sources.subscribe.options import FeedMode
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.live.client import TarantoolError
from tests.live.mesh import Mesh, instance_uuid, mesh
from tests.live.server import Tarantool, release_here
from tests.pipeline.deployment import Deployment
from tests.sources.subscribe.following import await_until, following, options
from tests.sources.subscribe.test_following import addresses, await_all, check, write

pytestmark = pytest.mark.live

SYNC = "box.schema.space.create('sync', {is_sync = true}):create_index('pk')"
PACKED = """
    local found = {}
    for _, one in box.space[...]:pairs() do
        table.insert(found, (string.hex(require('msgpack').encode(one))))
    end
    return {found}
"""
needs_promote = pytest.mark.skipif(
    release_here() < (2, 10), reason="servers before 2.10 have no box.ctl.promote"
)


def packed(server: Tarantool, space: str) -> list[bytes]:
    return sorted(bytes.fromhex(one) for one in server.eval(PACKED, space)[0])


def leaders(masters: Mesh) -> list[int]:
    return [
        number
        for number, server in masters.members.items()
        if server._process is not None and not server.eval("return box.info.ro")
    ]


@pytest.fixture
def candidates(tmp_path: Path) -> Iterator[Mesh]:
    """Yield three members that elect their leader."""
    cfg = {"replication_synchro_quorum": 2, "replication_synchro_timeout": 10, "election_timeout": 1}
    with mesh(tmp_path, 3, cfg) as masters:
        for number in (1, 2, 3):
            masters[number].eval("box.cfg{election_mode = 'candidate'}")
        await_until(lambda: len(leaders(masters)) == 1, "a leader")
        yield masters


@needs_promote
@pytest.mark.parametrize("feed", list(FeedMode))
def test_a_leader_that_fails_is_followed_by_the_elected_one(
    candidates: Mesh, tmp_path: Path, feed: FeedMode
) -> None:
    (first,) = leaders(candidates)
    candidates[first].eval(SYNC)
    spool = tmp_path / "spool"
    with following(options(spool, *addresses(candidates), feed=feed)) as replicaset:
        await_until(lambda: bool(replicaset.feeds), "a stream")
        write(candidates, first, 0, 20)
        candidates[first].eval("for i = 1, 5 do box.space.sync:replace{i, 'first'} end")
        candidates[first].kill()
        rest = [number for number in (1, 2, 3) if number != first]
        await_until(lambda: len(leaders(candidates)) == 1, "another leader")
        (second,) = leaders(candidates)
        write(candidates, second, 10, 20, "second")
        candidates[second].eval("for i = 4, 9 do box.space.sync:replace{i, 'second'} end")
        vclock = candidates.vclock(second)
        await_until(lambda: replicaset.spool.vclock == vclock, "the second leader's rows")
        expected = {space: packed(candidates[second], space) for space in ("load", "sync")}
        assert second in rest
    deployment = Deployment(tmp_path, {"a": spool}, start="snapshot")
    deployment.run()
    for space, tuples in expected.items():
        assert deployment.tuples(space) == tuples
    assert len(expected["sync"]) == 9


@needs_promote
@pytest.mark.parametrize("feed", list(FeedMode))
def test_the_queue_gets_other_owners(tmp_path: Path, feed: FeedMode) -> None:
    """The owner changes twice; a transaction of each owner is confirmed, one is rolled back."""
    spool = tmp_path / "spool"
    with mesh(tmp_path, 2, {"replication_synchro_quorum": 2, "replication_synchro_timeout": 1.5}) as masters:
        masters[1].eval("box.ctl.promote()")
        masters[1].eval(SYNC)
        with following(options(spool, *addresses(masters), feed=feed)) as replicaset:
            await_until(lambda: bool(replicaset.feeds), "a stream")
            for number in (1, 2, 1):
                await_until(lambda: masters.vclock(1) == masters.vclock(2), "replication")
                masters[number].eval(
                    "if box.info.synchro.queue.owner ~= box.info.id then box.ctl.promote() end"
                )
                write(masters, number, 10 * number, 5, f"of {number}")
                masters[number].eval(
                    "for _, k in ipairs{box.info.id, 3} do box.space.sync:replace{k, box.info.lsn} end"
                )
            masters[1].eval("box.cfg{replication_synchro_quorum = 3}")
            with pytest.raises(TarantoolError, match=r"(?i)quorum"):
                masters[1].eval("box.space.sync:replace{4, 'never'}")
            masters[1].eval("box.cfg{replication_synchro_quorum = 2} box.space.sync:replace{5, 'behind'}")
            await_all(masters, replicaset)
        expected = packed(masters[1], "sync")
        check(masters, spool)
    deployment = Deployment(tmp_path, {"a": spool}, start="snapshot")
    deployment.run()
    assert deployment.tuples("sync") == expected
    assert len(expected) == 4


@pytest.mark.skipif(release_here() < (3, 0), reason="servers before 3.0 have no names")
def test_names_of_instances_and_of_the_replicaset(tmp_path: Path) -> None:
    """A member that gets a name later is the same instance, with the same rows."""
    spool = tmp_path / "spool"
    names: dict[str, Any] = {"replicaset_name": "rs-a"}
    with mesh(tmp_path, 2, names) as masters:
        masters[1].eval("box.cfg{instance_name = 'a-one'}")
        with following(options(spool, *addresses(masters))) as replicaset:
            await_until(lambda: bool(replicaset.feeds), "a stream")
            write(masters, 1, 0, 10)
            masters[2].eval("box.cfg{instance_name = 'a-two'}")
            write(masters, 2, 100, 10)
            await_all(masters, replicaset)
            rows = masters[1].eval("return box.space._cluster:select()")
            assert rows == [[1, instance_uuid(1), "a-one"], [2, instance_uuid(2), "a-two"]]
            assert replicaset.chooser.owners == {1: instance_uuid(1), 2: instance_uuid(2)}
        check(masters, spool)
    catalog = SpoolCatalog(spool)
    catalog.refresh()
    assert catalog.cluster == {1: instance_uuid(1), 2: instance_uuid(2)}
    deployment = Deployment(tmp_path, {"a": spool}, start="snapshot")
    deployment.run()
    assert {row["uuid"] for row in deployment.rows("_cluster")} >= {instance_uuid(1), instance_uuid(2)}


def fed_ids(replicaset: ReplicasetSubscription, peer: str) -> Collection[int] | None:
    """Return the replica ids whose rows a peer sends; None if it has no stream."""
    feed = replicaset.feeds.get(peer)
    return None if feed is None else feed.ids


@pytest.mark.parametrize("feed", list(FeedMode))
def test_a_member_is_expelled_and_replaced_while_it_is_followed(tmp_path: Path, feed: FeedMode) -> None:
    """The new member gets the replica id of the old one, and writes rows with it."""
    spool = tmp_path / "spool"
    with (
        mesh(tmp_path, 2) as masters,
        following(options(spool, *addresses(masters), feed=feed)) as replicaset,
    ):
        await_until(lambda: bool(replicaset.feeds), "a stream")
        write(masters, 1, 0, 10)
        write(masters, 2, 100, 10)
        await_all(masters, replicaset)
        masters[2].stop()
        masters[1].eval("box.space._cluster:delete(2)")
        new = {
            "instance_uuid": instance_uuid(9),
            "replicaset_uuid": masters[1].eval("return box.info.cluster.uuid"),
            "replication": [addresses(masters)[0]],
        }
        socket = masters[2].socket
        with Tarantool(tmp_path / "new", cfg=new, socket=socket) as server:
            masters[1].eval("box.cfg{replication = ...}", [f"unix/:{socket}"])
            assert masters.cluster(1) == {1: instance_uuid(1), 2: instance_uuid(9)}
            await_until(
                lambda: replicaset.chooser.owners == {1: instance_uuid(1), 2: instance_uuid(9)}, "its owner"
            )
            await_until(lambda: server.eval("return box.info.status") == "running", "the member")
            server.eval("for i = 200, 209 do box.space.load:replace{i, 'of the new one'} end")
            await_until(lambda: masters.vclock(1)[2] == server.eval("return box.info.lsn"), "replication")
            await_until(lambda: replicaset.spool.vclock == masters.vclock(1), "its rows")
            if feed is FeedMode.OWN_PEER:
                # It sends the rows of both for as long as the other server has not noticed that the daemon's
                # last stream is closed, and refuses the next one.
                await_until(lambda: fed_ids(replicaset, instance_uuid(9)) == {2}, "a stream of its own")
        expected = packed(masters[1], "load")
    deployment = Deployment(tmp_path, {"a": spool}, start="snapshot")
    deployment.run()
    assert deployment.tuples("load") == expected
    members = {row["uuid"]: row["expelled_at"] for row in deployment.rows("_cluster")}
    assert members[instance_uuid(2)] is not None
    assert members[instance_uuid(9)] is None
    by_replica_id = {
        row["lsn"]: row["global_id"] for row in deployment.rows("_changelog") if row["replica_id"] == 2
    }
    assert len(set(by_replica_id.values())) == 2
