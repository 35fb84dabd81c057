"""Checks whether a tuple that a policy made fits its space: a follower stops at a tuple that its space refuses.

Tuples of replicasets need no check: their own servers checked them by formats that are at least as strict. Pure.
Source: `field_mp_plain_type_is_compatible` in Tarantool's `src/box/field_def.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgpack import ExtType

from pipeline.node.definitions import ServedSpace
from schemas.errors import TupleError
from schemas.field_types import FIELD_TYPES, ValueClass
from schemas.space import KeyPart
from schemas.system_tuples import fields_of
from udfs.keys.keys import parse_path

DECIMAL, UUID, DATETIME, INTERVAL = 1, 2, 4, 6
"""Codes of MessagePack extensions (`src/lib/core/mp_extension_types.h`)."""


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_extension(value: Any, *codes: int) -> bool:
    return isinstance(value, ExtType) and value.code in codes


_CLASS_CHECKS: Mapping[ValueClass, Callable[[Any], bool]] = {
    ValueClass.UNSIGNED: lambda value: _is_integer(value) and value >= 0,
    ValueClass.INTEGER: _is_integer,
    ValueClass.DOUBLE: lambda value: isinstance(value, float),
    ValueClass.BOOLEAN: lambda value: isinstance(value, bool),
    ValueClass.STRING: lambda value: isinstance(value, str),
    ValueClass.BINARY: lambda value: isinstance(value, bytes),
    ValueClass.ARRAY: lambda value: isinstance(value, list),
    ValueClass.MAP: lambda value: isinstance(value, dict),
    ValueClass.DECIMAL: lambda value: _is_extension(value, DECIMAL),
    ValueClass.UUID: lambda value: _is_extension(value, UUID),
    ValueClass.DATETIME: lambda value: _is_extension(value, DATETIME),
    ValueClass.INTERVAL: lambda value: _is_extension(value, INTERVAL),
}

_TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "any": lambda _: True,
    "double": lambda value: isinstance(value, float),
    "scalar": lambda value: not isinstance(value, list | dict) and not _is_extension(value, INTERVAL),
}
"""Types for which a server's check differs from the values of `schemas.field_types`."""


def misfit_reason(space: ServedSpace, tuple_: bytes) -> str | None:
    """Return why a space refuses a tuple (MessagePack), None if it accepts it."""
    try:
        values = fields_of(tuple_, "a tuple")
    except TupleError as error:
        return error.reason
    if space.field_count and len(values) != space.field_count:
        return f"it has {len(values)} fields, not {space.field_count}"
    for position, one in enumerate(space.fields):
        value = values[position] if position < len(values) else None
        if not _allows(one.type, value, is_nullable=one.is_nullable):
            return f"field {one.name} is not of type {one.type}"
    for index in space.indexes:
        for part in index.parts:
            if not _allows(part.type, _value_at(values, part, space.name), is_nullable=part.is_nullable):
                return f"a part of index {index.name} is not of type {part.type}"
    return None


def _allows(kind: str, value: Any, *, is_nullable: bool) -> bool:
    if value is None:
        return is_nullable or kind == "any"
    if kind in _TYPE_CHECKS:
        return _TYPE_CHECKS[kind](value)
    accepted = FIELD_TYPES[kind].values if kind in FIELD_TYPES else ()
    return any(_CLASS_CHECKS[one](value) for one in accepted if one in _CLASS_CHECKS)


def _value_at(values: Any, part: KeyPart, space: str) -> Any:
    found: Any = values[part.field] if part.field < len(values) else None
    for step in parse_path(part.path, space):
        try:
            found = found[step.decode() if isinstance(step, bytes) else step]
        except (KeyError, IndexError, TypeError):
            return None
    return found
