"""Logs for benchmarks: replicasets of one member each, written with the project's own writer, the same on every run.

A `Member` announces itself and its spaces, then writes changes in group-committed blocks. Its tuples have nine
fields and about 108 bytes, as in `benchmarks.decode`. That Tarantool reads such files is shown by the writer's tests.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

import msgpack

from schemas.iproto import RequestType, SystemSpace
from sources.xlog.format.encode import encode_body, encode_row
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import Fsync, XlogWriter

ROWS_A_BLOCK = 300
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
FIRST_SPACE = 512
ADMIN = 1


class Member:
    """The only member of a replicaset, and its directory.

    Parameters
    ----------
    folder : Path
        The logs lie in `<folder>/<name>`.
    name : str
        Its uuids follow from it, so that every run writes the same.
    spaces : sequence of str
        Names; their ids begin at `FIRST_SPACE`.

    """

    def __init__(self, folder: Path, name: str, spaces: Sequence[str]) -> None:
        self.name, self.path = name, folder / name
        self.uuid = str(uuid5(NAMESPACE_OID, name))
        self.replicaset = str(uuid5(NAMESPACE_OID, f"replicaset of {name}"))
        self.spaces = {space: FIRST_SPACE + number for number, space in enumerate(spaces)}
        self._lsn, self._vclocks = 0, [0]
        self._draw = random.Random(name)
        self.path.mkdir(parents=True)
        self._write([self._registration(), *self._definitions()])

    def source(self) -> dict[str, str]:
        """Return the source as a configuration names it."""
        return {"name": self.name, "path": str(self.path.resolve()), "replicaset": self.replicaset}

    def put(self, space: str, keys: Iterable[int]) -> int:
        """Write one log with a REPLACE of each key; return its size in bytes."""
        return self._write(self._replace(self.spaces[space], key) for key in keys)

    def change(self, parts: Sequence[tuple[str, Sequence[int]]]) -> int:
        """Write one log with REPLACEs over several spaces."""
        return self._write(self._replace(self.spaces[space], key) for space, keys in parts for key in keys)

    def insert(self, space: str, keys: Iterable[int]) -> int:
        """Write one log with an INSERT of each key; return its size in bytes."""
        space_id = self.spaces[space]
        return self._write(
            self._row(RequestType.INSERT, encode_body(space_id=space_id, tuple_=self._tuple(key)))
            for key in keys
        )

    def snapshot(self, space: str, keys: Iterable[int]) -> None:
        """Write a snapshot of the definitions, and of a tuple of each key in a space; keys come in order."""
        vclock, stamp = {ADMIN: self._lsn}, 1.7e9
        bodies = chain(
            [(int(SystemSpace.CLUSTER), msgpack.packb([ADMIN, self.uuid]))],
            ((space_id, msgpack.packb(fields)) for space_id, fields in self._defined()),
            ((self.spaces[space], self._tuple(key)) for key in keys),
        )
        meta = Meta("SNAP", "0.13", self.uuid, vclock, None, {"Version": "2.6.0"})
        with XlogWriter(self.path / f"{self._lsn:020d}.snap", meta, Fsync.NEVER) as file:
            for number, (space_id, tuple_) in enumerate(bodies, 1):
                body = encode_body(space_id=space_id, tuple_=tuple_)
                file.write([encode_row(RequestType.INSERT, body, lsn=number, timestamp=stamp)])
                if number % ROWS_A_BLOCK == 0:
                    file.flush()

    def transaction(self, space: str, rows: int, row_bytes: int) -> int:
        """Write one log with one transaction of so many REPLACEs of about so many bytes each; return its size."""
        first = self._lsn + 1
        # Compresses to about a half: hexadecimal digits in the place of random bytes.
        text = self._draw.randbytes(row_bytes // 2).hex()

        def written() -> Iterator[bytes]:
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

        return self._write_transactions([written()])

    def update(self, space: str, keys: Iterable[int]) -> int:
        """Write one log with an UPDATE of each key."""
        operations = msgpack.packb([["+", 7, 1], ["=", 4, "Zagreb"]])
        return self._write(
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

    def _write(self, rows: Iterable[bytes]) -> int:
        return self._write_transactions([row] for row in rows)

    def _write_transactions(self, transactions: Iterable[Iterable[bytes]]) -> int:
        begin, before = self._vclocks[-1], self._vclocks[-2] if len(self._vclocks) > 1 else None
        meta = Meta(
            *("XLOG", "0.13", self.uuid, {ADMIN: begin} if begin else {}),
            None if before is None else ({ADMIN: before} if before else {}),
            {"Version": "2.6.0"},
        )
        path = self.path / f"{begin:020d}.xlog"
        with XlogWriter(path, meta, Fsync.NEVER) as log:
            for number, rows in enumerate(transactions, 1):
                log.write(rows)
                if number % ROWS_A_BLOCK == 0:
                    log.flush()
        self._vclocks.append(self._lsn)
        return path.stat().st_size

    def _row(self, kind: RequestType, body: bytes) -> bytes:
        self._lsn += 1
        return encode_row(kind, body, replica_id=ADMIN, lsn=self._lsn, timestamp=1.7e9 + self._lsn / 1e5)

    def _insert(self, space_id: int, fields: Sequence[object]) -> bytes:
        return self._row(
            RequestType.INSERT, encode_body(space_id=space_id, tuple_=msgpack.packb(list(fields)))
        )

    def _registration(self) -> bytes:
        return self._insert(SystemSpace.CLUSTER, [ADMIN, self.uuid])

    def _defined(self) -> Iterator[tuple[int, list[object]]]:
        """Yield the rows of `_space`, then those of `_index`."""
        fields = [{"name": name, "type": kind} for name, kind in FORMAT]
        for space, space_id in self.spaces.items():
            yield SystemSpace.SPACE, [space_id, ADMIN, space, "memtx", 0, {}, fields]
        for space_id in self.spaces.values():
            part = [{"field": 0, "type": "unsigned"}]
            yield SystemSpace.INDEX, [space_id, 0, "pk", "tree", {"unique": True}, part]

    def _definitions(self) -> Iterable[bytes]:
        for space_id, fields in self._defined():
            yield self._insert(space_id, fields)

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

    def _replace(self, space_id: int, key: int) -> bytes:
        return self._row(RequestType.REPLACE, encode_body(space_id=space_id, tuple_=self._tuple(key)))
