"""Directories of logs as servers would leave them, written block by block with the project's own writer.

A `Server` is one member of a replicaset: it writes transactions of any replica id, rotates, takes snapshots,
crashes. Its tuples are `[lsn, filler]` of space 512. That Tarantool reads such files is shown by the writer's
own tests.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgpack

from schemas.iproto import RequestType
from sources.xlog.directory.offset import Offset
from sources.xlog.format.block import EOF_MARKER, encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import Fsync, XlogWriter
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import read_range
from tests.bodies import encode_body

SPACE = 512
A, B = "aaaaaaaa-0000-4000-8000-0000000000aa", "bbbbbbbb-0000-4000-8000-0000000000bb"


def uuid_of(name: str) -> str:
    """Return the instance uuid of `a1`, `b2`, ..."""
    return f"{name[0] * 8}-0000-4000-8000-0000000000{name}"


def replicaset_of(name: str) -> str:
    """Return the uuid of the replicaset that `a1`, `b2`, ... is in."""
    return f"{name[0] * 8}-0000-4000-8000-0000000000{name[0] * 2}"


def insert(replica_id: int, lsn: int, space_id: int, fields: list[object], **header: int | bool) -> bytes:
    """Return one encoded INSERT at time = lsn seconds; replica id 0 makes it a row of a local space."""
    body = encode_body(space_id=space_id, tuple_=msgpack.packb(fields))
    ids: dict[str, int] = {"replica_id": replica_id} if replica_id else {"group_id": 1}
    return encode_row(RequestType.INSERT, body, timestamp=float(lsn), lsn=lsn, **ids, **header)  # type: ignore[arg-type]


@dataclass
class Server:
    """One member of a replicaset, and its directory; what writes can be chained."""

    path: Path
    name: str = "a1"
    vclock: dict[int, int] = field(default_factory=dict)
    log: Path | None = None
    previous: dict[int, int] | None = None
    filler: str = ""

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def meta(self, kind: str, previous: Mapping[int, int] | None = None) -> Meta:
        """Return the header of a file that begins now."""
        return Meta(kind, "0.13", uuid_of(self.name), dict(self.vclock), previous, {"Version": "2.6.0"})

    def file(self, suffix: str) -> Path:
        """Return the path of a file that begins now."""
        return self.path / f"{sum(self.vclock.values()):020d}.{suffix}"

    def open(self) -> Path:
        """Return the current log; as Tarantool does, created on the first write, or an empty one opened again."""
        if self.log is None:
            self.log = self.file("xlog")
            if self.log.exists():
                os.truncate(self.log, self.log.read_bytes().index(b"\n\n") + 2)
            else:
                XlogWriter(self.log, self.meta("XLOG", self.previous), Fsync.NEVER).abandon()
                self.previous = dict(self.vclock)
        return self.log

    def append(self, data: bytes) -> Self:
        """Write bytes behind the current log."""
        with self.open().open("ab") as file:
            file.write(data)
        return self

    def row(self, replica_id: int, space_id: int = SPACE, fields: list[object] | None = None) -> bytes:
        lsn = self.vclock[replica_id] = self.vclock.get(replica_id, 0) + 1
        return insert(replica_id, lsn, space_id, [lsn, self.filler] if fields is None else fields)

    def write(self, replica_id: int = 1, rows: int = 1) -> Self:
        """Write that many transactions of one row, each in a block of its own."""
        for _ in range(rows):
            self.open()
            self.append(encode_block(self.row(replica_id), compress=False))
        return self

    def system(self, space_id: int, fields: list[object], by: int = 1) -> Self:
        """Write a row of a system space, such as a `_cluster` row that registers an instance."""
        self.open()
        self.append(encode_block(self.row(by, space_id, fields)))
        return self

    def rotate(self) -> Self:
        """Close the current log, as a full one or a checkpoint does."""
        if self.log is not None:
            self.append(EOF_MARKER)
            self.log = None
        return self

    def crash(self, torn: int = 0) -> Self:
        """Leave the current log without its marker, with `torn` bytes of a block that was not written wholly."""
        self.append(encode_block(insert(1, 10**9, SPACE, ["lost"]))[:torn])
        self.log = None
        return self

    def snapshot(self, rows: int = 2, cluster: Mapping[int, str] | None = None) -> Path:
        """Take a snapshot; the log is rotated as Tarantool does."""
        self.rotate()
        path, members = self.file("snap"), cluster or {1: self.name}
        with XlogWriter(path, self.meta("SNAP"), Fsync.NEVER) as log:
            log.write([insert(0, 1, 272, ["cluster", replicaset_of(self.name)])])
            log.write(insert(0, 1, 320, [i, uuid_of(name)]) for i, name in members.items())
            log.write(insert(0, 1, SPACE, [key, "snap"]) for key in range(rows))
        return path


BLOCK = len(encode_block(insert(1, 1, SPACE, [1, ""])))
"""Bytes of a block of `Server.write` as long as lsns are below 128."""


def rows_between(log_stream: LogStream, start: Offset, end: Offset) -> list[tuple[str, int, int]]:
    """Return (file, replica id, lsn) of the rows of user spaces between two offsets, in the order of the plan."""
    found = []
    for task in tasks_of(log_stream, segments_between(log_stream, start, end)):
        for piece in task:
            for batch in read_range(piece, log_stream.options):
                for row in batch.select(["file", "replica_id", "lsn", "space_id"]).to_pylist():
                    if row["space_id"] == SPACE:
                        found.append((row["file"], row["replica_id"] or 0, row["lsn"]))
    return found


def lsns(rows: Iterable[tuple[str, int, int]], replica_id: int = 1) -> list[int]:
    return [lsn for file, id_, lsn in rows if id_ == replica_id and file.endswith(".xlog")]
