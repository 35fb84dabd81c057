"""Rows of local spaces: each member has its own, once, whichever member leads and whenever the job starts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipeline.commit.load import load_state
from schemas.iproto import SystemSpace
from tests.pipeline.deployment import Deployment
from tests.sources.xlog.logs import Server, replicaset_of, uuid_of


class Members:
    """Two members of one replicaset; the first is the master."""

    def __init__(self, folder: Path) -> None:
        self.servers = {name: Server(folder / name, name) for name in ("a1", "a2")}
        for replica_id, name in enumerate(self.servers, start=1):
            for server in self.servers.values():
                server.system(SystemSpace.CLUSTER, [replica_id, uuid_of(name)])
        self.deployment = Deployment(folder, {}, dict.fromkeys(self.servers, replicaset_of("a1")))

    def shared(self, names: Sequence[str] = ("a1", "a2")) -> None:
        """Write a row that both members have, or that a log lacks."""
        for name, server in self.servers.items():
            if name in names:
                server.system(SystemSpace.SCHEMA, ["x"])
            else:
                server.vclock[1] += 1

    def read(self, name: str) -> None:
        """Let the job start and read one member's log; compare its state with that of the next start."""
        self.deployment.sources = {name: self.servers[name].path}
        with self.deployment.writer() as (warehouse, writer):
            while self.deployment.batch(writer) is not None:
                pass
            (after,) = writer.state.replicasets.values()
            (loaded,) = load_state(warehouse).replicasets.values()
            assert (loaded.settled, loaded.local_lsns) == (after.settled, after.local_lsns)

    def check(self) -> None:
        """Compare `_changelog` and `_vclock` with what the members have written."""
        written = {uuid_of(name): server.vclock.get(0, 0) for name, server in self.servers.items()}
        rows = [row for row in self.deployment.rows("_changelog") if row["state"] == "local"]
        found = Counter((row["instance_uuid"], row["lsn"]) for row in rows)
        assert found == Counter((uuid, i) for uuid, count in written.items() for i in range(1, count + 1))
        ids = {row["global_id"]: row["uuid"] for row in self.deployment.rows("_cluster")}
        counts = [row for row in self.deployment.rows("_vclock") if row["local_id"] == 0]
        newest = {ids[row["global_id"]]: row["lsn"] for row in sorted(counts, key=lambda row: row["epoch"])}
        assert newest == {uuid: count for uuid, count in written.items() if count}


def test_members_lead_in_turn(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.servers["a1"].write(0, rows=5)
    members.servers["a2"].write(0, rows=3)
    members.shared()
    for name, rows in (("a1", 0), ("a2", 0), ("a1", 0), ("a2", 2), ("a1", 0), ("a1", 1), ("a2", 0)):
        members.servers[name].write(0, rows=rows)
        members.shared()
        members.read(name)
    members.check()


def test_local_rows_that_waited_while_another_member_took_over(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.servers["a1"].write(0, rows=2)
    members.servers["a2"].write(0)
    members.shared(["a2"])
    members.shared()
    members.servers["a1"].write(0, rows=5)
    members.servers["a2"].write(0)
    members.shared()
    members.read("a1")
    assert [row["state"] for row in members.deployment.rows("_gaps")] == ["open"]
    members.read("a2")
    assert members.deployment.rows("_pending") == []
    members.check()
    members.servers["a2"].write(0, rows=2)
    members.shared()
    members.read("a2")
    members.check()
    members.servers["a1"].write(0, rows=2)
    members.shared()
    members.read("a1")
    members.check()


def test_local_rows_of_both_members_that_wait(tmp_path: Path) -> None:
    """Neither log has the missing row, until the second one's lacks it no more."""
    members = Members(tmp_path)
    members.servers["a1"].write(0, rows=2)
    members.shared(["a2"])
    members.shared([])
    members.servers["a2"].write(0, rows=3)
    members.shared()
    members.servers["a1"].write(0, rows=3)
    members.shared()
    for name in ("a1", "a2", "a1", "a2"):
        members.read(name)
    assert {row["state"] for row in members.deployment.rows("_gaps")} == {"open"}
    members.deployment.settings["on_gap"] = "skip"
    members.shared()
    members.read("a2")
    assert members.deployment.rows("_pending") == []
    members.read("a1")
    members.check()
