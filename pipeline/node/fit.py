"""Whether a tuple that a policy has made is one that followers take: a server stops at one that its space refuses.

Tuples of replicasets fit, since their own servers have checked them by formats that are no wider. Pure.
Source: `field_mp_plain_type_is_compatible` in Tarantool's `src/box/field_def.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgpack import ExtType

from pipeline.node.definitions import ServedSpace
from schemas.errors import TupleError
from schemas.space import KeyPart
from schemas.system_tuples import fields_of
from udfs.keys.paths import parse_path

DECIMAL, UUID, DATETIME, INTERVAL = 1, 2, 4, 6
"""Codes of MessagePack extensions (`src/lib/core/mp_extension_types.h`)."""


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_extension(value: Any, *codes: int) -> bool:
    return isinstance(value, ExtType) and value.code in codes


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "any": lambda _: True,
    "unsigned": lambda value: _is_integer(value) and value >= 0,
    "integer": _is_integer,
    "number": lambda value: _is_integer(value) or isinstance(value, float) or _is_extension(value, DECIMAL),
    "double": lambda value: isinstance(value, float),
    "decimal": lambda value: _is_extension(value, DECIMAL),
    "string": lambda value: isinstance(value, str),
    "varbinary": lambda value: isinstance(value, bytes),
    "boolean": lambda value: isinstance(value, bool),
    "uuid": lambda value: _is_extension(value, UUID),
    "datetime": lambda value: _is_extension(value, DATETIME),
    "interval": lambda value: _is_extension(value, INTERVAL),
    "array": lambda value: isinstance(value, list),
    "map": lambda value: isinstance(value, dict),
    "scalar": lambda value: not isinstance(value, list | dict) and not _is_extension(value, INTERVAL),
}


def misfit(space: ServedSpace, tuple_: bytes) -> str | None:
    """Return why a space refuses a tuple, None where it takes it.

    Parameters
    ----------
    space : ServedSpace
    tuple_ : bytes
        MessagePack.

    """
    try:
        values = fields_of(tuple_, "a tuple")
    except TupleError as error:
        return error.reason
    if space.field_count and len(values) != space.field_count:
        return f"it has {len(values)} fields, not {space.field_count}"
    for position, one in enumerate(space.fields):
        value = values[position] if position < len(values) else None
        if not _allows(one.type, value, is_nullable=one.is_nullable):
            return f"field {one.name} is no {one.type}"
    for index in space.indexes:
        for part in index.parts:
            if not _allows(part.type, _value_at(values, part, space.name), is_nullable=part.is_nullable):
                return f"a part of index {index.name} is no {part.type}"
    return None


def _allows(kind: str, value: Any, *, is_nullable: bool) -> bool:
    if value is None:
        return is_nullable or kind == "any"
    return _TYPES.get(kind, lambda _: False)(value)


def _value_at(values: Any, part: KeyPart, space: str) -> Any:
    found: Any = values[part.field] if part.field < len(values) else None
    for step in parse_path(part.path, space):
        try:
            found = found[step.decode() if isinstance(step, bytes) else step]
        except (KeyError, IndexError, TypeError):
            return None
    return found
