"""The definitions of a space over time: which rows of `_changelog` are its own, under which names and ids. Pure.

`_schema` has a row for an epoch in which a space id changed. A space that was renamed brings its rows with it, so its
earlier names are of the same story. Not here: reading tables (`reader`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from observe.log_rows.catalog import LoggedSpace
from schemas.errors import TupleError, UnsupportedError
from schemas.space import KeyPart, faulty_space, space_of
from schemas.states import SpaceState
from schemas.system_tuples import unpacked


@dataclass(frozen=True)
class SpaceSpan:
    """The epochs in which a space id of a replicaset is the space, or what was renamed to it later.

    Parameters
    ----------
    replicaset_id, space_id : int
    first, last : int or None
        None: from the beginning, to the end. At `last` it was dropped, or renamed to something else.
    is_again : bool
        Whether another space had the id before, which was dropped at `first` or before.
    names : frozenset of str
        The names that it had.

    """

    replicaset_id: int
    space_id: int
    first: int | None
    last: int | None
    is_again: bool
    names: frozenset[str]

    def covers(self, replicaset_id: int, space_id: int | None, epoch: int) -> bool:
        """Whether a replicaset's space id is the space at an epoch."""
        is_own = (self.replicaset_id, self.space_id) == (replicaset_id, space_id)
        is_since = self.first is None or self.first <= epoch
        return is_own and is_since and (self.last is None or epoch <= self.last)


@dataclass(frozen=True)
class SpaceDefinitions:
    """All definitions of the spaces that a name means, in all replicasets and epochs.

    Parameters
    ----------
    names : frozenset of str
        Names of the space over time, as in `_changelog`.
    tables : frozenset of str
        Tables to which the rows of the space were written.
    others : frozenset of str
        Names of all other spaces.
    versions : tuple
        (epoch, replicaset id, space id, definition), the oldest first.
    spans : tuple of SpaceSpan

    """

    names: frozenset[str]
    tables: frozenset[str]
    others: frozenset[str]
    versions: tuple[tuple[int, int, int, LoggedSpace], ...]
    spans: tuple[SpaceSpan, ...] = ()

    def definition_at(self, epoch: int, replicaset_id: int, space_id: int | None) -> LoggedSpace | None:
        """Return the definition of a replicaset's space id at an epoch, or else its first one; None without any."""
        definitions = [
            (since, definition)
            for since, replicaset, space, definition in self.versions
            if (replicaset, space) == (replicaset_id, space_id)
        ]
        before = [definition for since, definition in definitions if since <= epoch]
        return before[-1] if before else definitions[0][1] if definitions else None

    def definitions_from(self, row: Mapping[str, Any]) -> Iterator[LoggedSpace]:
        """Yield the definition of a row's space, and later ones: by then its tuple may have another key."""
        replicaset_id, space_id, epoch = row["replicaset_id"], row["space_id"], row["epoch"]
        own = self.definition_at(epoch, replicaset_id, space_id)
        if own is not None:
            yield own
        spans = [span for span in self.spans if span.covers(replicaset_id, space_id, epoch)]
        for since, replicaset, space, definition in self.versions:
            is_own = (replicaset, space) == (replicaset_id, space_id) and since > epoch
            if is_own and any(span.covers(replicaset, space, since) for span in spans):
                yield definition

    def has(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of `_changelog` belongs to the space.

        A name that existed only within one batch is in no row of `_schema`; then the space id decides. A row that was
        written before the space got its name has an earlier one.
        """
        ids, name = (row["replicaset_id"], row["space_id"]), row["space"]
        if name in self.names or (ids in self.ids and name not in self.others):
            return True
        return any(name in span.names and span.covers(*ids, row["epoch"]) for span in self.spans)

    def ends(self, row: Mapping[str, Any]) -> bool:
        """Return whether a TRUNCATE or DROP of `_changelog` is one of the space."""
        epoch, is_drop = row["epoch"], row["type"] == "DROP"
        return any(
            span.covers(row["replicaset_id"], row["of"], epoch)
            and not (is_drop and span.is_again and epoch == span.first)
            for span in self.spans
        )

    @property
    def ids(self) -> set[tuple[int, int]]:
        """The (replicaset id, space id) of all definitions."""
        return {(replicaset, space) for _, replicaset, space, _ in self.versions}

    @property
    def keys(self) -> set[tuple[KeyPart, ...]]:
        """The primary keys of all definitions."""
        primary_keys = (definition.space.primary_key for _, _, _, definition in self.versions)
        return {key for key in primary_keys if key}


def definitions_of(
    rows: Iterable[Mapping[str, Any]], name: str, drops: Collection[tuple[int, int, int]] = ()
) -> SpaceDefinitions:
    """Return the definitions of the space with a name.

    Parameters
    ----------
    rows : iterable of mapping
        Rows of `_schema`.
    name : str
        Name of the space or of its table.
    drops : collection of (int, int, int)
        (epoch, replicaset id, space id) of the rows that dropped spaces: a space whose name changes without one was
        renamed.

    """
    all_rows = sorted(rows, key=lambda row: int(row["epoch"]))
    tables = {row["table_name"] for row in all_rows if name in (row["name"], row["table_name"])} - {None}
    direct = [row for row in all_rows if row["name"] == name or row["table_name"] in tables]
    names = frozenset(row["name"] for row in direct)
    spans = tuple(_spans(all_rows, names, drops))
    of_space = [
        row
        for row in all_rows
        if row["name"] in names
        or any(
            row["name"] in span.names and span.covers(row["replicaset_id"], row["space_id"], row["epoch"])
            for span in spans
        )
    ]
    versions = tuple(
        (int(row["epoch"]), int(row["replicaset_id"]), int(row["space_id"]), _definition(row))
        for row in of_space
        if row["space_tuple"] is not None
    )
    others = frozenset(row["name"] for row in all_rows) - names
    return SpaceDefinitions(names, frozenset(tables), others, versions, spans)


def _spans(
    rows: Sequence[Mapping[str, Any]], names: Collection[str], drops: Collection[tuple[int, int, int]]
) -> Iterator[SpaceSpan]:
    """Yield the spans of the space with some names; `rows` are all of `_schema`, the oldest first."""
    lineages: dict[tuple[int, int], list[list[Mapping[str, Any]]]] = {}
    for row in rows:
        ids = int(row["replicaset_id"]), int(row["space_id"])
        own = lineages.setdefault(ids, [])
        is_there = row["state"] != SpaceState.DROPPED
        if (
            not own
            or own[-1][-1]["state"] == SpaceState.DROPPED
            or (is_there and (row["epoch"], *ids) in drops)
        ):
            own.append([])
        own[-1].append(row)
    for ids, own in lineages.items():
        for number, lineage in enumerate(own):
            places = [place for place, row in enumerate(lineage) if row["name"] in names]
            if not places:
                continue
            held, later = lineage[: places[-1] + 1], lineage[places[-1] + 1 :]
            if held[-1]["state"] == SpaceState.DROPPED:
                later = held[-1:]
            elif not later and number + 1 < len(own):
                later = own[number + 1][:1]
            first, last = (held[0]["epoch"] if number else None), (later[0]["epoch"] if later else None)
            yield SpaceSpan(*ids, first, last, bool(number), frozenset(row["name"] for row in held))


def _definition(row: Mapping[str, Any]) -> LoggedSpace:
    fields, indexes = unpacked(row["space_tuple"]), dict(row["index_tuples"] or ())
    try:
        return LoggedSpace(space_of(fields, unpacked(indexes[0]) if 0 in indexes else None))
    except (TupleError, UnsupportedError) as error:
        return LoggedSpace(faulty_space(fields, error.reason))
