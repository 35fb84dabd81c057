"""Collects from the rows of a log the definitions of spaces, the instances, and the current tuples of keys.

Definitions are rows of `_space` and `_index`, instances are rows of `_cluster`. UPDATEs of these rows are applied
(`udfs.versions.key_state`). Tuples of other spaces are stored only on request, since they need memory.
`observe.log_rows.read` decides which rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from schemas.errors import ConfigurationError, TupleError, UnsupportedError
from schemas.iproto import SYSTEM_SPACE_ID_MAX, SystemSpace
from schemas.row_types import CHANGE_TYPES, ONE_KEY_TYPES, PUT_TYPES, TYPE_FOR_ONE_KEY
from schemas.space import INDEXES_MAX, KeyPart, Space, faulty_space, space_of_rows
from schemas.system_tuples import unpacked
from sources.xlog.reader.plain_rows import PlainRow
from udfs.before_replace.row import decode
from udfs.operations.msgpack_walk import split_tuple
from udfs.operations.tuple_format import Step, format_of, steps_of_part
from udfs.operations.update_rules import LATEST, Rules, rules_of
from udfs.versions.key_state import Fold, RowChange, Version

HashableKey = tuple[Any, ...]
"""A primary key as a hashable value, which is equal for all rows of one key (`LoggedSpace.hashable_key`)."""


class RowContext(NamedTuple):
    """What the catalog adds to a row."""

    definition: LoggedSpace | None
    key: HashableKey | None = None
    """The key, from `LoggedSpace.hashable_key`; None if the catalog does not store tuples of the space."""
    tuple_after: bytes | None = None
    """The tuple that the key has after the row; None if it has none, or if `is_tuple_known` is False."""
    is_tuple_known: bool = False
    """Whether it is known which tuple, or that none, the key has after the row."""


_ID_KEY_PART = KeyPart(0, "unsigned")
_SYSTEM_PRIMARY_KEYS = {
    SystemSpace.SCHEMA: (KeyPart(0, "string"),),
    SystemSpace.COLLATION: (_ID_KEY_PART,),
    SystemSpace.SPACE: (_ID_KEY_PART,),
    SystemSpace.INDEX: (_ID_KEY_PART, KeyPart(1, "unsigned")),
    SystemSpace.CLUSTER: (_ID_KEY_PART,),
    SystemSpace.TRUNCATE: (_ID_KEY_PART,),
}
_SYSTEM_SPACES = {
    int(number): Space(int(number), 1, f"_{number.name.lower()}", "memtx", primary_key=key)
    for number, key in _SYSTEM_PRIMARY_KEYS.items()
}
"""By id, the system spaces, whose definitions are needed before any row is read (`src/box/schema_def.h`)."""

DEFINING_SPACES = frozenset(map(int, (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.CLUSTER)))
"""Ids of the spaces whose rows define spaces and instances."""


@dataclass(frozen=True)
class LoggedSpace:
    """The definition of a space, with functions that find the key of its rows."""

    space: Space

    @cached_property
    def _key_part_paths(self) -> tuple[tuple[Step, ...], ...]:
        return tuple(steps_of_part(part.field, part.path) for part in self.space.primary_key)

    def key_values_of_row(self, key: bytes | None, tuple_: bytes | None) -> list[Any] | None:
        """Return the values of the primary key's parts in a row; None if the row has neither key nor tuple."""
        if key is not None:
            values: list[Any] = decode(key)
            return values
        return None if tuple_ is None else self.key_values_in_tuple(tuple_)

    def key_values_in_tuple(self, data: bytes) -> list[Any] | None:
        """Return the values of the primary key's parts in a tuple; None if the space has no index."""
        if not self._key_part_paths:
            return None
        values = decode(data)
        return [_value_at(values, path) for path in self._key_part_paths]

    def hashable_key(self, key: bytes | None, tuple_: bytes | None) -> HashableKey | None:
        """Return a row's key as a hashable value; None if `key_values_of_row` returns None.

        An unsigned part is represented by its encoded bytes, since for Tarantool `01` and `cd 00 01` are two keys
        (`udfs.keys.keys`). Keys of system spaces are represented by their values, since servers encode the same id in
        several ways (`cd 01 18`, `ce 00 00 01 18`).
        """
        values = self.key_values_of_row(key, tuple_)
        if values is None:
            return None
        parts, is_system = self.space.primary_key, self.space.id <= SYSTEM_SPACE_ID_MAX
        if (
            is_system
            or len(parts) != len(values)
            or all(part.type != "unsigned" or part.path for part in parts)
        ):
            return tuple(map(comparable_value, values))
        fields = split_tuple(key or tuple_ or b"")
        indices = range(len(parts)) if key is not None else [part.field for part in parts]
        return tuple(
            fields[index] if part.type == "unsigned" and not part.path else comparable_value(value)
            for part, index, value in zip(parts, indices, values, strict=True)
        )


def comparable_value(value: Any) -> Any:
    """Return a value to compare in Python in place of a key's part: True differs from 1, as in Tarantool's indexes."""
    return ("boolean", value) if isinstance(value, bool) else value


def _value_at(value: Any, path: Sequence[Step]) -> Any:
    for step in path:
        try:
            value = value[step.decode() if isinstance(step, bytes) else step]
        except (IndexError, KeyError, TypeError):
            return None
    return value


@dataclass
class LogCatalog:
    """The definitions, instances and tuples after the rows that were processed so far."""

    stores_all_tuples: bool = False
    """Whether the tuples of all spaces are stored, not only those of `DEFINING_SPACES`."""
    has_all_rows: bool = False
    """Whether a snapshot and all rows after it were processed. If so, a key without a stored tuple has no tuple; if
    not, the tuple of such a key is unknown."""
    uuid_by_replica_id: dict[int, str] = field(default_factory=dict)
    """By replica id: the uuid of the registered instance."""
    update_rules: Rules = LATEST
    """The rules by which the server that wrote the rows computes UPDATEs."""
    _definition_by_id: dict[int, LoggedSpace] = field(default_factory=dict)
    _tuple_by_key: dict[tuple[int, HashableKey], bytes | None] = field(default_factory=dict)

    def begin_file(self, version: str | None) -> None:
        """Choose the rules for UPDATEs in a file by the `Version` in its header; without one, those of new servers."""
        try:
            self.update_rules = LATEST if version is None else rules_of(version)
        except ConfigurationError:
            self.update_rules = LATEST

    def definition_of(self, space_id: int | None) -> LoggedSpace | None:
        """Return the current definition of a space id; None if it is unknown."""
        if space_id is None:
            return None
        definition = self._definition_by_id.get(space_id)
        if space_id in _SYSTEM_SPACES and (definition is None or not definition.space.primary_key):
            return LoggedSpace(_SYSTEM_SPACES[space_id])
        return definition

    def space_ids_of(self, name: str) -> Iterator[int]:
        """Yield the ids of the spaces with a name; if the name is a number, first the number itself as an id."""
        if name.isdigit():
            yield int(name)
        spaces = {
            **_SYSTEM_SPACES,
            **{id_: definition.space for id_, definition in self._definition_by_id.items()},
        }
        yield from (id_ for id_, space in spaces.items() if space.name == name)

    def process(self, row: PlainRow) -> RowContext:
        """Update the catalog with a row, and return what the catalog knows about the row."""
        definition = self.definition_of(row.space_id)
        if definition is None or row.space_id is None:
            return RowContext(definition)
        if row.type not in ONE_KEY_TYPES:
            if row.type in CHANGE_TYPES:
                self._remove_tuples(row.space_id)
                self.has_all_rows = False
            return RowContext(definition)
        if row.space_id == SystemSpace.TRUNCATE and row.tuple is not None:
            self._remove_tuples(unpacked(row.tuple)[0])
        if not self.stores_all_tuples and row.space_id not in DEFINING_SPACES:
            return RowContext(definition)
        key = definition.hashable_key(row.key, row.tuple)
        if key is None:
            return RowContext(definition)
        space_key = (row.space_id, key)
        self._store_tuple_after(row, definition, space_key)
        if row.space_id in DEFINING_SPACES:
            self._update_definition(row.space_id, key)
        return RowContext(
            definition,
            key,
            self._tuple_by_key.get(space_key),
            space_key in self._tuple_by_key or self.has_all_rows,
        )

    def _store_tuple_after(
        self, row: PlainRow, definition: LoggedSpace, space_key: tuple[int, HashableKey]
    ) -> None:
        kind = TYPE_FOR_ONE_KEY[row.type]
        if row.type in PUT_TYPES:
            self._tuple_by_key[space_key] = row.tuple
        elif row.new_tuple is not None:
            self._tuple_by_key[space_key] = row.new_tuple
        elif kind == "DELETE":
            self._tuple_by_key[space_key] = None
        elif space_key in self._tuple_by_key or self.has_all_rows:
            tuple_before = self._tuple_by_key.get(space_key)
            fold = Fold([format_of(definition.space, self.update_rules)])
            fold.start(None if tuple_before is None else Version(tuple_before, 0, 0, None, None))
            fold.apply(RowChange(kind, row.tuple, row.operations, row.index_base, 0, 0, None))
            if fold.is_unfit:
                self._tuple_by_key.pop(space_key, None)
            else:
                self._tuple_by_key[space_key] = fold.version.tuple if fold.is_present else None

    def _remove_tuples(self, space_id: int) -> None:
        for space_key in [space_key for space_key in self._tuple_by_key if space_key[0] == space_id]:
            del self._tuple_by_key[space_key]

    def _update_definition(self, space_id: int, key: HashableKey) -> None:
        tuple_after = self._tuple_by_key.get((space_id, key))
        if space_id == SystemSpace.CLUSTER:
            if tuple_after is None:
                self.uuid_by_replica_id.pop(key[0], None)
            else:
                self.uuid_by_replica_id[key[0]] = str(unpacked(tuple_after)[1])
            return
        number = key[0]
        space_tuple = self._tuple_by_key.get((int(SystemSpace.SPACE), (number,)))
        if space_tuple is None:
            self._definition_by_id.pop(number, None)
            self._remove_tuples(number)
            return
        rows = {i: self._tuple_by_key.get((int(SystemSpace.INDEX), (number, i))) for i in range(INDEXES_MAX)}
        fields = unpacked(space_tuple)
        try:
            space = space_of_rows(fields, {i: row for i, row in rows.items() if row is not None})
        except (TupleError, UnsupportedError) as error:
            space = faulty_space(fields, error.reason)
        old, self._definition_by_id[number] = self._definition_by_id.get(number), LoggedSpace(space)
        if old is not None and old.space.primary_key != space.primary_key:
            self._store_under_new_key(number, self._definition_by_id[number])

    def _store_under_new_key(self, space_id: int, definition: LoggedSpace) -> None:
        """Store the tuples of a space under its new primary key; remove them if it has none."""
        tuples = [
            data
            for space_key, data in self._tuple_by_key.items()
            if space_key[0] == space_id and data is not None
        ]
        self._remove_tuples(space_id)
        for data in tuples:
            key = definition.hashable_key(None, data)
            if key is not None:
                self._tuple_by_key[space_id, key] = data
