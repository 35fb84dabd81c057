"""A daemon that keeps only the rows of some instances: definitions and registrations of others still come."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sources.subscribe.options import FeedMode
from tests.live.mesh import instance_uuid, mesh
from tests.live.server import Tarantool, release_here
from tests.pipeline.deployment import Deployment
from tests.sources.relay.test_relay import serving
from tests.sources.subscribe.following import await_until, following, options
from tests.sources.subscribe.test_following import addresses, await_all, write

pytestmark = pytest.mark.live

FRESH = "box.schema.space.create('fresh'):create_index('pk', {type = 'tree'})"
NEW = instance_uuid(9)
LISTED = frozenset({instance_uuid(1), NEW})


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
            replica: dict[str, Any] = {
                "instance_uuid": NEW,
                "replication": [addresses(masters)[1]],
                "read_only": False,
            }
            if release_here() >= (2, 11):
                replica["bootstrap_strategy"] = "legacy"  # by master 2, though it knows master 1
            replica["replicaset_uuid"] = masters[1].eval("return box.info.cluster.uuid")
            with Tarantool(tmp_path / "new", cfg=replica) as server:
                everybody = [*addresses(masters), f"unix/:{server.socket}"]
                masters[2].eval("box.cfg{replication = ...}", everybody)
                await_until(lambda: server.eval("return box.info.status") == "running", "the member")
                server.eval("for i = 50, 55 do box.space.fresh:replace{i, 'kept, too'} end")
                number = server.eval("return box.info.id")
                await_until(lambda: masters.vclock(1).get(number, 0) >= 6, "replication", 20)
                await_until(lambda: replicaset.spool.vclock == masters.vclock(1), "each row")
                assert replicaset.progress.snapshots == 1
    deployment = Deployment(tmp_path, {"a": tmp_path / "spool"}, start="snapshot")
    deployment.run()
    rows = deployment.tuples("fresh")
    assert len(rows) == 5 + 6
    assert not any(b"left out" in one for one in rows + deployment.tuples("load"))
    assert len(deployment.tuples("load")) == 20
    assert deployment.rows("_pending") == []
    assert deployment.rows("_gaps") == []


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
                assert replicaset.progress.snapshots == (round_ == 0)
                assert replicaset.progress.repeated == 0
    deployment = Deployment(tmp_path, {"a": tmp_path / "spool"}, start="snapshot")
    deployment.run()
    types = {(row["replica_id"], row["type"]) for row in deployment.rows("_changelog") if row["replica_id"]}
    assert (1, "REPLACE") in types
    assert not {(2, "REPLACE"), (2, "INSERT")} & types
    assert deployment.rows("_gaps") == []
