"""Remembers what a log's rows define so far: names of spaces and fields, instances, and the tuples of keys.

Definitions are rows of `_space` and `_index`, instances rows of `_cluster`; UPDATEs of these are applied, as in
`udfs.versions.fold_state`. Tuples of other spaces are kept only on request, since each takes memory.
`observe.log_rows.read` decides which rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from schemas.errors import ConfigurationError, TupleError, UnsupportedError
from schemas.iproto import SYSTEM_ID_MAX, SystemSpace
from schemas.space import KeyPart, Space, faulty_space, space_of
from schemas.system_tuples import unpacked
from sources.xlog.reader.plain_rows import PlainRow
from udfs.before_replace.row import decode
from udfs.operations.msgpack_walk import split
from udfs.operations.tuple_format import Step, format_of, steps
from udfs.operations.update_rules import LATEST, Rules, rules_of
from udfs.versions.fold_state import Fold
from udfs.versions.version import RowChange, Version

Key = tuple[Any, ...]


class Taken(NamedTuple):
    """What the catalog adds to a row.

    Parameters
    ----------
    definition : LoggedSpace or None
        The row's space.
    key : tuple or None
        From `Definition.key_of`; None if it was not needed.
    after : bytes or None
        The tuple after the row, None if there is none or it is unknown.
    is_known : bool
        Whether `after` is known.

    """

    definition: LoggedSpace | None
    key: Key | None = None
    after: bytes | None = None
    is_known: bool = False


_ID = KeyPart(0, "unsigned")
_KEYS = {
    SystemSpace.SCHEMA: (KeyPart(0, "string"),),
    SystemSpace.COLLATION: (_ID,),
    SystemSpace.SPACE: (_ID,),
    SystemSpace.INDEX: (_ID, KeyPart(1, "unsigned")),
    SystemSpace.CLUSTER: (_ID,),
    SystemSpace.TRUNCATE: (_ID,),
}
_SYSTEM = {
    int(number): Space(int(number), 1, f"_{number.name.lower()}", "memtx", primary_key=key)
    for number, key in _KEYS.items()
}
"""Definitions that exist before any row; `_space` and `_index` have rows for them too (`src/box/schema_def.h`)."""

DEFINING = frozenset(map(int, (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.CLUSTER)))
"""Ids of the spaces whose rows a catalog needs."""

_CHANGES = ("INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE")


@dataclass(frozen=True)
class LoggedSpace:
    """A space and how to decode its rows."""

    space: Space

    @cached_property
    def _paths(self) -> tuple[tuple[Step, ...], ...]:
        """Paths of the primary key's parts in a tuple."""
        return tuple(steps(part.field, part.path) for part in self.space.primary_key)

    def values_of(self, key: bytes | None, tuple_: bytes | None) -> list[Any] | None:
        """Return the values of a row's key, None if the row has no key or the space no index."""
        if key is not None:
            found: list[Any] = decode(key)
            return found
        return None if tuple_ is None else self.values_in(tuple_)

    def values_in(self, data: bytes) -> list[Any] | None:
        """Return the values of a tuple's key, None if the space has no index."""
        if not self._paths:
            return None
        values = decode(data)
        return [_at(values, path) for path in self._paths]

    def key_of(self, key: bytes | None, tuple_: bytes | None) -> Key | None:
        """Return a value that is equal for all rows of one key; None if `values_of` is.

        An unsigned part compares by its encoding (`udfs.keys.keys`): for Tarantool `01` and `cd 00 01` are two keys.
        Keys of system spaces compare by value here, since servers encode one id in several ways (`cd 01 18`, `ce 00 00
        01 18`).
        """
        values = self.values_of(key, tuple_)
        if values is None:
            return None
        parts, is_system = self.space.primary_key, self.space.id <= SYSTEM_ID_MAX
        if is_system or len(parts) != len(values) or all(one.type != "unsigned" or one.path for one in parts):
            return tuple(map(comparable, values))
        fields = split(key or tuple_ or b"")
        places = range(len(parts)) if key is not None else [part.field for part in parts]
        return tuple(
            fields[place] if part.type == "unsigned" and not part.path else comparable(value)
            for part, place, value in zip(parts, places, values, strict=True)
        )


def comparable(value: Any) -> Any:
    """Return a value that is equal for values that Tarantool's indexes treat as equal.

    Numbers compare by value whatever their encoding; plain Python would also treat True as 1.
    """
    return ("boolean", value) if isinstance(value, bool) else value


def _at(value: Any, path: Sequence[Step]) -> Any:
    for step in path:
        try:
            value = value[step.decode() if isinstance(step, bytes) else step]
        except (IndexError, KeyError, TypeError):
            return None
    return value


@dataclass
class LogCatalog:
    """The definitions, instances and tuples at one position of a log.

    Parameters
    ----------
    with_tuples : bool
        Whether the tuples of all spaces are kept, not only those of system spaces.
    is_whole : bool
        Whether every tuple has been seen, so that a key without a stored tuple has none.
    instances : dict of int to str
        Uuids by replica id.
    rules : Rules
        UPDATE rules of the server that wrote the rows.

    """

    with_tuples: bool = False
    is_whole: bool = False
    instances: dict[int, str] = field(default_factory=dict)
    rules: Rules = LATEST
    _spaces: dict[int, LoggedSpace] = field(default_factory=dict)
    _tuples: dict[tuple[int, Key], bytes | None] = field(default_factory=dict)

    def begin_file(self, version: str | None) -> None:
        """Set the rules for the following rows from the `Version` of a file's header."""
        try:
            self.rules = LATEST if version is None else rules_of(version)
        except ConfigurationError:
            self.rules = LATEST

    def definition(self, space_id: int | None) -> LoggedSpace | None:
        """Return the current definition of a space by its id."""
        if space_id is None:
            return None
        found = self._spaces.get(space_id)
        if space_id in _SYSTEM and (found is None or not found.space.primary_key):
            return LoggedSpace(_SYSTEM[space_id])
        return found

    def ids_of(self, name: str) -> Iterator[int]:
        """Yield the current ids of a space name or number."""
        if name.isdigit():
            yield int(name)
        spaces = {**_SYSTEM, **{own: one.space for own, one in self._spaces.items()}}
        yield from (own for own, space in spaces.items() if space.name == name)

    def take(self, row: PlainRow) -> Taken:
        """Process a row and return what the catalog adds to it."""
        definition = self.definition(row.space_id)
        if definition is None or row.space_id is None:
            return Taken(definition)
        if row.type not in _CHANGES:
            if row.type == "DELETE_RANGE":
                self._forget(row.space_id)
                self.is_whole = False
            return Taken(definition)
        if row.space_id == SystemSpace.TRUNCATE and row.tuple is not None:
            self._forget(unpacked(row.tuple)[0])
        if not self.with_tuples and row.space_id not in DEFINING:
            return Taken(definition)
        key = definition.key_of(row.key, row.tuple)
        if key is None:
            return Taken(definition)
        place = (row.space_id, key)
        self._apply(row, definition, place)
        if row.space_id in DEFINING:
            self._define(row.space_id, key)
        return Taken(definition, key, self._tuples.get(place), place in self._tuples or self.is_whole)

    def _apply(self, row: PlainRow, definition: LoggedSpace, place: tuple[int, Key]) -> None:
        """Update the tuple of a key; None means that the key is known to have none."""
        if row.type in ("INSERT", "REPLACE"):
            self._tuples[place] = row.tuple
        elif row.new_tuple is not None:
            self._tuples[place] = row.new_tuple
        elif row.type == "DELETE":
            self._tuples[place] = None
        elif place in self._tuples or self.is_whole:
            before = self._tuples.get(place)
            fold = Fold([format_of(definition.space, self.rules)])
            fold.start(None if before is None else Version(before, 0, 0, None, None))
            fold.apply(RowChange(row.type, row.tuple, row.operations, row.index_base, 0, 0, None))
            if fold.is_unfit:
                self._tuples.pop(place, None)
            else:
                self._tuples[place] = fold.version.tuple if fold.is_present else None

    def _forget(self, space_id: int) -> None:
        """Remove the tuples of a truncated or dropped space."""
        for place in [place for place in self._tuples if place[0] == space_id]:
            del self._tuples[place]

    def _define(self, space_id: int, key: Key) -> None:
        """Update definitions or instances from a row of a system space."""
        after = self._tuples.get((space_id, key))
        if space_id == SystemSpace.CLUSTER:
            if after is None:
                self.instances.pop(key[0], None)
            else:
                self.instances[key[0]] = str(unpacked(after)[1])
            return
        number = key[0]
        if space_id == SystemSpace.INDEX and key[1] != 0:
            return
        own = self._tuples.get((int(SystemSpace.SPACE), (number,)))
        if own is None:
            self._spaces.pop(number, None)
            self._forget(number)
            return
        primary = self._tuples.get((int(SystemSpace.INDEX), (number, 0)))
        fields = unpacked(own)
        try:
            space = space_of(fields, None if primary is None else unpacked(primary))
        except (TupleError, UnsupportedError) as error:
            space = faulty_space(fields, error.reason)
        self._spaces[number] = LoggedSpace(space)
