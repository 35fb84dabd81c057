"""Writes logs of replicasets that never ran, row by row, for cases without a recording.

The logs are written with the project's own writer, whose tests show that Tarantool reads its files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgpack

from schemas.iproto import BodyKey, RequestType, SystemSpace
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import Fsync, XlogWriter
from tests.bodies import encode_body

BEGAN = 1.7e9
"""The time, in seconds since 1970, to which the times of rows are added."""

FIELDS = (("id", "unsigned"), ("name", "string"), ("value", "integer"), ("updated", "unsigned"))


def replicasets_of(*names: str) -> dict[str, str]:
    """Return made-up uuids of replicasets by the names of their members, whose files do not have them."""
    return {name: f"{name[0] * 8}-0000-4000-8000-0000000000{name[0] * 2}" for name in names}


def _definitions_of(space_id: int) -> set[tuple[int, int]]:
    return {(SystemSpace.SPACE, space_id), (SystemSpace.INDEX, space_id)}


class Node:
    """The only member of a replicaset; its methods add rows, and `close` writes the added rows to a log.

    `version`, further `keys` of the header, and `is_apart` may be set between two logs. With `is_apart`, each row has a
    block of its own, so that a batch may end after any row.

    Args:
        folder: The logs are in `<folder>/<name>`.
        name: A letter and a digit.
        version: The server version in the headers of the logs.
    """

    def __init__(self, folder: Path, name: str, version: str = "2.6.0") -> None:
        self.version, self.keys, self.is_apart = version, dict[str, str](), False
        self.path = folder / name
        self.uuid = f"{name[0] * 8}-0000-4000-8000-0000000000{name}"
        self.path.mkdir(parents=True)
        self._rows: list[bytes] = []
        self._lsn, self._begins = 0, [0]
        self._definitions: dict[Any, bytes] = {}
        self._insert(SystemSpace.CLUSTER, [1, self.uuid])

    def define(
        self,
        space_id: int,
        name: str,
        fields: Sequence[tuple[str, str]] = FIELDS,
        unique: Sequence[Sequence[tuple[int, str]]] = (),
        function: int | None = None,
    ) -> Self:
        """Create a space with a primary key on its first field, and unique secondary indexes.

        If `function` is the id of a function, the last index is a functional one.
        """
        format_ = [{"name": one, "type": kind, "is_nullable": i > 0} for i, (one, kind) in enumerate(fields)]
        self._insert(SystemSpace.SPACE, [space_id, 1, name, "memtx", 0, {}, format_])
        for number, parts in enumerate([[(0, fields[0][1])], *unique]):
            key_parts = [{"field": field, "type": kind, "is_nullable": number > 0} for field, kind in parts]
            is_functional = function is not None and number == len(unique)
            options = {"unique": True} | ({"func": function} if is_functional else {})
            row = [space_id, number, f"i{number}", "tree", options, key_parts]
            self._insert(SystemSpace.INDEX, row)
        return self

    def put(self, space_id: int, *fields: Any, at: float = 1.0) -> Self:
        """REPLACE a tuple; `at` is in seconds after `BEGAN`; surrogates represent bytes that are not UTF-8."""
        packed = msgpack.packb(list(fields), unicode_errors="surrogateescape")
        body = encode_body(space_id=space_id, tuple_=packed)
        return self._row(RequestType.REPLACE, body, at)

    def update(self, space_id: int, key: Any, *operations: Any, at: float = 1.0) -> Self:
        """UPDATE a tuple; fields are numbered from 0."""
        content = {"key": msgpack.packb([key]), "operations": msgpack.packb(list(operations))}
        body = encode_body(space_id=space_id, index_base=0, is_update=True, **content)
        return self._row(RequestType.UPDATE, body, at)

    def upsert(
        self, space_id: int, fields: Sequence[Any], *operations: Sequence[Any], at: float = 1.0
    ) -> Self:
        """UPSERT a tuple; fields are numbered from 0."""
        body = {int(BodyKey.TUPLE): list(fields), int(BodyKey.OPS): list(map(list, operations))}
        return self.row(RequestType.UPSERT, space_id, body, at)

    def add(self, row: bytes) -> Self:
        self._rows.append(row)
        return self

    def delete(self, space_id: int, key: Any, at: float = 1.0) -> Self:
        return self._row(RequestType.DELETE, encode_body(space_id=space_id, key=msgpack.packb([key])), at)

    def delete_range(self, space_id: int, begin: Sequence[Any], end: Sequence[Any], at: float = 1.0) -> Self:
        """DELETE_RANGE of the keys from `begin` to `end`, which may be partial keys, as Tarantool 3.9 logs it."""
        keys = {int(BodyKey.BEGIN_KEY): list(begin), int(BodyKey.END_KEY): list(end)}
        return self.row(RequestType.DELETE_RANGE, space_id, keys, at)

    def row(self, kind: int, space_id: int, content: Mapping[int, Any], at: float = 1.0) -> Self:
        """Add a row of any type with any body."""
        packed = msgpack.packb({int(BodyKey.SPACE_ID): space_id, **content}, unicode_errors="surrogateescape")
        return self._row(kind, packed, at)

    def truncate(self, space_id: int, at: float = 1.0) -> Self:
        return self._insert(SystemSpace.TRUNCATE, [space_id, self._lsn], at, RequestType.REPLACE)

    def drop(self, space_id: int, at: float = 1.0) -> Self:
        content = encode_body(space_id=SystemSpace.SPACE, key=msgpack.packb([space_id]))
        for key in [key for key in self._definitions if key[:2] in _definitions_of(space_id)]:
            del self._definitions[key]
        return self._row(RequestType.DELETE, content, at)

    def redefine(self, space_id: int, name: str, fields: Sequence[tuple[str, str]] = FIELDS) -> Self:
        """Change a space's name or format."""
        format_ = [{"name": one, "type": kind, "is_nullable": i > 0} for i, (one, kind) in enumerate(fields)]
        row = [space_id, 1, name, "memtx", 0, {}, format_]
        return self._insert(SystemSpace.SPACE, row, kind=RequestType.REPLACE)

    def rekey(self, space_id: int, *parts: tuple[int, str]) -> Self:
        """Change a space's primary key."""
        return self.rekey_to(space_id, [{"field": field, "type": kind} for field, kind in parts])

    def rekey_to(self, space_id: int, parts: Sequence[Mapping[str, Any]]) -> Self:
        """Change a space's primary key; the parts are in the form of `_index`."""
        row = [space_id, 0, "i0", "tree", {"unique": True}, list(parts)]
        return self._insert(SystemSpace.INDEX, row, kind=RequestType.REPLACE)

    @property
    def is_open(self) -> bool:
        """Whether rows were added that are in no log yet."""
        return bool(self._rows)

    def close(self) -> Path:
        """Write the rows that were added since the last call to a new log."""
        begin, before = self._begins[-1], self._begins[-2] if len(self._begins) > 1 else None
        previous = None if before is None else ({1: before} if before else {})
        keys = {"Version": self.version, **self.keys}
        meta = Meta("XLOG", "0.13", self.uuid, {1: begin} if begin else {}, previous, keys)
        path = self.path / f"{begin:020d}.xlog"
        with XlogWriter(path, meta, Fsync.NEVER) as log:
            for row in self._rows:
                log.write([row])
                if self.is_apart:
                    log.flush()
        self._rows = []
        self._begins.append(self._lsn)
        return path

    def snapshot(self, tuples: Mapping[int, Sequence[Sequence[Any]]]) -> Path:
        """Write a snapshot of the present definitions, and of the given tuples by space id."""
        meta = Meta("SNAP", "0.13", self.uuid, {1: self._lsn}, None, {"Version": self.version})
        rows = [
            encode_body(space_id=space_id, tuple_=msgpack.packb(list(fields)))
            for space_id, own in sorted(tuples.items())
            for fields in own
        ]
        path = self.path / f"{self._lsn:020d}.snap"
        with XlogWriter(path, meta, Fsync.NEVER) as log:
            for lsn, body in enumerate([*self._definitions.values(), *rows], start=1):
                log.write([encode_row(RequestType.INSERT, body, lsn=lsn, timestamp=BEGAN)])
        return path

    def _insert(
        self,
        space_id: int,
        fields: Sequence[Any],
        at: float = 1.0,
        kind: RequestType = RequestType.INSERT,
    ) -> Self:
        body = encode_body(space_id=space_id, tuple_=msgpack.packb(list(fields)))
        if space_id != SystemSpace.TRUNCATE:
            self._definitions[space_id, *fields[: 1 + (space_id == SystemSpace.INDEX)]] = body
        return self._row(kind, body, at)

    def _row(self, kind: int, body: bytes, at: float) -> Self:
        self._lsn += 1
        self._rows.append(encode_row(kind, body, replica_id=1, lsn=self._lsn, timestamp=BEGAN + at))
        return self
