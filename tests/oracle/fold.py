"""Folds a log, row by row, into each space's final tuples, with who changed each last and when.

Two passes: first which transactions were rolled back, then all others in the order of the log, which is the
order in which the server applied them. Local spaces are folded as well, and say so.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.oracle import log, mp, operations
from tests.oracle.keys import Part, bound_of, key_of, order_of, parts_of, searched
from tests.oracle.operations import Context, FormatField

SCHEMA, SPACE, INDEX, CLUSTER, TRUNCATE = 272, 280, 288, 320, 330
SYSTEM_SPACE_ID_MAX = 511
SPACE_ID, INDEX_BASE, KEY, TUPLE, OPERATIONS = 0x10, 0x15, 0x20, 0x21, 0x28
BEGIN_KEY, END_KEY = 0x37, 0x38
_ID = Part(0, "unsigned", "")
ROOT_KEYS = {SPACE: (_ID,), INDEX: (_ID, Part(1, "unsigned", "")), TRUNCATE: (_ID,)}
NO_STORAGE = ("blackhole", "service", "sysview")


@dataclass(frozen=True)
class Version:
    """What a key holds after its last change."""

    tuple: bytes | None
    """Exact MessagePack; None for a key that was deleted."""
    replica_id: int
    lsn: int
    """The row of the last change; 0 where a snapshot gave the tuple."""
    timestamp: int
    """Microseconds since the epoch of the last change, never before that of the change it replaces; 0 for a
    snapshot's.
    """
    created: int
    """Microseconds since the epoch of the insertion since which the key has not been absent."""


@dataclass
class FoldedSpace:
    """One space: definition and the versions by key; deleted keys stay, with no tuple.

    `is_complete` is false for a vinyl space that the first snapshot knows: its earlier rows are in `.run` files,
    which the fold does not read.
    """

    id: int
    name: str = ""
    engine: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    format: tuple[FormatField, ...] = ()
    key: tuple[Part, ...] = ()
    is_complete: bool = True
    versions: dict[tuple[Any, ...], Version] = field(default_factory=dict)
    field_count: int = 0

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the format's fields."""
        return tuple(one.name for one in self.format)

    @property
    def is_local(self) -> bool:
        """Whether the space belongs to one instance, not to its replicaset."""
        return self.options.get("group_id") == 1

    def tuples(self) -> list[bytes]:
        """Return the tuples that the space holds, in no order."""
        return [version.tuple for version in self.versions.values() if version.tuple is not None]


@dataclass
class Folded:
    """All spaces of one directory by id; `version` is that of the server which wrote the logs."""

    version: tuple[int, int]
    spaces: dict[int, FoldedSpace] = field(default_factory=dict)

    def space(self, space_id: int) -> FoldedSpace:
        """Return a space, an empty one where nothing is known of it yet."""
        return self.spaces.setdefault(space_id, FoldedSpace(space_id, key=ROOT_KEYS.get(space_id, ())))

    def by_name(self) -> dict[str, FoldedSpace]:
        return {one.name: one for one in self.spaces.values() if one.id > SYSTEM_SPACE_ID_MAX and one.key}

    @property
    def cluster(self) -> dict[int, str]:
        """`_cluster`: instance uuid by replica id."""
        return {one[0]: one[1] for one in map(mp.decode, self.spaces[CLUSTER].tuples())}

    @property
    def replicaset_uuid(self) -> str:
        """The replicaset's uuid, as `_schema` holds it (`replicaset_uuid` since 3.0, `cluster` before)."""
        rows = {one[0]: one[1:] for one in map(mp.decode, self.spaces[SCHEMA].tuples())}
        return str((rows.get("replicaset_uuid") or rows["cluster"])[0])


def fold_directory(directory: Path, *, snapshot: Path | None = None) -> Folded:
    """Fold a directory's logs.

    Args:
        directory: Holds `.snap` and `.xlog` files.
        snapshot: Where to begin; by default the oldest one: the state in which the instance was made or had joined.
    """
    start = snapshot or min(directory.glob("*.snap"))
    files = sorted(directory.glob("*.xlog"))
    begun = [index for index, path in enumerate(files) if path.stem <= start.stem]
    rows = (row for path in files[begun[-1] if begun else 0 :] for row in log.read_log(path))
    skip = log.vclock(start)
    later = (row for row in rows if row.lsn > skip.get(row.replica_id, 0))
    return fold(log.read_log(start), later, log.version(start))


def fold(snapshot: Iterable[log.Row], rows: Iterable[log.Row], version: tuple[int, int]) -> Folded:
    """Fold a snapshot's rows, then a log's."""
    folded = Folded(version)
    first = sorted(_data_rows(snapshot), key=lambda row: row.number(SPACE_ID) not in (SPACE, INDEX))
    for row in first:
        _apply(folded, row, is_snapshot=True)
    history = list(log.transactions(rows))
    lost = log.rolled_back(history)
    for position, transaction in enumerate(history):
        if position not in lost:
            for row in _data_rows(transaction.rows):
                _apply(folded, row, is_snapshot=False)
    return folded


def _data_rows(rows: Iterable[log.Row]) -> Iterator[log.Row]:
    return (row for row in rows if SPACE_ID in row.body)


def _apply(folded: Folded, row: log.Row, *, is_snapshot: bool) -> None:
    space_id = row.number(SPACE_ID)
    space = folded.space(space_id)
    if space.engine in NO_STORAGE:
        return
    if row.type == log.DELETE_RANGE:
        _delete_range(space, row)
        return
    outcome = _outcome(space, row, folded.version)
    if outcome is None:
        return
    key, value = outcome
    old = space.versions.get(key)
    if value is None and (old is None or old.tuple is None):
        return
    space.versions[key] = _version(old, value, row, is_snapshot=is_snapshot)
    _notice(folded, space_id, key)
    if is_snapshot and space_id == SPACE:
        defined = folded.space(int(key[0][0][1]))
        defined.is_complete = defined.engine != "vinyl"


def _delete_range(space: FoldedSpace, row: log.Row) -> None:
    begin, end = (bound_of(row.body[one], space.key) for one in (BEGIN_KEY, END_KEY))
    for key, old in space.versions.items():
        order = order_of(key)
        if old.tuple is not None and order[: len(begin)] >= begin and not (end and order[: len(end)] >= end):
            space.versions[key] = _version(old, None, row, is_snapshot=False)


def _version(old: Version | None, value: bytes | None, row: log.Row, *, is_snapshot: bool) -> Version:
    if is_snapshot:
        return Version(value, 0, 0, 0, 0)
    timestamp = max(round(row.timestamp * 1_000_000), old.timestamp if old else 0)
    created = old.created if old and old.tuple is not None else timestamp
    return Version(value, row.replica_id, row.lsn, timestamp, created)


def _outcome(
    space: FoldedSpace, row: log.Row, version: tuple[int, int]
) -> tuple[tuple[Any, ...], bytes | None] | None:
    """Return the key that a row is about and what it holds after the row; None for a row that the server ignores."""
    if row.type in (log.INSERT, log.REPLACE):
        value = row.body[TUPLE]
        return key_of(mp.split_array(value), space.key), value
    context = Context(space.format, row.number(INDEX_BASE), version)
    if row.type == log.UPSERT:
        key = key_of(mp.split_array(row.body[TUPLE]), space.key)
        old = _held(space, key)
        if old is None:
            return key, row.body[TUPLE]
        new = operations.upsert(old, row.body[OPERATIONS], context)
        # Operations that would change the key: the server says so in its log, and leaves the tuple as it is.
        return (key, new) if key_of(mp.split_array(new), space.key) == key else None
    key = searched(row.body[KEY], space.key)
    old = _held(space, key)
    if row.type == log.DELETE or old is None:
        return key, None
    if row.type != log.UPDATE:
        raise ValueError(f"type {row.type} changes no space")
    return key, operations.update(old, row.body[TUPLE], context)


def _held(space: FoldedSpace, key: tuple[Any, ...]) -> bytes | None:
    version = space.versions.get(key)
    return version.tuple if version else None


def _notice(folded: Folded, space_id: int, key: tuple[Any, ...]) -> None:
    """Follow what a change of a system space does to another space."""
    raw = folded.spaces[space_id].versions[key].tuple
    other = int(key[0][0][1]) if space_id in (SPACE, INDEX, TRUNCATE) else 0
    if space_id == TRUNCATE and other in folded.spaces:
        folded.spaces[other].versions.clear()
    elif space_id == SPACE and raw is None:
        folded.spaces.pop(other, None)
    elif space_id == SPACE and raw is not None:
        _define(folded.space(other), mp.decode(raw))
    elif space_id == INDEX and key[1][0][1] == 0:
        space = folded.space(other)
        _index(space, parts_of(mp.decode(raw)[5]) if raw is not None else ())


def _define(space: FoldedSpace, row: Any) -> None:
    space.name, space.engine, space.field_count, space.options = row[2], row[3], row[4], row[5]
    space.format = tuple(_format_field(one) for one in row[6])


def _format_field(one: Any) -> FormatField:
    if isinstance(one, Mapping):
        return FormatField(one.get("name", ""), one.get("type", "any"))
    return FormatField(one[0], one[1] if len(one) > 1 else "any")


def _index(space: FoldedSpace, key: tuple[Part, ...]) -> None:
    kept = {} if not key else {_new_key(version, key): version for version in _present(space)}
    space.key, space.versions = key, kept


def _present(space: FoldedSpace) -> list[Version]:
    return [version for version in space.versions.values() if version.tuple is not None]


def _new_key(version: Version, key: tuple[Part, ...]) -> tuple[Any, ...]:
    return key_of(mp.split_array(version.tuple or b"\x90"), key)
