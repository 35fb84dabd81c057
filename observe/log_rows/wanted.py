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
    """Conditions on rows; a condition that is not set always holds.

    Parameters
    ----------
    spaces : collection of str
        Names or ids.
    key : sequence, optional
        The primary key's values.
    types : collection of str
        Such as INSERT.
    origins : collection of str
        Replica ids or uuids.
    first_lsn, last_lsn : int, optional
        Both inclusive.
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

    def takes(self, found: LoggedRow, catalog: LogCatalog) -> bool:
        """Return whether a row is wanted."""
        row = found.row
        return (
            (not self.types or row.type in self.types)
            and _within(row.lsn, self.first_lsn, self.last_lsn)
            and self._is_of_time(row.timestamp)
            and (not self.spaces or self._is_of_spaces(row.space_id, catalog))
            and (not self.origins or self._is_of_origins(row.replica_id, catalog))
            and (self.key is None or self._has_key(found))
        )

    def _is_of_time(self, moment: int | None) -> bool:
        if self.since is None and self.until is None:
            return True
        since, until = self.since, self.until
        return moment is not None and (since is None or moment >= since) and (until is None or moment < until)

    def _is_of_spaces(self, space_id: int | None, catalog: LogCatalog) -> bool:
        return any(number == space_id for name in self.spaces for number in catalog.ids_of(name))

    def _is_of_origins(self, replica_id: int | None, catalog: LogCatalog) -> bool:
        own = 0 if replica_id is None else replica_id
        return str(own) in self.origins or catalog.instances.get(own, "").lower() in self.origins

    def _has_key(self, found: LoggedRow) -> bool:
        values, asked = values_of(found), self.key or ()
        return values is not None and len(values) == len(asked) and all(map(is_same, values, asked))


def values_of(found: LoggedRow) -> list[Any] | None:
    """Return the key of a row; if the space is not known, only for an UPDATE or DELETE."""
    if found.definition is not None:
        return found.definition.values_of(found.row.key, found.row.tuple)
    return None if found.row.key is None else list(decode(found.row.key))


def is_same(part: Any, asked: Any) -> bool:
    """Return whether a part of a key equals the requested one; text matches values without a JSON type."""
    if isinstance(asked, str) and not isinstance(part, str | bytes):
        return str(part) == asked
    return bool(comparable(part) == comparable(asked))


def _within(lsn: int | None, first: int | None, last: int | None) -> bool:
    if first is None and last is None:
        return True
    return lsn is not None and (first is None or lsn >= first) and (last is None or lsn <= last)
