"""What a space was in each replicaset, as `_schema` says: for reading rows of `_changelog`."""

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
    """The definitions that one name means.

    Parameters
    ----------
    names : frozenset of str
        The space's names over time, as `_changelog` has them.
    tables : frozenset of str
        The tables that its rows went to.
    others : frozenset of str
        Names of all other spaces.
    versions : tuple
        (epoch, replicaset id, space id, Definition), the oldest first.

    """

    names: frozenset[str]
    tables: frozenset[str]
    others: frozenset[str]
    versions: tuple[tuple[int, int, int, LoggedSpace], ...]

    def of(self, epoch: int, replicaset_id: int, space_id: int | None) -> LoggedSpace | None:
        """Return what a space id meant in a replicaset at an epoch; of several within it, the last one."""
        found = [
            (since, one)
            for since, replicaset, space, one in self.versions
            if (replicaset, space) == (replicaset_id, space_id)
        ]
        before = [one for since, one in found if since <= epoch]
        return before[-1] if before else found[0][1] if found else None

    def has(self, replicaset_id: int, space_id: int | None, name: str | None) -> bool:
        """Return whether a row of `_changelog` is of the space, by its name then.

        A name that it had within one batch only is in no row of `_schema`: then the id decides.
        """
        return name in self.names or ((replicaset_id, space_id) in self.ids and name not in self.others)

    @property
    def ids(self) -> set[tuple[int, int]]:
        """Replicaset and space ids that the name had."""
        return {(replicaset, space) for _, replicaset, space, _ in self.versions}

    @property
    def keys(self) -> set[tuple[KeyPart, ...]]:
        """The primary keys that the space had."""
        return {one.space.primary_key for _, _, _, one in self.versions if one.space.primary_key}


def named(rows: Iterable[Mapping[str, Any]], name: str) -> Named:
    """Return what a name means: a space's, or that of its table.

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
