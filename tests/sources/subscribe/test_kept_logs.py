"""Logs that a server keeps for a daemon: from the snapshot on, shown by the status, and released by hand."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from sources.iproto.address import Peer, parse_address
from sources.iproto.client import connect
from sources.iproto.messages import Ballot, answer_vclock
from sources.iproto.row_stream import SnapshotStream
from sources.subscribe.daemon import DaemonMetrics, replicaset_status
from tests.live.mesh import Mesh, mesh
from tests.live.server import release_here
from tests.sources.subscribe.following import await_until, following, options
from tests.sources.subscribe.test_following import addresses, await_all, check, drop_retained_logs, write

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        release_here() < (3, 3), reason="servers before 3.3 keep no logs for anonymous replicas"
    ),
]

ROTATE = """
    box.cfg{checkpoint_count = 1}
    for i = 1, 3 do box.space.load:replace{i, 'rotated'} box.snapshot() end
"""


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Mesh]:
    with mesh(tmp_path, 1) as found:
        yield found


async def between(masters: Mesh, uuid: str) -> tuple[dict[int, int], Ballot]:
    """Fetch a snapshot, let the server rotate its logs, and return the snapshot's vclock and the new ballot."""
    address = addresses(masters)[0]
    connection = await connect(Peer("master", parse_address(address)[1]), 5.0)
    answer = await connection.fetch_snapshot(SnapshotStream(lambda _: None, "master"), uuid)
    await connection.wire.end_of_stream
    connection.close()
    masters[1].eval(ROTATE)
    connection = await connect(Peer("master", parse_address(address)[1]), 5.0)
    ballot = await connection.request_ballot()
    connection.close()
    return answer_vclock(answer), ballot


def test_logs_behind_the_snapshot_are_kept_until_the_stream_begins(masters: Mesh) -> None:
    uuid = str(uuid4())
    snapshot, ballot = asyncio.run(between(masters, uuid))
    assert ballot.gc_vclock.get(1, 0) <= snapshot[1] < ballot.vclock[1]
    drop_retained_logs(masters, 1, uuid)
    masters[1].eval(ROTATE)
    kept = "return box.info.gc().signature"
    await_until(lambda: masters[1].eval(kept) > snapshot[1], "the end of the logs")


def test_a_daemon_that_is_away_continues_from_the_logs(masters: Mesh, tmp_path: Path) -> None:
    how = options(tmp_path / "spool", *addresses(masters))
    with following(how) as replicaset:
        write(masters, 1, 0, 10)
        await_all(masters, replicaset)
    masters[1].eval(ROTATE)
    with following(how) as replicaset:
        await_all(masters, replicaset)
        assert replicaset.progress.fetched_snapshots == 0
    check(masters, tmp_path / "spool")


def test_the_status_says_what_is_kept(masters: Mesh, tmp_path: Path) -> None:
    with following(options(tmp_path / "spool", *addresses(masters))) as replicaset:
        await_until(lambda: replicaset.links[0].retained_vclock is not None, "what is kept")
        write(masters, 1, 0, 10)
        await_all(masters, replicaset)
        lsn = masters.vclock(1)[1]

        def kept_rows() -> int:
            peer = replicaset_status(replicaset)["peers"][0]
            assert peer["kept_from"]["1"] <= lsn - 10
            return int(peer["kept_rows"])

        await_until(lambda: kept_rows() >= 10, "the newest ballot")
        registry = CollectorRegistry()
        registry.register(DaemonMetrics([replicaset]))
        labels = {"replicaset": "a", "peer": replicaset.links[0].name}
        assert registry.get_sample_value("subscribe_kept_rows", labels) == kept_rows()
