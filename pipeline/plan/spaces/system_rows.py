"""Applies the rows of system spaces: registrations of instances, and changes of the definitions of spaces.

Pure: the system tuples before a batch and its control rows in; the changes and their positions out. `_cluster` feeds
the applier maps; `_space`, `_index` and `_truncate` the tables of spaces.

A malformed row is a fault and stops only its space: a malformed definition is a `Space` with a `fault`, and a row that
names neither a space nor an instance changes nothing. `udfs.remap.cluster_replace` assigns global ids,
`pipeline.plan.spaces.meanings_builder` chooses tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgpack

from pipeline.plan.rows.position import LogPosition
from pipeline.plan.rows.summary import ControlRow
from pipeline.state import SpaceDefinition
from schemas.errors import TupleError, UnsupportedError
from schemas.iproto import SYSTEM_SPACE_ID_MAX, SystemSpace
from schemas.states import HELD_PREFIX, SpaceEvent
from schemas.system_tuples import field_at, fields_of, integer_of, replica_id_of, uuid_of
from udfs.operations.operations import apply_update, apply_upsert
from udfs.operations.tuple_format import format_of_names

SYSTEM_FIELDS: dict[int, tuple[str, ...]] = {
    SystemSpace.SPACE: ("id", "owner", "name", "engine", "field_count", "flags", "format"),
    SystemSpace.INDEX: ("id", "iid", "name", "type", "opts", "parts"),
    SystemSpace.CLUSTER: ("id", "uuid", "name"),
    SystemSpace.TRUNCATE: ("id", "count"),
}
"""Field names of the control spaces (`src/box/bootstrap.snap`), for operations that name fields."""


@dataclass(frozen=True)
class ReplicaIdChange:
    """A row of `_cluster`: from `position` on, `replica_id` belongs to the instance `uuid` (None: to no instance)."""

    position: LogPosition
    replica_id: int
    uuid: str | None


@dataclass(frozen=True)
class SpaceChange:
    """An event that changes a space's definition or removes all of its tuples."""

    position: LogPosition
    space_id: int
    kind: SpaceEvent
    """`DEFINED`: the space was created, or its definition changed. `TRUNCATED`: all tuples were removed, also by the
    drop of the primary index. `DROPPED`: the space was dropped. `RENEWED`: a generation contains the space with the
    same definition. `HELD`: a row cannot be applied to the table; it and the space's later rows are not."""
    definition: SpaceDefinition
    """The definition after the event; for a drop, the one before it."""
    replica_id: int | None
    lsn: int | None
    timestamp: datetime | None = None
    """Of the row that causes the event."""
    reason: str | None = None
    """For `HELD`, the reason."""


@dataclass(frozen=True)
class SystemRowFault:
    """A malformed row of a system space, and the error."""

    row: ControlRow
    reason: str

    @property
    def is_of_unknown_type(self) -> bool:
        """Whether the row has a type that a later Tarantool may write: then the effect on later rows is unknown."""
        return self.row.type not in _KNOWN_TYPES


_KNOWN_TYPES = ("INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE")
"""Types of rows of system spaces that are applied."""


@dataclass(frozen=True)
class ControlChanges:
    """The changes by a replicaset's control rows, in log order, and its spaces after them.

    `emptied_unknown_spaces` lists drops and truncations of undefined spaces as (position, space id); `faults` lists the
    malformed rows. `described_spaces` has the `_space` tuple of each space that a REPLACE has described, and whose
    creation was not read: it may have been created by this row, or long before.
    """

    registrations: tuple[ReplicaIdChange, ...]
    changes: tuple[SpaceChange, ...]
    spaces: Mapping[int, SpaceDefinition]
    emptied_unknown_spaces: tuple[tuple[LogPosition, int], ...] = ()
    faults: tuple[SystemRowFault, ...] = ()
    described_spaces: Mapping[int, bytes] = field(default_factory=dict)


def apply_control_rows(
    spaces: Mapping[int, SpaceDefinition],
    cluster: Mapping[int, str],
    rows: Iterable[ControlRow],
    snapshot_segments: frozenset[int],
    described_spaces: Mapping[int, bytes] | None = None,
) -> ControlChanges:
    """Apply the control rows of one replicaset, and return what they change.

    Args:
        snapshot_segments: Numbers of the segments that are snapshots. Their rows of `_truncate` only have the number of
            earlier truncations, and truncate no space.
    """
    members = {i: msgpack.packb([i, uuid]) for i, uuid in cluster.items()}
    system_spaces = _SystemSpaces(dict(spaces), members, dict(described_spaces or {}))
    for row in rows:
        system_spaces.apply(row, in_snapshot=row.position.segment in snapshot_segments)
    return ControlChanges(
        tuple(system_spaces.registrations),
        tuple(system_spaces.changes),
        system_spaces.spaces,
        tuple(system_spaces.emptied_unknown_spaces),
        tuple(system_spaces.faults),
        system_spaces.described,
    )


class _SystemSpaces:
    def __init__(
        self, spaces: dict[int, SpaceDefinition], cluster: dict[int, bytes], described: dict[int, bytes]
    ) -> None:
        self.spaces = spaces
        self.cluster = cluster
        self.described = described
        self.registrations: list[ReplicaIdChange] = []
        self.changes: list[SpaceChange] = []
        self.emptied_unknown_spaces: list[tuple[LogPosition, int]] = []
        self.faults: list[SystemRowFault] = []

    def apply(self, row: ControlRow, *, in_snapshot: bool) -> None:
        try:
            self._apply(row, in_snapshot=in_snapshot)
        except TupleError as error:
            self.faults.append(SystemRowFault(row, error.reason))

    def _apply(self, row: ControlRow, *, in_snapshot: bool) -> None:
        if row.held_reason is not None:
            if row.space_id in self.spaces:
                self._add_change(row, row.space_id, SpaceEvent.HELD)
        elif row.space_id == SystemSpace.CLUSTER:
            self._apply_to_cluster(row)
        elif row.space_id == SystemSpace.SPACE:
            self._apply_to_space(row)
        elif row.space_id == SystemSpace.INDEX:
            self._apply_to_index(row)
        elif row.space_id == SystemSpace.TRUNCATE and not in_snapshot and row.type != "DELETE":
            space_id = _row_space_id(row)
            if space_id in self.spaces:
                self._add_change(row, space_id, SpaceEvent.TRUNCATED)
            else:
                self.emptied_unknown_spaces.append((row.position, space_id))

    def _apply_to_cluster(self, row: ControlRow) -> None:
        replica_id = replica_id_of(field_at(_key_fields(row), 0, "the replica id"))
        new = _tuple_after(self.cluster.get(replica_id), row)
        if new is None:
            self.cluster.pop(replica_id, None)
            self.registrations.append(ReplicaIdChange(row.position, replica_id, None))
            return
        uuid = uuid_of(field_at(fields_of(new, "a row of _cluster"), 1, "the uuid"), "the uuid")
        self.cluster[replica_id] = new
        self.registrations.append(ReplicaIdChange(row.position, replica_id, uuid))

    def _apply_to_space(self, row: ControlRow) -> None:
        space_id = _row_space_id(row)
        if space_id <= SYSTEM_SPACE_ID_MAX:
            return
        old = self.spaces.get(space_id)
        if old is None and (row.type == "REPLACE" or space_id in self.described):
            self._describe_space(row, space_id)
            return
        name = space_id if old is None else old.decoded().name
        new = self._tuple_after(None if old is None else old.space, row, [space_id], [0, name])
        if new is not None:
            self._define_space(row, space_id, SpaceDefinition(new, {} if old is None else old.indexes))
        elif old is not None:
            self._add_change(row, space_id, SpaceEvent.DROPPED)
            del self.spaces[space_id]
        elif row.type == "DELETE":
            self.emptied_unknown_spaces.append((row.position, space_id))

    def _describe_space(self, row: ControlRow, space_id: int) -> None:
        """Apply a row of `_space` to a space that is not defined.

        A REPLACE may create the space: a trigger on `_space` makes one of an INSERT. Or it changes a space whose
        creation is in no file that was read, and whose earlier rows are missing. The insertion of the primary index
        decides: before it a space has no tuples.
        """
        old = self.described.pop(space_id, None)
        new = self._tuple_after(old, row, [space_id], [0, space_id])
        if new is None:
            self.emptied_unknown_spaces.append((row.position, space_id))
        elif row.type == "INSERT":
            self._define_space(row, space_id, SpaceDefinition(new))
        else:
            self.described[space_id] = new

    def _apply_to_index(self, row: ControlRow) -> None:
        space_id = _row_space_id(row)
        old = self.spaces.get(space_id)
        index_id = integer_of(field_at(_key_fields(row), 1, "the index id"), "the index id")
        if old is None:
            if index_id != 0:
                return
            if row.type == "DELETE":
                self.emptied_unknown_spaces.append((row.position, space_id))
            if row.type != "INSERT" or space_id not in self.described:
                return
            old = SpaceDefinition(self.described.pop(space_id))
        new = self._tuple_after(old.indexes.get(index_id), row, [space_id, index_id], [])
        rest = {i: t for i, t in old.indexes.items() if i != index_id}
        rows = SpaceDefinition(old.space, rest if new is None else {**rest, index_id: new})
        if index_id == 0 and new is None:
            # Tarantool drops all tuples with the primary index; a change of it is an UPDATE or REPLACE.
            self.spaces[space_id] = rows
            self._add_change(row, space_id, SpaceEvent.TRUNCATED)
        else:
            self._define_space(row, space_id, rows)

    def _define_space(self, row: ControlRow, space_id: int, definition: SpaceDefinition) -> None:
        """Set a space's definition; if only the new one is malformed, record the event `HELD` instead."""
        old, fault = self.spaces.get(space_id), definition.decoded().fault
        if fault is not None and old is not None and old.decoded().primary_key:
            self._add_change(row, space_id, SpaceEvent.HELD, f"{HELD_PREFIX}: {fault}")
            return
        self.spaces[space_id] = definition
        self._add_change(row, space_id, SpaceEvent.DEFINED)

    def _tuple_after(
        self, old: bytes | None, row: ControlRow, key: list[int], other_fields: list[object]
    ) -> bytes | None:
        """Return the system tuple after a row; for a malformed row, only its key and `other_fields` as a tuple."""
        try:
            new = _tuple_after(old, row)
            if new is not None and list(fields_of(new, "a row of a system space")[: len(key)]) != key:
                raise TupleError("it changes the key of its row")
        except (TupleError, UnsupportedError) as error:
            self.faults.append(SystemRowFault(row, error.reason))
            packed: bytes = msgpack.packb([*key, *other_fields], unicode_errors="surrogateescape")
            return packed
        return new

    def _add_change(
        self, row: ControlRow, space_id: int, kind: SpaceEvent, held_reason: str | None = None
    ) -> None:
        rows, held_reason = self.spaces[space_id], held_reason or row.held_reason
        reason = (
            f"{held_reason} (replica id {row.replica_id}, lsn {row.lsn})" if held_reason is not None else None
        )
        change = SpaceChange(
            row.position, space_id, kind, rows, row.replica_id, row.lsn, row.timestamp, reason
        )
        self.changes.append(change)


def row_space_id(key: bytes | None, tuple_: bytes | None) -> int | None:
    """Return the space id in a row of `_space`, `_index` or `_truncate`; None if the row is malformed."""
    try:
        return _parse_space_id(key, tuple_)
    except TupleError:
        return None


def _parse_space_id(key: bytes | None, tuple_: bytes | None) -> int:
    fields = fields_of(key if key is not None else tuple_, "its key or tuple")
    return integer_of(field_at(fields, 0, "the space id"), "the space id")


def _row_space_id(row: ControlRow) -> int:
    return _parse_space_id(row.key, row.tuple)


def _key_fields(row: ControlRow) -> Sequence[Any]:
    return fields_of(row.key if row.key is not None else row.tuple, "its key or tuple")


def _tuple_after(old: bytes | None, row: ControlRow) -> bytes | None:
    names = SYSTEM_FIELDS[row.space_id or 0]
    if row.type in ("INSERT", "REPLACE"):
        return row.tuple
    if row.type == "DELETE":
        return None
    if row.type == "UPSERT" and row.tuple is not None and row.operations is not None:
        return apply_upsert(old, row.tuple, row.operations, row.index_base, format_of_names(names))
    if row.type == "UPDATE" and row.operations is not None:
        return (
            None if old is None else apply_update(old, row.operations, row.index_base, format_of_names(names))
        )
    raise TupleError(f"a row of type {row.type} in a system space", space=row.space_id, lsn=row.lsn)
