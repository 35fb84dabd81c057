"""Reads the rows about one key: its changes in every replicaset, their transactions, and the decisions.

Reads by delta-rs' own engine, which filters rows while it reads files. `jobs.who` shows the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from observe.log_rows.catalog import LoggedSpace
from observe.log_rows.wanted import is_same
from schemas.errors import ConfigurationError, TupleError, UnsupportedError, WarehouseError
from schemas.iproto import SystemSpace
from schemas.space import KeyPart, faulty_space, space_of
from schemas.states import RowState
from schemas.system_tuples import unpacked
from udfs.before_replace.row import decode
from udfs.keys.key_patterns import Value, key_pattern, leads
from udfs.operations.tuple_format import format_of
from udfs.operations.update_rules import LATEST, rules_of
from udfs.versions.fold_state import Fold
from udfs.versions.version import RowChange
from warehouse.newest_epoch import EPOCHS
from warehouse.place import Place
from warehouse.read import answer, newest
from warehouse.removed_changes import cleaned_replicasets


@dataclass(frozen=True)
class Named:
    """The definitions of the spaces that have had one name.

    Parameters
    ----------
    names : frozenset of str
        Names of the space over time, as in `_changelog`.
    tables : frozenset of str
        Tables that its rows were written to.
    others : frozenset of str
        Names of all other spaces.
    versions : tuple
        (epoch, replicaset id, space id, definition), the oldest first.

    """

    names: frozenset[str]
    tables: frozenset[str]
    others: frozenset[str]
    versions: tuple[tuple[int, int, int, LoggedSpace], ...]

    def of(self, epoch: int, replicaset_id: int, space_id: int | None) -> LoggedSpace | None:
        """Return the definition of a space id in a replicaset at an epoch; the last one of several."""
        found = [
            (since, one)
            for since, replicaset, space, one in self.versions
            if (replicaset, space) == (replicaset_id, space_id)
        ]
        before = [one for since, one in found if since <= epoch]
        return before[-1] if before else found[0][1] if found else None

    def has(self, replicaset_id: int, space_id: int | None, name: str | None) -> bool:
        """Return whether a row of `_changelog` belongs to the space, by the name in the row.

        A name that existed within one batch only is in no row of `_schema`: then the space id decides.
        """
        return name in self.names or ((replicaset_id, space_id) in self.ids and name not in self.others)

    @property
    def ids(self) -> set[tuple[int, int]]:
        """Replicaset and space ids that have had the name."""
        return {(replicaset, space) for _, replicaset, space, _ in self.versions}

    @property
    def keys(self) -> set[tuple[KeyPart, ...]]:
        """Primary keys that the space has had."""
        return {one.space.primary_key for _, _, _, one in self.versions if one.space.primary_key}


def named(rows: Iterable[Mapping[str, Any]], name: str) -> Named:
    """Return the definitions for the name of a space or of its table.

    Parameters
    ----------
    rows : iterable of mapping
        Of `_schema`.
    name : str

    """
    every = sorted(rows, key=lambda row: int(row["epoch"]))
    tables = {row["table_name"] for row in every if name in (row["name"], row["table_name"])} - {None}
    own = [row for row in every if row["name"] == name or row["table_name"] in tables]
    versions = tuple(
        (int(row["epoch"]), int(row["replicaset_id"]), int(row["space_id"]), _definition(row))
        for row in own
        if row["space_tuple"] is not None
    )
    names = frozenset(row["name"] for row in own)
    return Named(names, frozenset(tables), frozenset(row["name"] for row in every) - names, versions)


def _definition(row: Mapping[str, Any]) -> LoggedSpace:
    fields, indexes = unpacked(row["space_tuple"]), dict(row["index_tuples"] or ())
    try:
        return LoggedSpace(space_of(fields, unpacked(indexes[0]) if 0 in indexes else None))
    except (TupleError, UnsupportedError) as error:
        return LoggedSpace(faulty_space(fields, error.reason))


Row = Mapping[str, Any]

_ORDER = "epoch, segment, position, row"
_VERSION = "server_version"
_COLUMNS = (
    "epoch, replicaset_id, source, segment, global_id, state, space, file, position, row, type, lsn, tsn, timestamp, "
    "space_id, index_base, key, tuple, operations"
)
_WHOLE = ("TRUNCATE", "DROP", "DELETE_RANGE")
_APPLIED = ("INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE")


@dataclass(frozen=True)
class ChangeOfKey:
    """One change of the key in one replicaset.

    Parameters
    ----------
    row : mapping
        Of `_changelog`.
    after : bytes or None
        The key's tuple in its replicaset after the change, None without one.
    is_known : bool
        Whether `after` is known.
    neighbours : sequence of mapping
        The other rows of its transaction.

    """

    row: Row
    after: bytes | None
    is_known: bool
    neighbours: Sequence[Row] = ()


@dataclass(frozen=True)
class Story:
    """Everything about one key.

    Parameters
    ----------
    space : Named
    steps : sequence of ChangeOfKey
        In log order, grouped by replicaset.
    decisions : sequence of mapping
        Rows of `_conflicts`, the oldest first.
    versions : sequence of mapping
        Rows of `_versions`: the newest of each replicaset.
    winner : mapping or None
        The row of the space's table.
    instances, replicasets : mapping of int to str
        Uuids by global id, and by replicaset id.
    cleaned : set of int
        Replicasets whose rows maintenance has removed.

    """

    space: Named
    steps: Sequence[ChangeOfKey]
    decisions: Sequence[Row]
    versions: Sequence[Row]
    winner: Row | None
    instances: Mapping[int, str]
    replicasets: Mapping[int, str]
    cleaned: set[int]


class KeyChangesReader:
    """Reads the tables of a warehouse as of its newest epoch.

    Parameters
    ----------
    place : Place

    Raises
    ------
    WarehouseError
        No batch is done yet.

    """

    def __init__(self, place: Place) -> None:
        self._place = place
        epochs = place.open(EPOCHS)
        last = None if epochs is None else newest(epochs, "epoch")
        if last is None:
            raise WarehouseError(
                "no batch is done yet", warehouse=place.root, advice="start `aggregator run` first"
            )
        self._versions = {str(name): int(version) for name, version in last["versions"]}

    def ask(self, table: str, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query, in which the table is named `opened`."""
        opened = self._place.open(table, self._versions.get(table))
        return [] if opened is None else answer(opened, query)

    def _columns(self) -> str:
        """Return the columns of `_changelog` to read; a table of an earlier release has no `server_version`."""
        opened = self._place.open("_changelog", self._versions.get("_changelog"))
        has_version = opened is not None and any(one.name == _VERSION for one in opened.schema().fields)
        return f"{_COLUMNS}, {_VERSION}" if has_version else _COLUMNS

    def story(self, name: str, values: Sequence[Value]) -> Story:
        """Return everything about a key.

        Parameters
        ----------
        name : str
            Name of the space or of its table.
        values : sequence
            The values of the key, as in JSON.

        Raises
        ------
        ConfigurationError
            There is no such space, or its key has another number of parts.

        """
        space = named(self.ask("_schema", "SELECT * FROM opened"), name)
        if not space.versions:
            raise ConfigurationError(f"no replicaset has a space {name!r}", advice="see _schema.name")
        if not any(len(parts) == len(values) for parts in space.keys):
            counts = " or ".join(sorted({str(len(parts)) for parts in space.keys}))
            raise ConfigurationError(
                f"the key of {name} has {counts} parts, not {len(values)}",
                advice="give it as JSON: '[1, \"a\"]'",
            )
        members = self.ask("_cluster", "SELECT global_id, uuid, replicaset_id, replicaset_uuid FROM opened")
        rows = [*self._changes(space, values), *self._truncations(space)]
        steps = [*_steps(space, sorted(rows, key=_place))]
        return Story(
            space=space,
            steps=self._with_neighbours(steps),
            decisions=self._rows_of_key(space, values, "_conflicts", "coalesce(winner_tuple, loser_tuple)"),
            versions=_newest_of_each(self._rows_of_key(space, values, "_versions", "tuple")),
            winner=self._winner(space, values, steps),
            instances={one["global_id"]: one["uuid"] for one in members},
            replicasets={one["replicaset_id"]: one["replicaset_uuid"] for one in members},
            cleaned=cleaned_replicasets(self._place),
        )

    def _changes(self, space: Named, values: Sequence[Value]) -> list[dict[str, Any]]:
        """Return the rows of `_changelog` about a key, and ranges that were deleted."""
        ids = _numbers(space_id for _, space_id in space.ids)
        own = f"(space IN ({_texts(space.names)}) OR space_id IN ({ids}))"
        conditions = [_condition(values, parts) for parts in space.keys if len(parts) == len(values)]
        where = f"{own} AND ({' OR '.join(conditions)})"
        found = self.ask("_changelog", f"SELECT {self._columns()} FROM opened WHERE {where}")
        return [
            row
            for row in found
            if space.has(row["replicaset_id"], row["space_id"], row["space"])
            and (row["type"] == "DELETE_RANGE" or _is_about(row, space, values))
        ]

    def _truncations(self, space: Named) -> list[dict[str, Any]]:
        """Return the rows that truncated or dropped the space."""
        truncate, drop = int(SystemSpace.TRUNCATE), int(SystemSpace.SPACE)
        where = f"(space_id = {truncate} OR (space_id = {drop} AND type = 'DELETE')) AND state = '{RowState.COMMITTED}'"
        rows = self.ask("_changelog", f"SELECT {self._columns()} FROM opened WHERE {where}")
        return [
            {**row, "type": "TRUNCATE" if row["space_id"] == truncate else "DROP"}
            for row in rows
            if (data := row["key"] or row["tuple"]) is not None
            and not row["file"].endswith(".snap")
            and (row["replicaset_id"], unpacked(data)[0]) in space.ids
        ]

    def _with_neighbours(self, steps: Sequence[ChangeOfKey]) -> list[ChangeOfKey]:
        """Return the changes with the other rows of their transactions."""
        logged = [
            one.row for one in steps if one.row["tsn"] is not None and not one.row["file"].endswith(".snap")
        ]
        if not logged:
            return list(steps)
        epochs, first = (_numbers(row[name] for row in logged) for name in ("epoch", "tsn"))
        columns = "replicaset_id, global_id, epoch, tsn, space, space_id, type, lsn, key, tuple"
        # A transaction is in one epoch only, so only files of these epochs are read.
        query = f"SELECT {columns} FROM opened WHERE epoch IN ({epochs}) AND tsn IN ({first}) ORDER BY lsn"
        by_transaction: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self.ask("_changelog", query):
            by_transaction.setdefault(_transaction(row), []).append(row)
        return [
            ChangeOfKey(
                one.row,
                one.after,
                one.is_known,
                ()
                if one.row not in logged
                else [
                    other for other in by_transaction[_transaction(one.row)] if other["lsn"] != one.row["lsn"]
                ],
            )
            for one in steps
        ]

    def _rows_of_key(
        self, space: Named, values: Sequence[Value], table: str, tuples: str
    ) -> list[dict[str, Any]]:
        """Return a table's rows about a key, the oldest first; keys are canonical, with arrays as in a log."""
        own = f"space IN ({_texts(space.tables)})"
        patterns = [key_pattern(values, parts) for parts in space.keys if len(parts) == len(values)]
        wanted = " OR ".join(f"regexp_like(encode(key, 'hex'), {_text(one or '')})" for one in patterns)
        query = f"SELECT *, {tuples} AS shown FROM opened WHERE {own} AND ({wanted}) ORDER BY epoch"
        return [row for row in self.ask(table, query) if _holds(row["key"], values)]

    def _winner(
        self, space: Named, values: Sequence[Value], steps: Sequence[ChangeOfKey]
    ) -> dict[str, Any] | None:
        """Return the row of the space's table."""
        lsns = _numbers(step.row["lsn"] for step in steps if step.row["lsn"] is not None)
        if not lsns:
            return None
        where = f"_lsn IN ({lsns})"
        query = f"SELECT _key, _tuple, _global_id, _replicaset_id, _lsn, _timestamp FROM opened WHERE {where}"
        for table in sorted(space.tables & self._versions.keys()):
            for row in self.ask(table, query):
                if _holds(row["_key"], values):
                    return row
        return None


def _condition(values: Sequence[Value], parts: Sequence[Any]) -> str:
    """Return an SQL condition that all rows about a key fulfil; some other rows may fulfil it too."""
    pattern = _text(key_pattern(values, parts) or "")
    if leads(parts):
        return f"regexp_like(encode(coalesce(key, tuple), 'hex'), {pattern}) OR type = 'DELETE_RANGE'"
    return f"key IS NULL OR regexp_like(encode(key, 'hex'), {pattern})"


def _text(value: str) -> str:
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _transaction(row: Row) -> tuple[Any, ...]:
    return row["replicaset_id"], row["global_id"], row["epoch"], row["tsn"]


def _texts(values: Iterable[str]) -> str:
    return ", ".join(map(_text, sorted(values)))


def _holds(key: bytes, values: Sequence[Value]) -> bool:
    parts = decode(key)
    return len(parts) == len(values) and all(map(is_same, parts, values))


def _is_about(row: Row, space: Named, values: Sequence[Value]) -> bool:
    if row["key"] is not None:
        return _holds(row["key"], values)
    definition = space.of(row["epoch"], row["replicaset_id"], row["space_id"])
    if definition is None or row["tuple"] is None:
        return False
    found = definition.values_in(row["tuple"])
    return found is not None and len(found) == len(values) and all(map(is_same, found, values))


def _place(row: Row) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in ("replicaset_id", "epoch", "segment", "position", "row"))


def _newest_of_each(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(row["space"], row["replicaset_id"]): row for row in rows}.values())


def _steps(space: Named, rows: Sequence[Row]) -> Iterator[ChangeOfKey]:
    """Yield the changes with the tuple after each, computed in the order of each replicaset's log."""
    formats = []
    for row in rows:
        definition = space.of(row["epoch"], row["replicaset_id"], row["space_id"])
        rules = LATEST if row.get(_VERSION) is None else rules_of(row[_VERSION])
        formats.append(format_of((definition or space.versions[-1][3]).space, rules))
    folds: dict[tuple[int, Any], Fold] = {}
    for layout, row in enumerate(rows):
        definition = space.of(row["epoch"], row["replicaset_id"], row["space_id"])
        exact = None if definition is None else definition.key_of(row["key"], row["tuple"])
        own = folds.setdefault((row["replicaset_id"], exact), Fold(formats))
        if row["type"] in _WHOLE:
            for (replicaset_id, _), fold in folds.items():
                if replicaset_id == row["replicaset_id"]:
                    fold.start(None, is_unfit=row["type"] == "DELETE_RANGE")
        elif row["state"] == RowState.COMMITTED and row["type"] in _APPLIED:
            data = (row["tuple"], row["operations"], row["index_base"])
            own.apply(RowChange(row["type"], *data, row["global_id"] or 0, row["lsn"] or 0, None, layout))
        after = own.version.tuple if own.is_present and not own.is_unfit else None
        yield ChangeOfKey(row, after, not own.is_unfit)
