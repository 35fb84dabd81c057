"""Definitions of a space in each replicaset, from `_schema`, for reading rows of `_changelog`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from observe.log_rows.catalog import LoggedSpace
from schemas.errors import TupleError, UnsupportedError
from schemas.space import KeyPart, faulty_space, space_of
from schemas.system_tuples import unpacked


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
