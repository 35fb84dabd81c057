"""The part of the configuration that says which spaces become tables, under which names, and what readers see of them.

Never here: the key of masks; a variable of the environment or a file is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from config.values import Location, Part, later, mistake
from schemas.names import table_name
from sources.iproto.address import Password

Kind = Literal["drop", "hash"]
"""What becomes of a masked field: it has no column, or one that holds a keyed hash of it."""

Strings = Literal["binary"]
"""What the strings of a field become: bytes, whether they are UTF-8 or not."""

Misfits = Literal["quarantine"]
"""What becomes of a row with a value that its column cannot hold: it is set aside as a whole."""


def _of_fields(chosen: object) -> object:
    """Return what is chosen for a space as what is chosen for all of its fields."""
    return {"*": chosen} if isinstance(chosen, str) else chosen


StringFields = Annotated[
    dict[str, Strings],
    BeforeValidator(_of_fields),
    WithJsonSchema(
        {"anyOf": [{"const": "binary"}, {"type": "object", "additionalProperties": {"const": "binary"}}]}
    ),
]
"""`binary` for all fields of a space, or per pattern of fields."""


class Spaces(Part):
    """Which spaces become tables, under which names.

    Parameters
    ----------
    include, exclude : tuple of str
        Patterns of names, `*` and `?` as in a shell; capitals matter. A space that both match is left out.
    rename : dict
        From a space's name to the name of its table.
    per_replicaset : tuple of str
        Patterns of names of spaces that are not merged: each replicaset has a table of its own, `<table>__r<id>`.
    strings : dict
        From a pattern of spaces' names to `binary`, or to {pattern of fields: `binary`}: the columns of fields of type
        string are binary, and hold every string as it is.
    misfits : dict
        From a pattern of spaces' names to `quarantine`: a row with a value that its column cannot hold is not in the
        table. Otherwise the row is there, the column is null, and `_misfits` names it.
    local : bool
        False: rows of local spaces, which belong to one instance, are left out.
    masks : dict
        From a pattern of spaces' names to {field: `drop` or `hash`}. Where patterns name one field, `drop` holds.
    mask_key_env, mask_key_file : str or None
        Where the key of `hash` is found: a variable of the environment, or a file's first line.

    """

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)
    per_replicaset: tuple[str, ...] = ()
    strings: dict[str, StringFields] = Field(default_factory=dict)
    misfits: dict[str, Misfits] = Field(default_factory=dict)
    local: Annotated[Literal[False], later(True)] = False
    masks: dict[str, dict[str, Kind]] = Field(default_factory=dict)
    mask_key_env: str | None = None
    mask_key_file: Location | None = None

    @model_validator(mode="after")
    def _targets(self) -> Spaces:
        taken: dict[str, str] = {}
        for space, table in self.rename.items():
            if not table or table_name(table) != table:
                raise mistake(f"{table!r} is not a table's name; allowed: a-z, 0-9, _", "rename", space)
            if table in taken:
                raise mistake(f"{table!r} is the name of {taken[table]!r} already", "rename", space)
            taken[table] = space
        return self

    @model_validator(mode="after")
    def _keyed(self) -> Spaces:
        given = (self.mask_key_env is not None) + (self.mask_key_file is not None)
        hashes = any("hash" in kinds.values() for kinds in self.masks.values())
        if hashes and given != 1:
            raise mistake("hash takes a key; allowed: one of mask_key_env, mask_key_file", "masks")
        return self

    def masks_of(self, space_name: str) -> dict[str, Kind]:
        """Return the fields of a space that are masked, whether it has them or not."""
        found: dict[str, Kind] = {}
        for pattern, kinds in self.masks.items():
            if fnmatchcase(space_name, pattern):
                found |= {f: kind for f, kind in kinds.items() if found.get(f) != "drop"}
        return found

    def binary_fields(self, space_name: str, fields: Iterable[str]) -> frozenset[str]:
        """Return those fields of a space whose strings are bytes in its table."""
        chosen = [
            field for space, own in self.strings.items() if fnmatchcase(space_name, space) for field in own
        ]
        return frozenset(name for name in fields if _matches(name, tuple(chosen)))

    def sets_misfits_aside(self, space_name: str) -> bool:
        """Whether rows with a value that its column cannot hold are left out of the space's table."""
        return _matches(space_name, tuple(self.misfits))

    def mask_key(self) -> Password:
        """Return the environment variable or file that holds the key of `hash`."""
        return Password(self.mask_key_env, self.mask_key_file)

    def wants(self, space_name: str) -> bool:
        """Whether a space becomes a table."""
        return _matches(space_name, self.include) and not _matches(space_name, self.exclude)

    def table(self, space_name: str, local_to: int | None = None, replicaset: int | None = None) -> str:
        """Return the name of a space's table: as renamed, or as `schemas.names` escapes it.

        Parameters
        ----------
        local_to : int, optional
            Global id of the instance whose local space it is.
        replicaset : int, optional
            Id of the replicaset; asked for where the space is not merged.

        """
        alone = replicaset if _matches(space_name, self.per_replicaset) else None
        return table_name(self.rename.get(space_name, space_name), local_to, alone)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
