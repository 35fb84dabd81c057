"""The definitions of a space over time, which say which rows of `_changelog` belong to it. No I/O.

`_schema` has a row for each epoch in which the definition of a space id changed. Rows that were written before the
space was renamed belong to it, too, so the history of a key includes the space's earlier names.
`reader` reads the tables.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from observe.log_rows.catalog import LoggedSpace
from schemas.errors import ConfigurationError, TupleError, UnsupportedError
from schemas.field_types import type_family
from schemas.space import KeyPart, faulty_space, space_of_rows
from schemas.states import SpaceState
from schemas.system_tuples import unpacked


class DatedDefinition(NamedTuple):
    """A definition of a space id in a replicaset; `epoch` is the first epoch in which it holds."""

    epoch: int
    replicaset_id: int
    space_id: int
    definition: LoggedSpace


def _is_of_type(part: KeyPart, value: object) -> bool:
    """Return whether a key part may have a value of JSON; a type whose values JSON does not have accepts all."""
    family = type_family(part.type)
    if family in ("unsigned", "integer", "number", "double"):
        return _is_number(value)
    if family == "string":
        return isinstance(value, str)
    return family != "boolean" or isinstance(value, bool)


def _is_number(value: object) -> bool:
    """Return whether a value is a number, or the text of one: JSON has no decimals."""
    try:
        Decimal(str(value))
    except InvalidOperation:
        return False
    return not isinstance(value, bool)


@dataclass(frozen=True)
class SpaceIdPeriod:
    """A range of epochs in which a space id of a replicaset means the requested space, under any of its names."""

    replicaset_id: int
    space_id: int
    first_epoch: int | None
    last_epoch: int | None
    """The first and the last epoch, both included; None: the range has no such limit. In the last epoch the space was
    dropped, or was renamed to a name that was not requested."""
    is_id_reused: bool
    """Whether the id meant another space before, which was dropped in the first epoch or earlier."""
    names: frozenset[str]
    """The names that the space had in these epochs."""

    def covers(self, replicaset_id: int, space_id: int | None, epoch: int) -> bool:
        """Whether a replicaset's space id means the requested space at an epoch."""
        is_own = (self.replicaset_id, self.space_id) == (replicaset_id, space_id)
        is_since = self.first_epoch is None or self.first_epoch <= epoch
        return is_own and is_since and (self.last_epoch is None or epoch <= self.last_epoch)


@dataclass(frozen=True)
class SpaceDefinitions:
    """All definitions of the requested space: in all replicasets, at all epochs, under all of its names."""

    names: frozenset[str]
    """Names that the space has or had, as in `_changelog.space`."""
    tables: frozenset[str]
    """Tables to which the rows of the space were written."""
    names_of_other_spaces: frozenset[str]
    definitions: tuple[DatedDefinition, ...]
    """The oldest first."""
    id_periods: tuple[SpaceIdPeriod, ...] = ()
    """In which epochs a space id means the space."""

    def check_key(self, name: str, values: Sequence[object]) -> None:
        """Raise ConfigurationError if a key of a space has other parts than its primary key, or other types."""
        fitting = sorted((parts for parts in self.primary_keys if len(parts) == len(values)), key=str)
        if any(all(map(_is_of_type, parts, values)) for parts in fitting):
            return
        if fitting:
            types = " or ".join(", ".join(part.type for part in parts) for parts in fitting)
            raise ConfigurationError(
                f"the key of {name} has the type {types}, which {json.dumps(list(values), default=str)} has not",
                advice="write the key as JSON: 202, '\"a\"', '[1, \"a\"]'",
            )
        counts = " or ".join(sorted({str(len(parts)) for parts in self.primary_keys}))
        raise ConfigurationError(
            f"the key of {name} has {counts} parts, not {len(values)}",
            advice="write the key as JSON: '[1, \"a\"]'",
        )

    def definition_at(self, epoch: int, replicaset_id: int, space_id: int | None) -> LoggedSpace | None:
        """Return the definition of a space id at an epoch; if it had none yet, its first later one, if any."""
        own = [
            (since, definition)
            for since, replicaset, space, definition in self.definitions
            if (replicaset, space) == (replicaset_id, space_id)
        ]
        before = [definition for since, definition in own if since <= epoch]
        return before[-1] if before else own[0][1] if own else None

    def definitions_since(self, row: Mapping[str, Any]) -> Iterator[LoggedSpace]:
        """Yield the definition of a row's space at the row's epoch, then the space's later definitions.

        `row` is a row of `_changelog`. A later definition may have another primary key, so that the row's tuple has
        another key.
        """
        replicaset_id, space_id, epoch = row["replicaset_id"], row["space_id"], row["epoch"]
        own = self.definition_at(epoch, replicaset_id, space_id)
        if own is not None:
            yield own
        id_periods = [period for period in self.id_periods if period.covers(replicaset_id, space_id, epoch)]
        for since, replicaset, space, definition in self.definitions:
            is_own = (replicaset, space) == (replicaset_id, space_id) and since > epoch
            if is_own and any(period.covers(replicaset, space, since) for period in id_periods):
                yield definition

    def includes_row(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of `_changelog` belongs to the space.

        A name that existed only within one batch is in no row of `_schema`; then the space id decides. A row that was
        written before a rename has the space's earlier name.
        """
        ids, name = (row["replicaset_id"], row["space_id"]), row["space"]
        if name in self.names or (
            ids in self.replicaset_and_space_ids and name not in self.names_of_other_spaces
        ):
            return True
        return any(name in period.names and period.covers(*ids, row["epoch"]) for period in self.id_periods)

    def is_emptied_by(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of `_changelog` with the type TRUNCATE or DROP deletes all tuples of the space."""
        epoch, is_drop = row["epoch"], row["type"] == "DROP"
        return any(
            period.covers(row["replicaset_id"], row["of"], epoch)
            and not (is_drop and period.is_id_reused and epoch == period.first_epoch)
            for period in self.id_periods
        )

    @property
    def replicaset_and_space_ids(self) -> set[tuple[int, int]]:
        """The (replicaset id, space id) of all definitions."""
        return {(replicaset, space) for _, replicaset, space, _ in self.definitions}

    @property
    def primary_keys(self) -> set[tuple[KeyPart, ...]]:
        """The primary keys of all definitions."""
        keys = (definition.space.primary_key for _, _, _, definition in self.definitions)
        return {key for key in keys if key}


def definitions_of_space(
    rows: Iterable[Mapping[str, Any]], name: str, drops: Collection[tuple[int, int, int]] = ()
) -> SpaceDefinitions:
    """Return the definitions of the space that has or had a name.

    Args:
        drops: (epoch, replicaset id, space id) of the rows that dropped spaces. If the name of a space id changes and
            there is no drop, the space was renamed.
    """
    all_rows = sorted(rows, key=lambda row: int(row["epoch"]))
    tables = {row["table_name"] for row in all_rows if name in (row["name"], row["table_name"])} - {None}
    direct = [row for row in all_rows if row["name"] == name or row["table_name"] in tables]
    names = frozenset(row["name"] for row in direct)
    id_periods = tuple(_id_periods(all_rows, names, drops))
    of_space = [
        row
        for row in all_rows
        if row["name"] in names
        or any(
            row["name"] in period.names and period.covers(row["replicaset_id"], row["space_id"], row["epoch"])
            for period in id_periods
        )
    ]
    definitions = tuple(
        DatedDefinition(
            int(row["epoch"]), int(row["replicaset_id"]), int(row["space_id"]), _definition_in_row(row)
        )
        for row in of_space
        if row["space_tuple"] is not None
    )
    names_of_other_spaces = frozenset(row["name"] for row in all_rows) - names
    return SpaceDefinitions(names, frozenset(tables), names_of_other_spaces, definitions, id_periods)


def _id_periods(
    rows: Sequence[Mapping[str, Any]], names: Collection[str], drops: Collection[tuple[int, int, int]]
) -> Iterator[SpaceIdPeriod]:
    """Yield the periods in which a space id means a space with one of some names."""
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
            indices = [index for index, row in enumerate(lineage) if row["name"] in names]
            if not indices:
                continue
            named, later = lineage[: indices[-1] + 1], lineage[indices[-1] + 1 :]
            if named[-1]["state"] == SpaceState.DROPPED:
                later = named[-1:]
            elif not later and number + 1 < len(own):
                later = own[number + 1][:1]
            first, last = (named[0]["epoch"] if number else None), (later[0]["epoch"] if later else None)
            yield SpaceIdPeriod(*ids, first, last, bool(number), frozenset(row["name"] for row in named))


def _definition_in_row(row: Mapping[str, Any]) -> LoggedSpace:
    """Return the definition in a row of `_schema`; a faulty definition has only the space's id and name."""
    fields, indexes = unpacked(row["space_tuple"]), dict(row["index_tuples"] or ())
    try:
        return LoggedSpace(space_of_rows(fields, indexes))
    except (TupleError, UnsupportedError) as error:
        return LoggedSpace(faulty_space(fields, error.reason))
