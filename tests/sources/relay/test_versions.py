"""The spool of a daemon that follows a relay names the versions of the servers that made the rows, not the relay's."""

from pathlib import Path

import msgpack
import numpy as np

from schemas.iproto import RequestType, SystemSpace
from sources.relay.row_packets import BlockReader
from sources.spool import state as spool_state
from sources.spool.spool import ServerVersions, Spool
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.live.mesh import REPLICASET, instance_uuid
from tests.sources.relay.test_relay import serving
from tests.sources.subscribe.following import await_until, following, options

OLD = ServerVersions("2.6.0")
BOTH = ServerVersions("3.9.0", {2: "2.11.9"})
NEW = ServerVersions("3.9.0")


def row(space: int, fields: list[object], lsn: int, replica_id: int | None = None) -> bytes:
    body = encode_body(space_id=space, tuple_=msgpack.packb(fields))
    return encode_row(
        RequestType.REPLACE if replica_id else RequestType.INSERT,
        body,
        replica_id=replica_id,
        lsn=lsn,
        timestamp=1.7e9,
    )


def write_snapshot(spool: Spool, versions: ServerVersions = OLD) -> None:
    spool.instance_uuid, spool.replicaset_uuid, spool.versions = instance_uuid(9), REPLICASET, versions
    with spool.create_snapshot({1: 1}) as writer:
        writer.write([row(SystemSpace.SCHEMA, ["cluster", REPLICASET], 1)])
        writer.write([row(SystemSpace.CLUSTER, [i, instance_uuid(i)], 1 + i) for i in (1, 2)])
    spool.continue_from({1: 1})


def append_row(spool: Spool, versions: ServerVersions) -> None:
    lsn = (spool.vclock or {}).get(1, 0) + 1
    spool.versions = versions
    spool.append(np.frombuffer(row(512, [lsn, "x"], lsn, 1), np.uint8), {1: lsn})


def logs(directory: Path) -> list[tuple[ServerVersions, bytes]]:
    """Return the versions and rows of the logs; consecutive logs of the same versions are joined."""
    found: list[tuple[ServerVersions, bytes]] = []
    for file in spool_state.spool_files(directory, ".xlog"):
        with BlockReader(file.path) as reader:
            rows = b""
            while blocks := reader.read_blocks():
                rows += b"".join(block.tobytes() for block in blocks)
        versions = ServerVersions.from_meta(file.meta, file.path.name)
        if found and found[-1][0] == versions:
            rows = found.pop()[1] + rows
        found.append((versions, rows))
    return found


def test_a_spool_behind_a_relay_names_the_servers(tmp_path: Path) -> None:
    with Spool(tmp_path / "region") as region:
        write_snapshot(region, NEW)
        for versions in (OLD, OLD, BOTH):
            append_row(region, versions)
        with (
            serving(tmp_path / "region", tmp_path / "relay.sock"),
            following(options(tmp_path / "central", f"unix/:{tmp_path}/relay.sock")) as central,
        ):
            await_until(lambda: central.spool.vclock == {1: 4}, "what was there")
            for versions in (BOTH, NEW, NEW, OLD):
                append_row(region, versions)
                await_until(lambda: central.spool.vclock == region.vclock, "what came")
    assert logs(tmp_path / "central") == logs(tmp_path / "region")
    assert [versions for versions, _ in logs(tmp_path / "central")] == [OLD, BOTH, NEW, OLD]
    (snapshot,) = spool_state.spool_files(tmp_path / "central", ".snap")
    assert ServerVersions.from_meta(snapshot.meta, snapshot.path.name) == NEW
