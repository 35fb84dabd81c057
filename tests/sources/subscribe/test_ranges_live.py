"""The daemon follows a real 3.9 past its DELETE_RANGE rows, and the tables of its spool equal the server's."""

from pathlib import Path

import pytest

from tests.live.mesh import REPLICASET, SPACE, instance_uuid
from tests.live.server import Tarantool, find_servers
from tests.pipeline.deployment import Deployment
from tests.sources.subscribe.following import await_until, following, options

pytestmark = pytest.mark.live

SERVERS = [one for one in find_servers() if "3.9" in one]
LOAD = """
    for i = 1, 100 do box.space.load:replace{i, 'x'} end
    box.space.load:delete_range({10}, {20})
    box.begin() box.space.load:replace{15, 'again'} box.space.load:delete_range({90}, {}) box.commit()
    box.space.load:replace{95, 'last'}
"""


@pytest.mark.parametrize("binary", SERVERS or [pytest.param("", marks=pytest.mark.skip("no Tarantool 3.9"))])
def test_a_stream_continues_after_delete_ranges(tmp_path: Path, binary: str) -> None:
    cfg = {"instance_uuid": instance_uuid(1), "replicaset_uuid": REPLICASET}
    with Tarantool(tmp_path / "master", cfg=cfg, lua=SPACE, binary=binary) as master:
        with following(options(tmp_path / "spool", f"unix/:{master.socket}")) as replicaset:
            for _ in range(2):
                master.eval(LOAD)
                lsn = master.eval("return box.info.lsn")
                await_until(lambda: replicaset.spool.vclock == {1: lsn}, f"lsn {lsn} in the spool")  # noqa: B023
        tuples = master.eval(
            "local t = {} for _, one in box.space.load:pairs() do "
            "table.insert(t, (string.hex(require('msgpack').encode(one)))) end return {t}"
        )[0]
    deployment = Deployment(tmp_path, {"a1": tmp_path / "spool"}, start="snapshot")
    deployment.run()
    assert sorted(bytes.fromhex(one) for one in tuples) == deployment.tuples("load")
    assert len(tuples) == 80 + 1
