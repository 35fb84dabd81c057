"""A space's definition from its rows of `_space` and `_index`: fields, primary key, engine, options.

Plain frozen data, made from decoded `_space`/`_index` tuples by `space_of`; picklable for Spark's workers. A definition
that no server writes raises TupleError; `faulty_space` makes a `Space` with a `fault` for callers that need one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from schemas.errors import TupleError
from schemas.system_tuples import field_at, fields_of, integer_of, shown, text_of


@dataclass(frozen=True)
class Field:
    """One field of a space's format."""

    name: str
    """Name in the format."""
    type: str
    """Tarantool's type, lower case: any, unsigned, string, number, double, integer, boolean, varbinary, scalar,
    decimal, uuid, datetime, interval, array, map. `*` and `str`/`num` of old formats are normalised to any, string,
    unsigned.
    """
    is_nullable: bool = False
    """Whether the field may be null, or absent at the end of the tuple."""
    has_default: bool = False
    """Whether the field has a default (3.x): then an operation may set it to null."""
    scale: int = 0
    """Of a decimal with a size (3.9): how many digits after the point it may have."""


@dataclass(frozen=True)
class KeyPart:
    """One part of an index."""

    field: int
    """0-based field number."""
    type: str
    """Type, normalised as in `Field.type`; may be narrower than the field's."""
    path: str = ""
    """JSON path inside the field, as Tarantool writes it (`.city`, `[1].x`); empty for the field itself."""
    collation: int | None = None
    """Id in `_collation`; None and the ids of `BYTE_COLLATIONS` compare bytes."""
    is_nullable: bool = False
    """Never true for a primary key."""
    is_descending: bool = False
    """Whether the order of the part is descending (`sort_order`, since 3.x)."""


@dataclass(frozen=True)
class Space:
    """A space of one replicaset at one moment."""

    id: int
    owner: int
    """As in `_space`."""
    name: str
    engine: str
    """As in `_space`; engine is memtx, vinyl, or another one's name."""
    fields: tuple[Field, ...] = ()
    """The format; empty if the space has none."""
    primary_key: tuple[KeyPart, ...] = ()
    """Empty until the space has an index 0."""
    is_hashed: bool = False
    """Whether index 0 is of type HASH: it takes equal decimals of different digits, or an equal integer, for two keys.
    """
    is_local: bool = False
    is_temporary: bool = False
    is_sync: bool = False
    is_view: bool = False
    """From the options of `_space` (`group_id` 1, `temporary` or `type`, `is_sync`, `view`)."""
    fault: str | None = None
    """Why the definition cannot be parsed; if set, only id and name are valid."""
    secondary_parts: tuple[KeyPart, ...] = ()
    """Parts of secondary indexes, by index id, whose field is a floating-point number in the format or in an index.
    They decide how the server encodes the result of an addition. Only field, type and path are set.
    """
    field_count: int = 0
    """The exact number of fields of each tuple; 0 for any."""
    is_constrained: bool = False
    """Whether tuples, or fields of them, have constraints or foreign keys."""


FIELDS_MAX = 10_000
"""Greatest number of fields of a format: tables with more columns can be neither written nor read."""

PARTS_MAX = 255
"""Greatest number of parts of an index (`BOX_INDEX_PART_MAX`)."""

INDEXES_MAX = 128
"""Greatest number of indexes of a space (`BOX_INDEX_MAX`)."""

BYTE_COLLATIONS = (None, 0, 3)
"""Ids in `_collation` that compare bytes: no collation, `none`, `binary` (`src/box/bootstrap.snap`)."""

FLOATING_POINT_TYPES = ("double", "float32", "float64")

_INDEX_ROW = "a row of _index"
_OWNER_ID_MAX = 2**32 - 1
_SHOWN_NAME_MAX = 255
"""Greatest length in characters of the name of a space with an invalid definition; the rest is cut off."""

_TYPE_ALIASES = {"*": "any", "str": "string", "num": "unsigned", "int": "integer", "bool": "boolean"}
_DEFAULTS = {"default", "default_func"}
_CONSTRAINTS = {"constraint", "foreign_key"}
"""Keys of the options of a space, and of a field, that restrict tuples by more than types."""

_TEMPORARY_TYPES = ("temporary", "data-temporary")


def field_type(name: str) -> str:
    """Return Tarantool's canonical name of a field type (`field_type_strs` and its aliases)."""
    lower = name.lower()
    return _TYPE_ALIASES.get(lower, lower)


def field_of(position: int, definition: Mapping[str, Any] | Sequence[Any]) -> Field:
    """Return one field of a format.

    Args:
        position: 0-based number of the field, used if it has no name.
        definition: `{name=, type=, is_nullable=}`, or the short form `[name, type]`.

    Raises:
        TupleError: It is neither.
    """
    where = f"field {position + 1} of the format"
    if isinstance(definition, Mapping):
        name = definition.get("name", f"field_{position + 1}")
        kind = definition.get("type", "any")
        nullable = definition.get("is_nullable", definition.get("nullable_action") == "none")
    else:
        items = _array_of(definition, where)
        name, kind, nullable = field_at(items, 0, where), items[1] if len(items) > 1 else "any", False
        definition = {}
    type_ = field_type(text_of(kind, f"the type of {where}"))
    has_default = not _DEFAULTS.isdisjoint(definition)
    scale = definition.get("scale", 0)
    return Field(
        text_of(name, f"the name of {where}"),
        type_,
        bool(nullable),
        has_default,
        scale if isinstance(scale, int) else 0,
    )


def part_of(definition: Mapping[str, Any] | Sequence[Any]) -> KeyPart:
    """Return one part of an index: `{field=, type=, path=, collation=, sort_order=}`, or `[field, type]`.

    Raises:
        TupleError: It is neither.
    """
    part: Mapping[str, Any]
    if isinstance(definition, Mapping):
        part = definition
    else:
        items = _array_of(definition, "a part of the primary key")
        part = {"field": field_at(items, 0, "its field"), "type": field_at(items, 1, "its type")}
    collation = part.get("collation")
    return KeyPart(
        integer_of(part.get("field"), "the field of a key part"),
        field_type(text_of(part.get("type", "any"), "the type of a key part")),
        text_of(part.get("path", ""), "the path of a key part"),
        None if collation is None else integer_of(collation, "the collation of a key part"),
        bool(part.get("is_nullable", False)),
        part.get("sort_order") == "desc",
    )


def _array_of(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TupleError(f"{name} is neither a map nor an array: {shown(value)}")
    return value


def parts_of(index: Sequence[Any]) -> tuple[KeyPart, ...]:
    """Return the parts of an index from its `_index` tuple.

    Raises:
        TupleError: The tuple is not as servers write it.
    """
    parts = _array_of(field_at(index, 5, "the parts of an index"), "the list of parts of an index")
    if len(parts) > PARTS_MAX:
        raise TupleError(f"an index of {len(parts)} parts, the most are {PARTS_MAX}")
    found = tuple(part_of(part) for part in parts)
    _check_unique("parts of an index are", [f"field {part.field + 1}{part.path}" for part in found])
    return found


def _check_unique(description: str, names: Sequence[str]) -> None:
    """Raise if two fields of a format, or two parts of an index, are equal; no server accepts such a definition."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise TupleError(f"two {description} {shown(twice)}")


def space_of(
    space: Sequence[Any], primary: Sequence[Any] | None, secondary: Iterable[Sequence[Any]] = ()
) -> Space:
    """Return a space from its `_space` tuple and its `_index` tuples.

    Args:
        space: Decoded `_space` tuple: id, owner, name, engine, field count, options, format.
        primary: Decoded `_index` tuple of index 0: space id, index id, name, type, options, parts; None without an
            index 0.
        secondary: Decoded `_index` tuples of the other indexes, in the order of their ids; malformed ones are ignored.
            Only a caller that applies operations needs them.

    Raises:
        TupleError: The tuples are not as servers write them.
    """
    options: Mapping[str, Any] = space[5] if len(space) > 5 and isinstance(space[5], Mapping) else {}
    form = _array_of(space[6], "the format") if len(space) > 6 else []
    if len(form) > FIELDS_MAX:
        raise TupleError(f"a format of {len(form)} fields, the most are {FIELDS_MAX}")
    fields = tuple(field_of(i, one) for i, one in enumerate(form))
    _check_unique("fields are called", [field.name for field in fields])
    primary_key = () if primary is None else parts_of(primary)
    return Space(
        id=integer_of(field_at(space, 0, "the id"), "the id"),
        owner=integer_of(field_at(space, 1, "the owner"), "the owner", 0, _OWNER_ID_MAX),
        name=text_of(field_at(space, 2, "the name"), "the name"),
        engine=text_of(field_at(space, 3, "the engine"), "the engine"),
        fields=fields,
        primary_key=primary_key,
        is_hashed=primary is not None and len(primary) > 3 and str(primary[3]).lower() == "hash",
        is_local=options.get("group_id") == 1,
        is_temporary=bool(options.get("temporary")) or options.get("type") in _TEMPORARY_TYPES,
        is_sync=bool(options.get("is_sync")),
        is_view=bool(options.get("view")),
        secondary_parts=_secondary_parts(fields, primary_key, secondary),
        field_count=space[4] if len(space) > 4 and isinstance(space[4], int) else 0,
        is_constrained=any(_is_constrained(one) for one in (options, *form)),
    )


def _is_constrained(definition: Any) -> bool:
    return isinstance(definition, Mapping) and any(definition.get(name) for name in _CONSTRAINTS)


def space_of_rows(space: Sequence[Any], indexes: Mapping[int, bytes]) -> Space:
    """Return a space, with the parts of its secondary indexes, from its rows of `_space` and `_index`.

    Args:
        space: Decoded `_space` tuple.
        indexes: The space's `_index` tuples by index id.

    Raises:
        TupleError: A tuple, except that of a secondary index, is not as servers write it.
    """
    secondary = []
    for number in sorted(indexes.keys() - {0}):
        with suppress(TupleError):
            secondary.append(fields_of(indexes[number], _INDEX_ROW))
    return space_of(space, fields_of(indexes[0], _INDEX_ROW) if 0 in indexes else None, secondary)


def _secondary_parts(
    fields: Sequence[Field], primary_key: Sequence[KeyPart], indexes: Iterable[Sequence[Any]]
) -> tuple[KeyPart, ...]:
    parts: list[KeyPart] = []
    for index in indexes:
        try:
            options = field_at(index, 4, "the options of an index")
            # The parts of a functional index are those of the function's results.
            if not (isinstance(options, Mapping) and options.get("func")):
                parts += parts_of(index)
        except TupleError:
            continue
    floating = {number for number, one in enumerate(fields) if one.type in FLOATING_POINT_TYPES}
    floating |= {part.field for part in (*primary_key, *parts) if part.type in FLOATING_POINT_TYPES}
    return tuple(KeyPart(part.field, part.type, part.path) for part in parts if part.field in floating)


def faulty_space(space: Sequence[Any], reason: str) -> Space:
    """Return a space with an invalid definition: its id, if that can be read, a name to show, and the fault.

    Args:
        space: Decoded `_space` tuple, or a substitute.
        reason: Why it is invalid.
    """
    try:
        number = integer_of(field_at(space, 0, "the id"), "the id")
    except TupleError:
        number = 0
    name = space[2] if len(space) > 2 and isinstance(space[2], str) else ""
    readable = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")[:_SHOWN_NAME_MAX]
    return Space(number, 0, readable or f"space {number}", "", fault=f"its definition is odd: {reason}")


KeyParts = tuple[tuple[int, str, int | None], ...]
"""(field, path, collation) of each part of a primary key."""


def key_parts(parts: Sequence[KeyPart]) -> KeyParts:
    """Return field, path and collation of each part of a key; they decide the values of its canonical keys.

    The type of a part is left out. It only decides how two rare kinds of integers are written in a canonical key
    (`udfs.keys.kernels.canonical`): integers that are not in their shortest encoding, and integers that no double
    equals.
    """
    return tuple((part.field, part.path, part.collation) for part in parts)
