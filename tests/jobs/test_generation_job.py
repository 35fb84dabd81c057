"""A master removes logs before the daemon has read them: the tables end with the server's tuples."""

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.deployment import Deployment
from tests.live import Tarantool
from tests.sources.subscribe.following import await_until, following, options

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak]

CREATE = """
box.schema.user.grant('guest', 'replication')
local format = {{'id', 'unsigned'}, {'state', 'string'}}
for _, name in pairs({'orders', 'gone', 'other'}) do
    box.schema.space.create(name, {format = format}):create_index('pk')
    for i = 1, 40 do box.space[name]:insert{i, 'old'} end
end
box.schema.space.create('disk', {format = format, engine = 'vinyl'}):create_index('pk')
for i = 1, 40 do box.space.disk:insert{i, 'old'} end
"""
MISSED = """
for i = 1, 10 do box.space.orders:delete(i) box.space.disk:delete(i) end
for i = 11, 20 do box.space.orders:replace{i, 'new'} box.space.disk:replace{i, 'new'} end
for i = 50, 60 do box.space.orders:insert{i, 'new'} end
box.space.gone:drop()
box.space.other:truncate()
local format = {{'id', 'unsigned'}, {'n', 'integer'}}
box.schema.space.create('later', {format = format}):create_index('pk')
box.space.later:insert{1, -1}
-- Nobody has the logs any more.
box.cfg{checkpoint_count = 1}
box.snapshot()
box.space.orders:replace{61, 'new'}
box.snapshot()
"""
AFTER = """
box.space.orders:update(21, {{'=', 2, 'after'}})
box.space.orders:update(11, {{'=', 2, 'after'}})
box.space.orders:delete(22)
box.space.later:insert{2, -2}
box.space.disk:upsert({30, 'x'}, {{'=', 2, 'after'}})
"""
SPACES = ("orders", "gone", "other", "later", "disk")


def own(server: Tarantool, space: str) -> list[Any]:
    return list(server.eval("local s = box.space[...] return s and s:select() or {}", space))


def versions(deployment: Deployment) -> dict[int, tuple[Any, ...]]:
    names = ("_timestamp", "_created", "_global_id", "_lsn")
    return {int(row["id"]): tuple(row[name] for name in names) for row in deployment.rows("orders")}


@pytest.mark.usefixtures("spark")
def test_the_tables_end_with_the_servers_tuples(tmp_path: Path, tarantool: Tarantool) -> None:
    def reached() -> None:
        lsn = tarantool.eval("return box.info.lsn")
        await_until(lambda: (replicaset.spool.vclock or {}).get(1) == lsn, "the spool")

    def check() -> None:
        assert {s: deployment.fields(s) for s in SPACES} == {s: own(tarantool, s) for s in SPACES}

    # The first row is followed by a log: the spool begins before the spaces, which so have origin and time.
    spool = tmp_path / "spool"
    how = options(spool, f"unix/:{tarantool.socket}")
    tarantool.eval("box.session.su('admin', function() box.schema.user.grant('guest', 'replication') end)")
    deployment = Deployment(tmp_path, {"a": spool}, start="snapshot")
    with following(how) as replicaset:
        await_until(lambda: bool(replicaset.feeds), "a stream")
        created = CREATE.replace("box.schema.user.grant('guest', 'replication')", "")
        tarantool.eval(f"box.session.su('admin', function() {created} end)")
        reached()
    deployment.run()
    check()
    before = versions(deployment)
    tarantool.eval(MISSED)
    with following(how) as replicaset:
        reached()
        assert replicaset.progress.fetched_snapshots == 1
        deployment.run()
        check()
        now = versions(deployment)
        assert {i: now[i] for i in range(21, 41)} == {i: before[i] for i in range(21, 41)}
        # What the snapshot changed has no origin, and a time that does not go back.
        assert {now[i][:3] for i in range(11, 21)} == {(*before[i][:2], None) for i in range(11, 21)}
        gaps = deployment.rows("_gaps", ["state", "first_lsn", "last_lsn"])
        assert [gap["state"] for gap in gaps] == ["bridged"]
        tarantool.eval(AFTER)
        reached()
    deployment.run()
    check()
    assert len(deployment.rows("_gaps")) == 1
    assert not deployment.rows("_quarantine")
    assert not deployment.rows("_pending")
