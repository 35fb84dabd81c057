"""Masters keep their quorum rules: a subscriber's acknowledgements do not count for a synchronous write."""

from pathlib import Path

import pytest

from tests.live.client import TarantoolError
from tests.live.mesh import mesh
from tests.sources.subscribe.following import await_until, following, options

pytestmark = pytest.mark.live


def test_a_synchronous_write_does_not_commit_for_a_daemon(tmp_path: Path) -> None:
    cfg = {"replication_synchro_quorum": 1, "replication_synchro_timeout": 1.5}
    with mesh(tmp_path, 1, cfg) as masters:
        masters[1].eval("if box.ctl.promote ~= nil then box.ctl.promote() end")
        masters[1].eval("box.cfg{replication_synchro_quorum = 2}")
        masters[1].eval("box.schema.space.create('sync', {is_sync = true}):create_index('pk')")
        with following(options(tmp_path / "spool", f"unix/:{masters[1].socket}")) as replicaset:
            await_until(lambda: bool(replicaset.feeds), "a stream")
            masters[1].eval("box.space.load:replace{1, 'async'}")
            before = masters.vclock(1)[1]
            with pytest.raises(TarantoolError, match=r"(?i)quorum"):
                masters[1].eval("box.space.sync:replace{1, 'never'}")
            assert masters[1].eval("return box.space.sync:count()") == 0
            # The daemon received the row, and the ROLLBACK that undid it.
            await_until(lambda: (replicaset.spool.vclock or {}).get(1) == before + 2, "both rows")
