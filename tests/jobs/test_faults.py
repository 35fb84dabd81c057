"""Rows of a log that cannot be applied are reported one by one, even if a later row replaces their key."""

from pathlib import Path

import msgpack

from schemas.iproto import RequestType, SystemSpace
from sources.xlog.format.block import encode_block
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.jobs.deployment import Deployment
from tests.sources.xlog.logs import SPACE, Server, uuid_of

FORMAT = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}]


def update(server: Server, key: int, *operations: list[object]) -> None:
    """Write an UPDATE in the form of a server's log."""
    lsn = server.vclock[1] = server.vclock[1] + 1
    body = encode_body(
        space_id=SPACE,
        index_base=1,
        key=msgpack.packb([key]),
        operations=msgpack.packb(list(operations)),
        is_update=True,
    )
    row = encode_row(RequestType.UPDATE, body, replica_id=1, lsn=lsn, timestamp=float(lsn))
    server.append(encode_block(row))


def test_a_fault_is_reported_although_a_later_row_replaces_the_key(tmp_path: Path) -> None:
    server = Server(tmp_path / "a1", "a1").system(SystemSpace.CLUSTER, [1, uuid_of("a1")])
    server.system(SystemSpace.SPACE, [SPACE, 1, "people", "memtx", 0, {}, FORMAT])
    server.system(SystemSpace.INDEX, [SPACE, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]])
    for key in (1, 2, 3):
        server.append(encode_block(server.row(1, SPACE, [key, "first"])))
    update(server, 1, ["+", 2, 1])
    update(server, 2, ["+", 2, 1])
    lost = server.vclock[1]
    lsn = server.vclock[1] = lost + 1
    body = encode_body(space_id=SPACE, tuple_=msgpack.packb([2, "healed"]))
    server.append(
        encode_block(encode_row(RequestType.REPLACE, body, replica_id=1, lsn=lsn, timestamp=float(lsn)))
    )
    server.rotate()
    source = {"name": "a1", "path": str(server.path), "replicaset": "aaaaaaaa-0000-4000-8000-0000000000aa"}
    deployment = Deployment(tmp_path, {})
    deployment.write(sources=[source])
    assert deployment.fields("people") == [
        [2, "healed"],
        [3, "first"],
    ]
    reasons = {row["lsn"]: row["reason"] for row in deployment.rows("_quarantine")}
    assert sorted(reasons) == [lost - 1, lost]
    assert all(reasons.values())
    versions = {row["key"]: row for row in deployment.rows("_versions")}
    assert [(row["state"], row["tuple"]) for row in versions.values()] == [("unfit", None)]
