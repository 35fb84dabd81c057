"""Selects rows of a log by space, key, type, origin, lsn and time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from observe.log_rows.catalog import LogCatalog, comparable
from observe.log_rows.read import LoggedRow
from udfs.before_replace.row import decode


@dataclass(frozen=True)
class RowFilter:
    """Conditions on rows; a row must fulfil all of them. Conditions that are not set are always fulfilled.

    Parameters
    ----------
    spaces : collection of str
        Names or ids of spaces.
    key : sequence, optional
        The values of the primary key.
    types : collection of str
        Types of requests, such as INSERT.
    origins : collection of str
        Replica ids or uuids of instances.
    first_lsn, last_lsn : int, optional
        Range of lsns, both inclusive.
    since, until : int, optional
        Microseconds since 1970; `until` is exclusive.

    """

    spaces: Collection[str] = ()
    key: Sequence[Any] | None = None
    types: Collection[str] = ()
    origins: Collection[str] = ()
    first_lsn: int | None = None
    last_lsn: int | None = None
    since: int | None = None
    until: int | None = None

    def matches(self, logged: LoggedRow, catalog: LogCatalog) -> bool:
        """Return whether a row fulfils all conditions; `catalog` is in the state after the row."""
        row = logged.row
        return (
            (not self.types or row.type in self.types)
            and _within(row.lsn, self.first_lsn, self.last_lsn)
            and self._is_in_time_range(row.timestamp)
            and (not self.spaces or self._is_of_spaces(row.space_id, catalog))
            and (not self.origins or self._is_of_origins(row.replica_id, catalog))
            and (self.key is None or self._has_key(logged))
        )

    def _is_in_time_range(self, moment: int | None) -> bool:
        if self.since is None and self.until is None:
            return True
        since, until = self.since, self.until
        return moment is not None and (since is None or moment >= since) and (until is None or moment < until)

    def _is_of_spaces(self, space_id: int | None, catalog: LogCatalog) -> bool:
        return any(number == space_id for name in self.spaces for number in catalog.ids_of(name))

    def _is_of_origins(self, replica_id: int | None, catalog: LogCatalog) -> bool:
        id_ = 0 if replica_id is None else replica_id
        return str(id_) in self.origins or catalog.instances.get(id_, "").lower() in self.origins

    def _has_key(self, logged: LoggedRow) -> bool:
        values, key = key_values(logged), self.key or ()
        return values is not None and len(values) == len(key) and all(map(is_same_value, values, key))


def key_values(logged: LoggedRow) -> list[Any] | None:
    """Return the values of a row's key; None for an INSERT, REPLACE or UPSERT of an unknown space."""
    if logged.definition is not None:
        return logged.definition.values_of(logged.row.key, logged.row.tuple)
    return None if logged.row.key is None else list(decode(logged.row.key))


def is_same_value(part: Any, requested: Any) -> bool:
    """Return whether a part of a key equals the requested value; text also matches values without a JSON type."""
    if isinstance(requested, str) and not isinstance(part, str | bytes):
        return str(part) == requested
    return bool(comparable(part) == comparable(requested))


def _within(lsn: int | None, first: int | None, last: int | None) -> bool:
    if first is None and last is None:
        return True
    return lsn is not None and (first is None or lsn >= first) and (last is None or lsn <= last)
