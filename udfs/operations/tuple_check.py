"""What vinyl checks in the result of a logged UPSERT: the number of fields, their types, and that none is missing.

Source: `tuple_validate_raw` (`src/box/tuple_format.c`), which `vy_apply_upsert` calls since 2.6.1. A vinyl space with
secondary indexes reads the tuple before it writes the log, so the parts of these indexes need no check here; the
primary key does not change. Constraints are functions of the server's user, and are not run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.field_types import DECIMAL_DIGITS
from schemas.space import Field, Space
from udfs.operations import decimals
from udfs.operations.msgpack_kinds import ARRAY, BIN, BOOL, DOUBLE, EXT, FLOAT, INT, KIND, MAP, NIL, STR, UINT
from udfs.operations.msgpack_walk import read_integer, string_bounds
from udfs.operations.update_rules import Rules

_KINDS_BY_TYPE = {
    "unsigned": {UINT},
    "integer": {UINT, INT},
    "number": {UINT, INT, FLOAT, DOUBLE},
    "double": {DOUBLE},
    "float32": {FLOAT},
    "float64": {DOUBLE},
    "string": {STR},
    "varbinary": {BIN},
    "boolean": {BOOL},
    "array": {ARRAY},
    "map": {MAP},
    "scalar": {UINT, INT, FLOAT, DOUBLE, STR, BIN, BOOL},
}

_INTEGER_RANGES = {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)}
_INTEGER_RANGES |= {f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)}

_DECIMAL, _UUID, _DATETIME, _INTERVAL = decimals.DECIMAL_EXTENSION, 2, 4, 6
"""Types of extensions (`src/lib/core/mp_extension_types.h`)."""

_EXTENSIONS_BY_TYPE = {
    "number": {_DECIMAL},
    "scalar": {_DECIMAL, _UUID, _DATETIME},
    "decimal": {_DECIMAL},
    "uuid": {_UUID},
    "datetime": {_DATETIME},
    "interval": {_INTERVAL},
}


@dataclass(frozen=True, slots=True)
class TupleCheck:
    """What the tuples of a space must fit."""

    fields: tuple[Field, ...] = ()
    field_count: int = 0
    """The exact number of fields; 0 for any."""
    is_constrained: bool = False
    """Whether the space has constraints, which are not checked."""

    def fits(self, values: Sequence[bytes], rules: Rules) -> bool:
        """Return whether encoded fields have the types of the format, and none is missing.

        A field whose type is not known here fits.
        """
        if self.field_count not in (0, len(values)):
            return False
        if not all(_has_type(value, one, rules) for value, one in zip(values, self.fields, strict=False)):
            return False
        return all(one.is_nullable for one in self.fields[len(values) :])


def check_of(space: Space) -> TupleCheck | None:
    """Return what the tuples of a space must fit; None if they need no check."""
    if not (space.fields or space.field_count or space.is_constrained):
        return None
    return TupleCheck(space.fields, space.field_count, space.is_constrained)


def _has_type(value: bytes, field: Field, rules: Rules) -> bool:
    kind = KIND[value[0]]
    if kind == NIL:
        return field.is_nullable or field.has_default or field.type == "any"
    if field.type == "double" and rules.double_accepts_integers:
        return kind in (UINT, INT, FLOAT, DOUBLE)
    if field.type in _INTEGER_RANGES:
        least, greatest = _INTEGER_RANGES[field.type]
        return kind in (UINT, INT) and least <= read_integer(value, 0)[0] <= greatest
    return _has_extension_type(value, field) if kind == EXT else _has_plain_type(kind, field)


def _has_plain_type(kind: int, field: Field) -> bool:
    if field.type in _KINDS_BY_TYPE:
        return kind in _KINDS_BY_TYPE[field.type]
    return field.type not in _EXTENSIONS_BY_TYPE and field.type not in DECIMAL_DIGITS


def _has_extension_type(value: bytes, field: Field) -> bool:
    if field.type in DECIMAL_DIGITS:
        return _fits_decimal(value, DECIMAL_DIGITS[field.type], field.scale)
    if field.type in _EXTENSIONS_BY_TYPE:
        start, _ = string_bounds(value, 0)
        return value[start - 1] in _EXTENSIONS_BY_TYPE[field.type]
    return field.type not in _KINDS_BY_TYPE


def _fits_decimal(value: bytes, digits: int, scale: int) -> bool:
    """Return whether a decimal has at most `scale` digits after the point, and `digits` of them in all."""
    if not decimals.is_decimal(value, 0):
        return False
    scaled = decimals.read(value, 0).scaleb(scale, decimals.context(is_wide=True))
    return scaled == scaled.to_integral_value() and abs(scaled) < 10**digits
