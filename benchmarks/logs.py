"""Writes logs and snapshots for benchmarks with the project's own writer; each run writes the same bytes.

The tuples have nine fields and about 108 bytes, as in `benchmarks.decode`. The tests of the writer show that Tarantool
reads its files.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

import msgpack

from schemas.iproto import RequestType, SystemSpace
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import Fsync, XlogWriter
from tests.bodies import encode_body

ROWS_PER_BLOCK = 300
FORMAT = (
    ("id", "unsigned"),
    ("name", "string"),
    ("email", "string"),
    ("city", "string"),
    ("amount", "double"),
    ("token", "unsigned"),
    ("age", "unsigned"),
    ("active", "boolean"),
    ("state", "string"),
)
CITIES = ("Amsterdam", "Berlin", "Cairo", "Dhaka", "Edinburgh", "Florence", "Geneva", "Helsinki")
FIRST_SPACE_ID = 512
ADMIN = 1
"""The id of the user `admin`, and here also the replica id of each member."""


class MemberLogs:
    """The logs of a replicaset's only member; each call writes one with one row per transaction, or a snapshot.

    Args:
        folder: The logs are in `<folder>/<name>`. The first one registers the member and creates its spaces.
        name: The uuids are derived from it.
        spaces: Names of the spaces; their ids begin at `FIRST_SPACE_ID`.
    """

    def __init__(self, folder: Path, name: str, spaces: Sequence[str]) -> None:
        self.name, self.path = name, folder / name
        self.uuid = str(uuid5(NAMESPACE_OID, name))
        self.replicaset = str(uuid5(NAMESPACE_OID, f"replicaset of {name}"))
        self.spaces = {space: FIRST_SPACE_ID + number for number, space in enumerate(spaces)}
        self._lsn, self._start_lsns = 0, [0]
        self._draw = random.Random(name)
        self.path.mkdir(parents=True)
        self._write(
            self._row(RequestType.INSERT, encode_body(space_id=space_id, tuple_=tuple_))
            for space_id, tuple_ in self._system_tuples()
        )

    def source_entry(self) -> dict[str, str]:
        """Return the entry under `sources` of the configuration."""
        return {"name": self.name, "path": str(self.path.resolve()), "replicaset": self.replicaset}

    def replace(self, space: str, keys: Iterable[int]) -> None:
        """Write one log with a REPLACE of each key."""
        self.replace_in_spaces([(space, keys)])

    def replace_in_spaces(self, parts: Sequence[tuple[str, Iterable[int]]]) -> None:
        """Write one log with a REPLACE of each key of several spaces."""
        self._write_tuples(RequestType.REPLACE, parts)

    def insert(self, space: str, keys: Iterable[int]) -> None:
        """Write one log with an INSERT of each key."""
        self._write_tuples(RequestType.INSERT, [(space, keys)])

    def snapshot(self, space: str, keys: Iterable[int]) -> None:
        """Write a snapshot of the definitions, and of one tuple per key of a space; the keys must ascend."""
        vclock, stamp = {ADMIN: self._lsn}, 1.7e9
        bodies = chain(self._system_tuples(), ((self.spaces[space], self._tuple(key)) for key in keys))
        meta = Meta("SNAP", "0.13", self.uuid, vclock, None, {"Version": "2.6.0"})
        with XlogWriter(self.path / f"{self._lsn:020d}.snap", meta, Fsync.NEVER) as file:
            for number, (space_id, tuple_) in enumerate(bodies, 1):
                body = encode_body(space_id=space_id, tuple_=tuple_)
                file.write([encode_row(RequestType.INSERT, body, lsn=number, timestamp=stamp)])
                if number % ROWS_PER_BLOCK == 0:
                    file.flush()

    def transaction(self, space: str, rows: int, row_bytes: int) -> int:
        """Write one log of one transaction of `rows` REPLACEs, about `row_bytes` each; return the file's bytes."""
        first = self._lsn + 1
        # Hexadecimal digits of random bytes compress to about a half.
        text = self._draw.randbytes(row_bytes // 2).hex()

        def encoded_rows() -> Iterator[bytes]:
            for key in range(rows):
                at = key * 7919 % len(text)
                fields = [
                    key,
                    f"customer {key:08d}",
                    text[at:] + text[:at],
                    "Berlin",
                    1.5,
                    key,
                    7,
                    True,
                    "paid",
                ]
                self._lsn += 1
                yield encode_row(
                    RequestType.REPLACE,
                    encode_body(space_id=self.spaces[space], tuple_=msgpack.packb(fields)),
                    replica_id=ADMIN,
                    lsn=self._lsn,
                    tsn=first,
                    is_commit=key == rows - 1,
                    timestamp=1.7e9 + self._lsn / 1e5,
                )

        return self._write_transactions([encoded_rows()])

    def skip_lsn(self) -> None:
        """Leave one lsn out, so that rows behind it wait."""
        self._lsn += 1

    def delete(self, space: str, keys: Iterable[int]) -> None:
        """Write one log with a DELETE of each key."""
        self._write(
            self._row(RequestType.DELETE, encode_body(space_id=self.spaces[space], key=msgpack.packb([key])))
            for key in keys
        )

    def update(self, space: str, keys: Iterable[int]) -> None:
        """Write one log with an UPDATE of each key."""
        operations = msgpack.packb([["+", 7, 1], ["=", 4, "Zagreb"]])
        self._write(
            self._row(
                RequestType.UPDATE,
                encode_body(
                    space_id=self.spaces[space],
                    index_base=1,
                    key=msgpack.packb([key]),
                    operations=operations,
                    is_update=True,
                ),
            )
            for key in keys
        )

    @contextmanager
    def growing(self, space: str) -> Iterator[Callable[[Iterable[int]], None]]:
        """Open a new log while the block runs; yield a function that appends a REPLACE of each key, of this moment."""
        begin, before = self._start_lsns[-1], self._start_lsns[-2]
        meta = Meta("XLOG", "0.13", self.uuid, {ADMIN: begin}, {ADMIN: before}, {"Version": "2.6.0"})

        def append(keys: Iterable[int]) -> None:
            moment = time.time()
            for key in keys:
                self._lsn += 1
                body = encode_body(space_id=self.spaces[space], tuple_=self._tuple(key))
                row = encode_row(RequestType.REPLACE, body, replica_id=ADMIN, lsn=self._lsn, timestamp=moment)
                log.write([row])
            log.flush()

        with XlogWriter(self.path / f"{begin:020d}.xlog", meta, Fsync.NEVER) as log:
            yield append
        self._start_lsns.append(self._lsn)

    def _write_tuples(self, kind: RequestType, parts: Sequence[tuple[str, Iterable[int]]]) -> None:
        self._write(
            self._row(kind, encode_body(space_id=self.spaces[space], tuple_=self._tuple(key)))
            for space, keys in parts
            for key in keys
        )

    def _write(self, rows: Iterable[bytes]) -> None:
        self._write_transactions([row] for row in rows)

    def _write_transactions(self, transactions: Iterable[Iterable[bytes]]) -> int:
        """Write one log that begins after the last one; return its bytes."""
        begin, before = self._start_lsns[-1], self._start_lsns[-2] if len(self._start_lsns) > 1 else None
        meta = Meta(
            *("XLOG", "0.13", self.uuid, {ADMIN: begin} if begin else {}),
            None if before is None else ({ADMIN: before} if before else {}),
            {"Version": "2.6.0"},
        )
        path = self.path / f"{begin:020d}.xlog"
        with XlogWriter(path, meta, Fsync.NEVER) as log:
            for number, rows in enumerate(transactions, 1):
                log.write(rows)
                if number % ROWS_PER_BLOCK == 0:
                    log.flush()
        self._start_lsns.append(self._lsn)
        return path.stat().st_size

    def _row(self, kind: RequestType, body: bytes) -> bytes:
        self._lsn += 1
        return encode_row(kind, body, replica_id=ADMIN, lsn=self._lsn, timestamp=1.7e9 + self._lsn / 1e5)

    def _system_tuples(self) -> Iterator[tuple[int, bytes]]:
        """Yield the system space's id and the tuple of each row of `_cluster`, `_space` and `_index`."""
        yield SystemSpace.CLUSTER, msgpack.packb([ADMIN, self.uuid])
        fields = [{"name": name, "type": kind} for name, kind in FORMAT]
        for space, space_id in self.spaces.items():
            yield SystemSpace.SPACE, msgpack.packb([space_id, ADMIN, space, "memtx", 0, {}, fields])
        for space_id in self.spaces.values():
            part = [{"field": 0, "type": "unsigned"}]
            yield SystemSpace.INDEX, msgpack.packb([space_id, 0, "pk", "tree", {"unique": True}, part])

    def _tuple(self, key: int) -> bytes:
        draw = self._draw
        fields = [
            key,
            f"customer {key:08d}",
            f"user{key % 9973}@example.org",
            draw.choice(CITIES),
            draw.random() * 1000,
            draw.getrandbits(60),
            draw.randrange(100),
            key % 2 == 0,
            "state of the order: paid, shipped",
        ]
        packed: bytes = msgpack.packb(fields)
        return packed
