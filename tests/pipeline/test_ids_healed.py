"""An instance that came back under another id: its rows under each id compare with the lsns of this id."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from pipeline.requests.read_again import TimeSpan, read_source_again
from pipeline.requests.snapshots import heal
from schemas.errors import UnsupportedError
from schemas.iproto import RequestType, SystemSpace
from sources.xlog.format.block import encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.format.writer import Fsync, XlogWriter
from tests.bodies import encode_body
from tests.pipeline.deployment import Deployment
from tests.pipeline.retention.cleaned import cleaned
from tests.pipeline.test_ids_again import Master
from tests.sources.xlog.logs import SPACE, replicaset_of, uuid_of

DEFINITIONS: list[tuple[int, list[Any]]] = [
    (SystemSpace.SPACE, [SPACE, 1, "s", "memtx", 0, {}, [{"name": "id", "type": "string"}]]),
    (SystemSpace.INDEX, [SPACE, 0, "p", "tree", {"unique": True}, [{"field": 0, "type": "string"}]]),
    (SystemSpace.CLUSTER, [1, uuid_of("a1")]),
]


class Log(Master):
    """A master that defines its space in its log and in its snapshots, and writes chosen tuples."""

    def begin(self) -> None:
        """Define the space, and let a2 write three rows with id 2 and come back with id 3."""
        for space_id, fields in DEFINITIONS:
            self.system(space_id, fields)
        self.register(2, "a2")
        for number in range(3):
            self.put(2, f"k{number}", "old id")
        self.expel(2)
        self.register(3, "a2")

    def put(self, replica_id: int, *fields: object) -> None:
        """Write a tuple as an instance."""
        self.open()
        self.append(encode_block(self.row(replica_id, SPACE, list(fields)), compress=False))

    def checkpoint(self, *tuples: list[object]) -> Path:
        """Write a snapshot of these tuples next to the directory, so that no start reads it; return its path."""
        path = self.path.with_name(self.file("snap").name)
        rows = [*DEFINITIONS, (SystemSpace.CLUSTER, [3, uuid_of("a2")]), *((SPACE, one) for one in tuples)]
        bodies = [encode_body(space_id=space_id, tuple_=msgpack.packb(fields)) for space_id, fields in rows]
        kind = RequestType.INSERT
        with XlogWriter(path, self.meta("SNAP"), Fsync.NEVER) as log:
            log.write(encode_row(kind, body, lsn=i, timestamp=1.0) for i, body in enumerate(bodies, start=1))
        return path


def made(tmp_path: Path, log: Log) -> Deployment:
    return Deployment(tmp_path, {"a1": log.path}, {"a1": replicaset_of("a1")})


def healed(deployment: Deployment, log: Log, snapshot: Path) -> str:
    """Heal by a snapshot, which then goes away again."""
    shown = snapshot.rename(log.path / snapshot.name)
    try:
        return _heal(deployment)
    finally:
        shown.rename(snapshot)


def _heal(deployment: Deployment) -> str:
    with deployment.writer() as (warehouse, writer):
        name = f"heal {writer.state.epoch}"
        return heal(deployment.config(), warehouse, writer, "a1", name)


def tuples(deployment: Deployment) -> dict[str, str]:
    return dict(msgpack.unpackb(row["_tuple"]) for row in deployment.rows("s", ["_tuple"]))


def test_a_late_row_of_the_old_id_is_not_lost_with_the_rows_of_the_new_one(tmp_path: Path) -> None:
    lost, right = Log(tmp_path / "lost"), Log(tmp_path / "right")
    for one in (lost, right):
        one.begin()
        for number in range(4):
            one.put(3, f"n{number}", "same")
    lost.put(3, "n4", "lost")
    lost.put(3, "n5", "lost")
    right.put(3, "n4", "right")
    snapshot = right.checkpoint(["n4", "right"])
    right.put(3, "n5", "right")
    for one in (lost, right):
        one.put(2, "k3", "late")
    deployment = made(tmp_path, lost)
    deployment.run()
    deployment.sources["a1"] = right.path
    with deployment.writer() as (_, writer):
        read_source_again(deployment.config(), writer, "a1", TimeSpan(), lambda *_: None)
    (gap,) = deployment.rows("_gaps")
    assert (gap["local_id"], gap["first_lsn"], gap["last_lsn"]) == (3, 5, 6)
    healed(deployment, right, snapshot)
    assert tuples(deployment) == {"n4": "right", "k3": "late"}
    gaps = {(row["local_id"], row["first_lsn"], row["last_lsn"]) for row in deployment.rows("_gaps")}
    assert gaps == {(3, 5, 6)}


def test_rows_of_both_ids_that_maintenance_removed(tmp_path: Path) -> None:
    """A snapshot that is at the removed rows of each id heals, one before those of the new id is refused."""
    log = Log(tmp_path / "a1")
    log.begin()
    log.put(3, "n0", "first")
    old = log.checkpoint(["n0", "first"])
    log.put(3, "n1", "first")
    new = log.checkpoint(["n0", "first"], ["n1", "first"])
    log.put(3, "n2", "since")
    deployment = made(tmp_path, log)
    deployment.run()
    shown = new.rename(log.path / new.name)
    cleaned(deployment, changelog=30)
    shown.rename(new)
    removed = {(row["local_id"], row["lsn"], row["rows"]) for row in deployment.rows("_retention")}
    assert removed == {(2, 3, 3), (3, 2, 2)}
    assert "and 1 later rows applied again" in healed(deployment, log, new)
    assert tuples(deployment) == {"n0": "first", "n1": "first", "n2": "since"}
    with pytest.raises(UnsupportedError, match="it is kept from lsn 3 of instance"):
        healed(deployment, log, old)
