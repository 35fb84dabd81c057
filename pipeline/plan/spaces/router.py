"""Chooses the table of each space, or refuses the space, by the configuration and the space's definition.

A refused space has no table, or its table is not updated any more. Its rows still go to `_changelog`, and
`_schema.state` has the reason.

A table has the rows of one space of each replicaset, and the definitions of all of these must fit into it. A space
whose definition contradicts the others is refused from the row of that definition on; the others stay as they are. The
logs of two replicasets have no common order, so the definition that is read first counts.

Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from config.spaces import Spaces
from pipeline.plan.spaces.masks import check_still_masked
from pipeline.plan.spaces.meanings import Refusal
from schemas.errors import UnsupportedError
from schemas.space import KeyParts, Space

Router = Callable[[int, Space, Sequence[Space], bool], str | Refusal | None]
"""Called with (replicaset id, definition, earlier definitions, whether the space's rows are missing from a snapshot);
returns the table's name, a refusal, or None for a space that the configuration excludes."""

SpaceCheck = Callable[[Space], None]
"""Raises UnsupportedError for a space whose types or primary key are not supported."""

TableCheck = Callable[[str, Mapping[int, Space], Mapping[int, frozenset[KeyParts]]], None]
"""Called with a table's name, each replicaset's definition of its rows, and the primary keys that each has had (both by
replicaset id, as for `pipeline.plan.spaces.tables.table_plan`). Raises UnsupportedError if they contradict each
other."""


def build_router(spaces: Spaces, check: SpaceCheck) -> Router:
    """Return the function that chooses the table of each space."""

    def route(
        replicaset_id: int, space: Space, earlier: Sequence[Space], unread: bool
    ) -> str | Refusal | None:
        if not spaces.becomes_table(space.name):
            return None
        if space.fault is not None:
            return Refusal(replicaset_id, space.id, space.name, space.fault)
        if not can_have_table(space):
            return None
        if unread:
            return Refusal(replicaset_id, space.id, space.name, _reason_for_missing_rows(space))
        try:
            check(space)
            if spaces.masks:
                check_still_masked(earlier, space, spaces.masks_of)
        except UnsupportedError as error:
            return Refusal(replicaset_id, space.id, space.name, str(error))
        return spaces.table(space.name, replicaset_id=replicaset_id)

    return route


def _reason_for_missing_rows(space: Space) -> str:
    """Return why a space is refused that is in a snapshot whose files may not have all of the space's rows."""
    if space.engine == "vinyl":
        return (
            "its rows from before the snapshot are in .run files, and the snapshot's directory has no .vylog that "
            "lists them, or a range was split and shares them; follow it from its first log (start: logs)"
        )
    return (
        f"its rows from before the snapshot may be missing: its engine is {space.engine}, and this "
        "version does not know whether a snapshot contains them; follow it from its first log (start: logs)"
    )


def can_have_table(space: Space) -> bool:
    """Return whether a space can have a table: it has a primary key, and is not local, temporary or a view."""
    return bool(space.primary_key) and not (space.is_local or space.is_temporary or space.is_view)


class TableOwner(NamedTuple):
    """A space whose rows are in a table."""

    space_id: int
    definition: Space | None = None
    """The definition of the rows; None if it is not known."""
    primary_keys: frozenset[KeyParts] | None = None
    """All primary keys that the space has had; None for a refused space, whose keys need not agree with the others'."""


class TableOwners:
    """The spaces whose rows are in each table, at one position of a batch."""

    def __init__(self, check: TableCheck | None = None) -> None:
        self._check = check
        self._owners: dict[str, dict[int, TableOwner]] = {}
        self._equal_definitions: dict[Space, Space] = {}
        self._shared_definitions: dict[int, tuple[Space, Space]] = {}

    def claim(self, replicaset_id: int, table: str, owner: TableOwner) -> None:
        """Record that a space of a replicaset has its rows in a table."""
        self._owners.setdefault(table, {})[replicaset_id] = owner

    def reserve(self, replicaset_id: int, table: str, space_id: int) -> None:
        """Record that a replicaset's space has rows in a table, unless an owner of these rows is already recorded."""
        self._owners.setdefault(table, {}).setdefault(replicaset_id, TableOwner(space_id))

    def freeze(self, replicaset_id: int, table: str) -> None:
        """Record that a replicaset's rows in a table are not updated any more."""
        owners = self._owners[table]
        owners[replicaset_id] = owners[replicaset_id]._replace(primary_keys=None)

    def release(self, replicaset_id: int, table: str) -> None:
        """Record that a replicaset no longer has rows in a table."""
        self._owners.get(table, {}).pop(replicaset_id, None)

    def is_taken(self, replicaset_id: int, table: str, space_id: int) -> bool:
        """Return whether another space of a replicaset has its rows in a table."""
        owner = self._owners.get(table, {}).get(replicaset_id)
        return owner is not None and owner.space_id != space_id

    def contradiction(self, replicaset_id: int, table: str, owner: TableOwner) -> str | None:
        """Return why a space does not fit into a table with the other replicasets' rows; None if it fits."""
        owners = {**self._owners.get(table, {}), replicaset_id: owner}
        # Shards have the same definition: the check, which takes long, sees it once.
        distinct: dict[tuple[int, frozenset[KeyParts] | None], int] = {}
        for i, one in sorted(owners.items()):
            distinct.setdefault((id(self._shared(one.definition)), one.primary_keys), i)
        chosen = {i: owners[i] for i in distinct.values()}
        definitions = {i: one.definition for i, one in chosen.items() if one.definition is not None}
        keys = {i: one.primary_keys for i, one in chosen.items() if one.primary_keys is not None}
        try:
            if self._check is not None:
                self._check(table, definitions, keys)
        except UnsupportedError as error:
            return str(error)
        return None

    def _shared(self, definition: Space | None) -> Space | None:
        """Return the same object for all equal definitions; each is hashed once, which takes as long as its fields."""
        if definition is None:
            return None
        known = self._shared_definitions.get(id(definition))
        if known is None:
            shared = self._equal_definitions.setdefault(definition, definition)
            # The definition is kept, so that no other object gets its id.
            known = self._shared_definitions[id(definition)] = definition, shared
        return known[1]
