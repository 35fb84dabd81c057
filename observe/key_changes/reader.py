"""Reads the history of one key: its changes in every replicaset, their transactions, and the decisions of policies.

Queries run in delta-rs' SQL engine, which filters rows while it reads files. `jobs.who` shows the result.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from observe.key_changes.definitions import SpaceDefinitions, definitions_of_space
from observe.log_rows.read import is_same_value
from schemas.errors import ConfigurationError
from schemas.iproto import SystemSpace
from schemas.names import exact_table
from schemas.row_types import ONE_KEY_TYPES, TYPE_FOR_ONE_KEY
from schemas.states import RowState
from schemas.system_tuples import unpacked
from udfs.before_replace.row import decode
from udfs.keys.key_patterns import Value, begins_with_key, key_pattern
from udfs.operations.tuple_format import format_of
from udfs.operations.update_rules import LATEST, rules_of
from udfs.versions.key_state import Fold, RowChange
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import newest_epoch_row
from warehouse.delta.read import query_rows
from warehouse.system_tables.maintenance import cleaned_replicasets

Row = Mapping[str, Any]
"""A row of a table: values by column."""

_CHANGELOG_COLUMNS = (
    "epoch, replicaset_id, source, segment, global_id, state, space, file, position, row, type, lsn, tsn, timestamp, "
    "space_id, index_base, key, tuple, operations, server_version"
)
_MANY_KEY_TYPES = ("TRUNCATE", "DROP", "DELETE_RANGE")
"""Types of changes of all keys of a space, or of a range of keys."""


@dataclass(frozen=True)
class KeyChange:
    """One change of the key in one replicaset."""

    row: Row
    tuple_after: bytes | None
    """The tuple that the key has in the replicaset after the change; None if it has none, or if it is not known."""
    is_tuple_known: bool
    transaction_rows: Sequence[Row] = ()
    """The other rows of the same transaction."""


@dataclass(frozen=True)
class KeyHistory:
    """All that the tables have about one key."""

    space: SpaceDefinitions
    changes: Sequence[KeyChange]
    """In log order, grouped by replicaset."""
    decisions: Sequence[Row]
    """Rows of `_conflicts`, the oldest first."""
    newest_versions: Sequence[Row]
    winning_row: Row | None
    """The row of the space's table with the key; None if there is none."""
    instance_uuids: Mapping[int, str]
    replicaset_uuids: Mapping[int, str]
    """Uuids by global id, and by replicaset id."""
    replicaset_ids_with_removed_rows: set[int]
    """Ids of the replicasets whose older rows maintenance has removed from `_changelog`."""


class KeyChangesReader:
    """Reads histories of keys from the tables of the newest epoch; raises WarehouseError if there is none yet."""

    def __init__(self, location: WarehouseLocation) -> None:
        self._location = location
        last = newest_epoch_row(location)
        self._versions = {str(name): int(version) for name, version in last["versions"]}

    def query_table(self, table: str, query: str) -> list[dict[str, Any]]:
        """Return the result of an SQL query on one table, which it calls `opened`; empty without the table."""
        opened = self._location.open(table, self._versions.get(table))
        return [] if opened is None else query_rows(opened, query)

    def history(self, name: str, values: Sequence[Value]) -> KeyHistory:
        """Return the history of a key.

        Raises:
            ConfigurationError: There is no such space, or its primary key has another number of parts.
        """
        ends = self._truncations_and_drops()
        space = self._definitions(name, ends)
        space.check_key(name, values)
        members = self.query_table(
            "_cluster", "SELECT global_id, uuid, replicaset_id, replicaset_uuid FROM opened"
        )
        rows = [*self._changelog_rows(space, values), *filter(space.is_emptied_by, ends)]
        changes = [*_key_changes(space, sorted(rows, key=_log_order_key))]
        return KeyHistory(
            space=space,
            changes=self._with_transaction_rows(changes),
            decisions=self._rows_of_key(space, values, "_conflicts", "coalesce(winner_tuple, loser_tuple)"),
            newest_versions=_newest_of_each_replicaset(
                self._rows_of_key(space, values, "_versions", "tuple")
            ),
            winning_row=self._winning_row(space, values),
            instance_uuids={row["global_id"]: row["uuid"] for row in members},
            replicaset_uuids={row["replicaset_id"]: row["replicaset_uuid"] for row in members},
            replicaset_ids_with_removed_rows=cleaned_replicasets(self._location),
        )

    def definitions(self, name: str) -> SpaceDefinitions:
        """Return all definitions of the space that has or had a name.

        Raises:
            ConfigurationError: There is no such space.
        """
        return self._definitions(name, self._truncations_and_drops())

    def _definitions(self, name: str, ends: Sequence[Row]) -> SpaceDefinitions:
        drops = {(row["epoch"], row["replicaset_id"], row["of"]) for row in ends if row["type"] == "DROP"}
        found = definitions_of_space(self.query_table("_schema", "SELECT * FROM opened"), name, drops)
        if not found.definitions:
            raise ConfigurationError(f"no replicaset has a space {name!r}", advice="see _schema.name")
        return found

    def _changelog_rows(self, space: SpaceDefinitions, values: Sequence[Value]) -> list[dict[str, Any]]:
        """Return the rows of `_changelog` that change a key, and those that delete a range of keys of its space."""
        ids = _sql_number_list(space_id for _, space_id in space.replicaset_and_space_ids)
        is_space = f"(space IN ({_sql_literal_list(space.names)}) OR space_id IN ({ids}))"
        conditions = [
            _changelog_condition(values, parts) for parts in space.primary_keys if len(parts) == len(values)
        ]
        where = f"{is_space} AND ({' OR '.join(conditions)})"
        rows = self.query_table("_changelog", f"SELECT {_CHANGELOG_COLUMNS} FROM opened WHERE {where}")
        return [
            row
            for row in rows
            if space.includes_row(row) and (row["type"] == "DELETE_RANGE" or _row_has_key(row, space, values))
        ]

    def _truncations_and_drops(self) -> list[dict[str, Any]]:
        """Return the rows that truncate or drop any space, with the type TRUNCATE or DROP; `of` is the space's id."""
        truncate, drop = int(SystemSpace.TRUNCATE), int(SystemSpace.SPACE)
        where = f"(space_id = {truncate} OR (space_id = {drop} AND type = 'DELETE')) AND state = '{RowState.COMMITTED}'"
        rows = self.query_table("_changelog", f"SELECT {_CHANGELOG_COLUMNS} FROM opened WHERE {where}")
        return [
            {**row, "type": "TRUNCATE" if row["space_id"] == truncate else "DROP", "of": unpacked(data)[0]}
            for row in rows
            if (data := row["key"] or row["tuple"]) is not None and not row["file"].endswith(".snap")
        ]

    def _with_transaction_rows(self, changes: Sequence[KeyChange]) -> list[KeyChange]:
        rows = (change.row for change in changes)
        logged = [row for row in rows if row["tsn"] is not None and not row["file"].endswith(".snap")]
        if not logged:
            return list(changes)
        epochs, tsns = (_sql_number_list(row[name] for row in logged) for name in ("epoch", "tsn"))
        columns = "replicaset_id, global_id, epoch, tsn, space, space_id, type, lsn, key, tuple"
        # A transaction is in one epoch only, so only files of these epochs are read.
        query = f"SELECT {columns} FROM opened WHERE epoch IN ({epochs}) AND tsn IN ({tsns}) ORDER BY lsn"
        by_transaction: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self.query_table("_changelog", query):
            by_transaction.setdefault(_transaction_id(row), []).append(row)
        return [
            KeyChange(
                change.row,
                change.tuple_after,
                change.is_tuple_known,
                ()
                if change.row not in logged
                else [
                    row
                    for row in by_transaction[_transaction_id(change.row)]
                    if row["lsn"] != change.row["lsn"]
                ],
            )
            for change in changes
        ]

    def _rows_of_key(
        self, space: SpaceDefinitions, values: Sequence[Value], table: str, tuple_expression: str
    ) -> list[dict[str, Any]]:
        """Return the rows of a space in `_conflicts` or `_versions` with a key, the oldest first."""
        is_space = f"space IN ({_sql_literal_list(space.tables)})"
        is_key = _key_column_condition("key", space, values)
        query = f"SELECT *, {tuple_expression} AS shown FROM opened WHERE {is_space} AND ({is_key}) ORDER BY epoch"
        return [row for row in self.query_table(table, query) if _key_has_values(row["key"], values)]

    def _winning_row(self, space: SpaceDefinitions, values: Sequence[Value]) -> dict[str, Any] | None:
        where = _key_column_condition("_key", space, values)
        query = f"SELECT _key, _tuple, _global_id, _replicaset_id, _lsn, _timestamp FROM opened WHERE {where}"
        for table in sorted(space.tables & self._versions.keys()):
            exact = exact_table(table)
            for row in self.query_table(exact if exact in self._versions else table, query):
                if _key_has_values(row["_key"], values):
                    return row
        return None


def _key_column_condition(column: str, space: SpaceDefinitions, values: Sequence[Value]) -> str:
    """Return an SQL condition for rows whose `column` is the canonical key of `values`; few other rows fulfil it."""
    patterns = [key_pattern(values, parts) for parts in space.primary_keys if len(parts) == len(values)]
    return " OR ".join(f"regexp_like(encode({column}, 'hex'), {_sql_literal(one or '')})" for one in patterns)


def _changelog_condition(values: Sequence[Value], parts: Sequence[Any]) -> str:
    """Return an SQL condition for the rows of `_changelog` that may change a key; some other rows fulfil it, too."""
    pattern = _sql_literal(key_pattern(values, parts) or "")
    if begins_with_key(parts):
        return f"regexp_like(encode(coalesce(key, tuple), 'hex'), {pattern}) OR type = 'DELETE_RANGE'"
    return f"key IS NULL OR regexp_like(encode(key, 'hex'), {pattern})"


def _sql_literal(value: str) -> str:
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


def _sql_number_list(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _transaction_id(row: Row) -> tuple[Any, ...]:
    return row["replicaset_id"], row["global_id"], row["epoch"], row["tsn"]


def _sql_literal_list(values: Iterable[str]) -> str:
    return ", ".join(map(_sql_literal, sorted(values)))


def _key_has_values(key: bytes, values: Sequence[Value]) -> bool:
    parts = decode(key)
    return len(parts) == len(values) and all(map(is_same_value, parts, values))


def _row_has_key(row: Row, space: SpaceDefinitions, values: Sequence[Value]) -> bool:
    """Return whether a row of `_changelog` has the key with `values` as its parts."""
    if row["key"] is not None:
        return _key_has_values(row["key"], values)
    if row["tuple"] is None:
        return False
    found = (one.key_values_in_tuple(row["tuple"]) for one in space.definitions_since(row))
    return any(
        parts is not None and len(parts) == len(values) and all(map(is_same_value, parts, values))
        for parts in found
    )


def _log_order_key(row: Row) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in ("replicaset_id", "epoch", "segment", "position", "row"))


def _newest_of_each_replicaset(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last row of each space and replicaset; `rows` begin with the oldest."""
    return list({(row["space"], row["replicaset_id"]): row for row in rows}.values())


def _key_changes(space: SpaceDefinitions, rows: Sequence[Row]) -> Iterator[KeyChange]:
    """Yield each row with the tuple that the key has after it; `rows` are in log order, grouped by replicaset."""
    formats = []
    for row in rows:
        definition = space.definition_at(row["epoch"], row["replicaset_id"], row["space_id"])
        server = row["server_version"]
        rules = LATEST if server is None else rules_of(server)
        formats.append(format_of((definition or space.definitions[-1].definition).space, rules))
    folds: dict[tuple[tuple[int, int | None], Any], Fold] = {}
    for index, row in enumerate(rows):
        definition = space.definition_at(row["epoch"], row["replicaset_id"], row["space_id"])
        exact_key = None if definition is None else definition.hashable_key(row["key"], row["tuple"])
        ids = row["replicaset_id"], row.get("of", row["space_id"])
        key_fold = folds.setdefault((ids, exact_key), Fold(formats))
        if row["type"] in _MANY_KEY_TYPES:
            for (own, _), fold in folds.items():
                if own == ids:
                    fold.start(None, is_unfit=row["type"] == "DELETE_RANGE")
        elif row["state"] == RowState.COMMITTED and row["type"] in ONE_KEY_TYPES:
            data = (row["tuple"], row["operations"], row["index_base"])
            kind = TYPE_FOR_ONE_KEY[row["type"]]
            key_fold.apply(RowChange(kind, *data, row["global_id"] or 0, row["lsn"] or 0, None, index))
        tuple_after = key_fold.version.tuple if key_fold.is_present and not key_fold.is_unfit else None
        yield KeyChange(row, tuple_after, not key_fold.is_unfit)
