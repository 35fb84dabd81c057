"""A daemon that keeps only the rows of some instances: definitions and registrations of others still come.

No row of a listed instance is lost, also if it comes before the row of `_cluster` that names the instance.
"""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import UnknownInstanceError
from sources.subscribe.options import FeedMode, SpoolStart
from sources.subscribe.peer_rows import PeerFeed
from tests.live.mesh import Mesh, instance_uuid, mesh
from tests.live.server import Tarantool, release_here
from tests.pipeline.deployment import Deployment
from tests.sources.relay.test_relay import serving
from tests.sources.subscribe.following import await_until, following, kept_rows, options
from tests.sources.subscribe.test_following import addresses, await_all, write

pytestmark = pytest.mark.live

FRESH = "box.schema.space.create('fresh'):create_index('pk', {type = 'tree'})"
NEW = instance_uuid(9)
LISTED = frozenset({instance_uuid(1), NEW})


def new_replica(masters: Mesh, number: int) -> dict[str, Any]:
    """Return the options of `box.cfg` of a new instance that a master registers."""
    replica: dict[str, Any] = {
        "instance_uuid": NEW,
        "replication": [addresses(masters)[number - 1]],
        "read_only": False,
        "replicaset_uuid": masters[1].eval("return box.info.cluster.uuid"),
    }
    if release_here() >= (2, 11):
        replica["bootstrap_strategy"] = "legacy"  # by this master, though it knows the other one
    return replica


@pytest.mark.parametrize("way", [*FeedMode, "relay"])
def test_filtered_rows_block_no_stream(tmp_path: Path, way: FeedMode | str) -> None:
    """Instance 2 creates a space and registers instance 9; its other rows become NOPs, with all lsns."""
    feed = way if isinstance(way, FeedMode) else FeedMode.LEADER
    with mesh(tmp_path, 2) as masters, ExitStack() as stack:
        names = addresses(masters)
        if way == "relay":
            region = stack.enter_context(following(options(tmp_path / "region", *names)))
            await_until(lambda: bool(region.feeds), "a stream")
            stack.enter_context(serving(tmp_path / "region", tmp_path / "relay.sock"))
            names = [f"unix/:{tmp_path}/relay.sock"]
        how = options(tmp_path / "spool", *names, feed=feed, origins=LISTED)
        with following(how) as replicaset:
            await_until(lambda: bool(replicaset.feeds), "a stream")
            masters[2].eval(FRESH)
            write(masters, 2, 100, 20, "left out")
            masters[2].eval("for i = 100, 105 do box.space.fresh:replace{i, 'left out'} end")
            await_until(lambda: masters.vclock(1) == masters.vclock(2), "replication")
            masters[1].eval("for i = 1, 5 do box.space.fresh:replace{i, 'kept'} end")
            write(masters, 1, 0, 20, "kept")
            with Tarantool(tmp_path / "new", cfg=new_replica(masters, 2)) as server:
                everybody = [*addresses(masters), f"unix/:{server.socket}"]
                masters[2].eval("box.cfg{replication = ...}", everybody)
                await_until(lambda: server.eval("return box.info.status") == "running", "the member")
                server.eval("for i = 50, 55 do box.space.fresh:replace{i, 'kept, too'} end")
                number = server.eval("return box.info.id")
                await_until(lambda: masters.vclock(1).get(number, 0) >= 6, "replication", 20)
                await_until(lambda: replicaset.spool.vclock == masters.vclock(1), "each row")
                assert replicaset.progress.fetched_snapshots == 1
    deployment = Deployment(tmp_path, {"a": tmp_path / "spool"}, start="snapshot")
    deployment.run()
    rows = deployment.tuples("fresh")
    assert len(rows) == 5 + 6
    assert not any(b"left out" in one for one in rows + deployment.tuples("load"))
    assert len(deployment.tuples("load")) == 20
    assert deployment.rows("_pending") == []
    assert deployment.rows("_gaps") == []


def test_rows_of_a_new_instance_are_kept_before_its_registration_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Master 1 registers instance 9, but its stream is held back while the rows of 9 come from 9 itself."""
    is_held = threading.Event()
    set_paused = PeerFeed.set_paused

    def hold_back(feed: PeerFeed, is_paused: bool) -> None:
        set_paused(feed, is_paused or (is_held.is_set() and feed.link.uuid == instance_uuid(1)))

    monkeypatch.setattr(PeerFeed, "set_paused", hold_back)
    with ExitStack() as stack:
        masters = stack.enter_context(mesh(tmp_path, 2))
        socket = f"{tmp_path}/new.sock"
        names = [*addresses(masters), f"unix/:{socket}"]
        how = options(tmp_path / "spool", *names, feed=FeedMode.OWN_PEER, origins=frozenset({NEW}))
        replicaset = stack.enter_context(following(how))
        await_until(lambda: len(replicaset.feeds) == 2, "both streams")
        write(masters, 1, 0, 10)
        await_all(masters, replicaset)
        is_held.set()
        await_until(lambda: replicaset.feeds[instance_uuid(1)]._is_paused, "the pause")
        new = Tarantool(tmp_path / "new", cfg=new_replica(masters, 1), socket=socket)
        server = stack.enter_context(new)
        await_until(lambda: server.eval("return box.info.status") == "running", "the member")
        number = server.eval("return box.info.id")
        server.eval("for i = 50, 59 do box.space.load:replace{i, 'kept'} end")
        await_until(
            lambda: (
                NEW in replicaset.feeds and replicaset.feeds[NEW].queue.received_vclock.get(number, 0) >= 10
            ),
            "its rows",
        )
        is_held.clear()
        await_until(lambda: (replicaset.spool.vclock or {}).get(number, 0) >= 10, "the spool")
        assert kept_rows(tmp_path / "spool", number) == list(range(1, 11))
        assert replicaset.progress.fetched_snapshots == 1


def test_rows_of_an_instance_that_nobody_names_wait(tmp_path: Path) -> None:
    """Instance 2 was expelled before the spool begins, and still writes; then it is registered again."""
    with ExitStack() as stack:
        masters = stack.enter_context(mesh(tmp_path, 2))
        # A later server that learns of its expulsion replicates no more.
        masters[2].eval("box.cfg{replication = {}}")
        masters[1].eval("box.space._cluster:delete(2)")
        start = SpoolStart(masters[1].eval("return box.info.cluster.uuid"), masters.vclock(1))
        how = options(tmp_path / "spool", *addresses(masters)[:1], origins=frozenset({instance_uuid(2)}))
        replicaset = stack.enter_context(following(how, start))
        (link,) = replicaset.links
        await_until(lambda: bool(replicaset.feeds), "a stream")
        write(masters, 1, 0, 10)
        await_until(lambda: replicaset.spool.vclock == masters.vclock(1), "the rows of 1")
        before = masters.vclock(1).get(2, 0)
        write(masters, 2, 100, 10)
        await_until(lambda: isinstance(link.error, UnknownInstanceError), "the error")
        await_until(lambda: masters.vclock(1).get(2, 0) > before, "replication")
        assert (replicaset.spool.vclock or {}).get(2, 0) == before
        masters[1].eval("box.space._cluster:insert{2, ...}", instance_uuid(2))
        await_until(lambda: replicaset.spool.vclock == masters.vclock(1), "each row")
        assert kept_rows(tmp_path / "spool", 2) == list(range(before + 1, masters.vclock(1)[2] + 1))
        assert replicaset.progress.fetched_snapshots == 0


def test_a_peer_with_filtered_rows_does_not_look_restored(tmp_path: Path) -> None:
    with mesh(tmp_path, 2) as masters:
        how = options(tmp_path / "spool", *addresses(masters)[:1], origins=frozenset({instance_uuid(1)}))

        def receive_rows(first: int) -> None:
            with following(how) as replicaset:
                await_until(lambda: bool(replicaset.feeds), "a stream")
                write(masters, 2, first, 10)
                await_all(masters, replicaset)
                assert [link.error for link in replicaset.links] == [None]

        receive_rows(0)
        receive_rows(10)


def test_a_restart_continues_after_filtered_rows(tmp_path: Path) -> None:
    with mesh(tmp_path, 2) as masters:
        how = options(tmp_path / "spool", *addresses(masters), origins=frozenset({instance_uuid(1)}))
        for round_ in range(3):
            with following(how) as replicaset:
                write(masters, 1, 10 * round_, 10)
                write(masters, 2, 100 + 10 * round_, 10)
                await_all(masters, replicaset)
                assert replicaset.progress.fetched_snapshots == (round_ == 0)
                assert replicaset.progress.repeated_rows == 0
    deployment = Deployment(tmp_path, {"a": tmp_path / "spool"}, start="snapshot")
    deployment.run()
    types = {(row["replica_id"], row["type"]) for row in deployment.rows("_changelog") if row["replica_id"]}
    assert (1, "REPLACE") in types
    assert not {(2, "REPLACE"), (2, "INSERT")} & types
    assert deployment.rows("_gaps") == []
