"""A space's definition as the rows of `_space` and `_index` give it: fields, primary key, engine, options.

Plain frozen data, made from decoded `_space`/`_index` tuples by `space_of`; picklable, so that it travels to
Spark's workers. Not here: Spark types of the fields (`schemas.types`), names of tables (`schemas.names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """One field of a space's format.

    Parameters
    ----------
    name : str
        As in the format.
    type : str
        Tarantool's type, lower case: any, unsigned, string, number, double, integer, boolean, varbinary,
        scalar, decimal, uuid, datetime, interval, array, map. `*` and `str`/`num` of old formats are
        normalised to any, string, unsigned.
    is_nullable : bool
        Whether null, or the field's absence at the end of the tuple, is allowed.

    """

    name: str
    type: str
    is_nullable: bool = False


@dataclass(frozen=True)
class KeyPart:
    """One part of an index.

    Parameters
    ----------
    field : int
        0-based field number.
    type : str
        Normalised as in `Field.type`; a part's type may be narrower than its field's.
    path : str
        JSON path inside the field, as Tarantool writes it (`.city`, `[1].x`); empty for the field itself.
    collation : int or None
        Id in `_collation`; None (or 3, `none`/`binary` by version) compares bytes.
    is_nullable : bool
        Never true for a primary key.
    is_descending : bool
        Whether the index orders the part from its greatest value to its least (`sort_order`, from 3.x on).

    """

    field: int
    type: str
    path: str = ""
    collation: int | None = None
    is_nullable: bool = False
    is_descending: bool = False


@dataclass(frozen=True)
class Space:
    """A space of one replicaset at one moment.

    Parameters
    ----------
    id, owner : int
        As in `_space`.
    name, engine : str
        As in `_space`; engine is memtx, vinyl, or another one's name.
    fields : tuple of Field
        The format; empty where the space has none.
    primary_key : tuple of KeyPart
        Empty until the space has an index 0.
    is_local, is_temporary, is_sync, is_view : bool
        From the options of `_space` (`group_id` 1, `temporary` or `type`, `is_sync`, `view`).

    """

    id: int
    owner: int
    name: str
    engine: str
    fields: tuple[Field, ...] = ()
    primary_key: tuple[KeyPart, ...] = ()
    is_local: bool = False
    is_temporary: bool = False
    is_sync: bool = False
    is_view: bool = False


_TYPE_ALIASES = {"*": "any", "str": "string", "num": "unsigned", "int": "integer", "bool": "boolean"}
_TEMPORARY_TYPES = ("temporary", "data-temporary")


def field_type(name: str) -> str:
    """Return Tarantool's canonical name of a field type (`field_type_strs` and its aliases)."""
    lower = name.lower()
    return _TYPE_ALIASES.get(lower, lower)


def field_of(position: int, definition: Mapping[str, Any] | Sequence[Any]) -> Field:
    """Return one field of a format.

    Parameters
    ----------
    position : int
        0-based number of the field, used where it has no name.
    definition : mapping or sequence
        `{name=, type=, is_nullable=}`, or the short form `[name, type]`.

    """
    if isinstance(definition, Mapping):
        name = definition.get("name", f"field_{position + 1}")
        kind = definition.get("type", "any")
        nullable = definition.get("is_nullable", definition.get("nullable_action") == "none")
        return Field(str(name), field_type(str(kind)), bool(nullable))
    items = list(definition)
    return Field(str(items[0]), field_type(str(items[1])) if len(items) > 1 else "any")


def part_of(definition: Mapping[str, Any] | Sequence[Any]) -> KeyPart:
    """Return one part of an index: `{field=, type=, path=, collation=, sort_order=}`, or `[field, type]`."""
    if isinstance(definition, Mapping):
        return KeyPart(
            int(definition["field"]),
            field_type(str(definition.get("type", "any"))),
            str(definition.get("path", "")),
            definition.get("collation"),
            bool(definition.get("is_nullable", False)),
            definition.get("sort_order") == "desc",
        )
    return KeyPart(int(definition[0]), field_type(str(definition[1])))


def space_of(space: Sequence[Any], primary: Sequence[Any] | None) -> Space:
    """Return a space from its `_space` tuple and the `_index` tuple of its index 0.

    Parameters
    ----------
    space : sequence
        Decoded `_space` tuple: id, owner, name, engine, field count, options, format.
    primary : sequence or None
        Decoded `_index` tuple: space id, index id, name, type, options, parts; None without an index 0.

    """
    options: Mapping[str, Any] = space[5] if len(space) > 5 and isinstance(space[5], Mapping) else {}
    fields = space[6] if len(space) > 6 else []
    parts = primary[5] if primary is not None else []
    return Space(
        id=int(space[0]),
        owner=int(space[1]),
        name=str(space[2]),
        engine=str(space[3]),
        fields=tuple(field_of(i, f) for i, f in enumerate(fields)),
        primary_key=tuple(part_of(part) for part in parts),
        is_local=options.get("group_id") == 1,
        is_temporary=bool(options.get("temporary")) or options.get("type") in _TEMPORARY_TYPES,
        is_sync=bool(options.get("is_sync")),
        is_view=bool(options.get("view")),
    )


KeyParts = tuple[tuple[int, str, int | None], ...]


def key_parts(parts: Sequence[KeyPart]) -> KeyParts:
    """Return what a canonical key is made of: field, path and collation of each part."""
    return tuple((part.field, part.path, part.collation) for part in parts)
