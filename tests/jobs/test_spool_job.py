"""The job over a live spool: files are removed once the tables have their rows, and no earlier."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from config.subscribe import Subscribe
from jobs.subscribe import spool_starts
from sources.spool.acks import read_acks
from sources.spool.options import SpoolOptions, SpoolRetention
from sources.subscribe.daemon import remove_unneeded_files
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.jobs.deployment import Deployment
from tests.live import Tarantool
from tests.sources.subscribe.following import await_until, following, options
from udfs.remap.cluster_replace import FIRST_DAEMON_ID

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak]

CREATE = """
box.schema.user.grant('guest', 'replication')
box.schema.space.create('orders', {format = {{'id', 'unsigned'}, {'state', 'string'}}}):create_index('pk')
"""
ROTATE = SpoolOptions(rotate_bytes=4096, compress=False)


def write(server: Tarantool, replicaset: ReplicasetSubscription, first: int) -> None:
    """Write several files, and wait until they are in the spool."""
    for begin in range(first, first + 200, 50):
        lsn = server.eval(
            """
            local first = ...
            for i = first, first + 49 do box.space.orders:replace{i, string.rep('x', 100)} end
            box.space.orders:delete(first + 7)
            return box.info.lsn
            """,
            begin,
        )
        await_until(lambda lsn=lsn: (replicaset.spool.vclock or {}).get(1) == lsn, "the spool")  # type: ignore[misc]


def same(deployment: Deployment, server: Tarantool) -> bool:
    found: list[Any] = deployment.fields("orders")
    return bool(found == server.eval("return box.space.orders:select({}, {limit = 10000})")) and not (
        deployment.rows("_gaps")
    )


@pytest.mark.usefixtures("spark")
def test_files_go_when_the_tables_have_them(tmp_path: Path, tarantool: Tarantool) -> None:
    tarantool.eval(f"box.session.su('admin', function() {CREATE} end)")
    spool = tmp_path / "spool"
    deployment = Deployment(tmp_path, {"a": spool}, start="snapshot", reader="tables")
    with following(options(spool, f"unix/:{tarantool.socket}", spool=ROTATE)) as replicaset:
        write(tarantool, replicaset, 1)
        deployment.run()
        ids = {row["uuid"]: row["global_id"] for row in deployment.rows("_cluster") if row["replicaset_id"]}
        assert ids == {
            tarantool.eval("return box.info.uuid"): 2,
            replicaset.spool.instance_uuid: FIRST_DAEMON_ID,
        }
        write(tarantool, replicaset, 201)
        deployment.run()
        assert same(deployment, tarantool)
        assert list(read_acks(spool)) == ["tables"]
        before = len(list(spool.glob("*.xlog")))
        remove_unneeded_files(replicaset, SpoolRetention())
        assert 1 < len(list(spool.glob("*.xlog"))) < before
        assert not list(spool.glob("*.snap"))
        # As if the job had been killed behind its epoch: Spark asks for the whole batch once more.
        commits = sorted(
            (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name)
        )
        for file in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
            file.unlink()
        write(tarantool, replicaset, 401)
        deployment.run()
        assert same(deployment, tarantool)
    # The spool is lost: it begins behind what the tables hold, without a snapshot, and so does a new checkpoint.
    shutil.rmtree(spool)
    deployment.forget_checkpoint()
    section = Subscribe.model_validate(
        {
            "warehouse": str(tmp_path / "warehouse"),
            "database": deployment.database,
            "replicasets": [
                {"name": "its-own", "source": "a", "spool": str(spool), "peers": ["unix/:/x"]},
                {"name": "unknown", "spool": str(tmp_path / "unknown"), "peers": ["unix/:/y"]},
            ],
        }
    )
    start, unknown = spool_starts(section)
    assert start is not None
    assert unknown is None
    assert dict(start.vclock) == {1: tarantool.eval("return box.info.lsn")}
    with following(options(spool, f"unix/:{tarantool.socket}", spool=ROTATE), start) as replicaset:
        write(tarantool, replicaset, 801)
        assert replicaset.progress.fetched_snapshots == 0
        assert spool_starts(section)[0] is None
        deployment.run()
    assert same(deployment, tarantool)
