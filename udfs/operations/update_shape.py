"""Checks a tuple against the types of a format, as vinyl checks an UPSERT's result long after it was logged.

memtx checks the result before it writes the log, so all its rows fit. Vinyl logs an UPSERT without reading the tuple;
since 2.6.1 a later read skips an UPSERT whose result does not fit (gh-1622, `src/box/vy_upsert.c`). Types of secondary
index parts, constraints and the number of fields are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.space import Field
from udfs.operations.decimals import EXTENSION
from udfs.operations.msgpack_walk import (
    ARRAY,
    BIN,
    BOOL,
    DOUBLE,
    EXT,
    FLOAT,
    INT,
    KIND,
    MAP,
    NIL,
    STR,
    UINT,
    string,
)
from udfs.operations.update_rules import Rules

_KINDS = {
    "unsigned": {UINT},
    "integer": {UINT, INT},
    "number": {UINT, INT, FLOAT, DOUBLE},
    "double": {DOUBLE},
    "string": {STR},
    "varbinary": {BIN},
    "boolean": {BOOL},
    "array": {ARRAY},
    "map": {MAP},
    "scalar": {UINT, INT, FLOAT, DOUBLE, STR, BIN, BOOL, EXT},
}

_EXTENSIONS = {"number": EXTENSION, "decimal": EXTENSION, "uuid": 2, "datetime": 4, "interval": 6}
"""Extension types (`src/lib/core/mp_extension_types.h`)."""


def fits(values: Sequence[bytes], fields: Sequence[Field], rules: Rules) -> bool:
    """Return whether encoded fields are those of a format, each of its type; an unknown type takes anything."""
    present = all(_is_of(value, one, rules) for value, one in zip(values, fields, strict=False))
    return present and all(one.is_nullable for one in fields[len(values) :])


def _is_of(value: bytes, field: Field, rules: Rules) -> bool:
    kind = KIND[value[0]]
    if kind == NIL:
        return field.is_nullable or field.type == "any"
    if field.type == "double" and rules.integer_doubles:
        return kind in (UINT, INT, FLOAT, DOUBLE)
    if kind in _KINDS.get(field.type, ()):
        return True
    if kind == EXT and field.type in _EXTENSIONS:
        start, _ = string(value, 0)
        return value[start - 1] == _EXTENSIONS[field.type]
    return field.type not in _KINDS and field.type not in _EXTENSIONS
