"""What vinyl checks in the result of a logged UPSERT: the number of fields, their types, and that none is missing.

Source: `tuple_validate_raw` (`src/box/tuple_format.c`), which `vy_apply_upsert` calls since 2.6.1. A vinyl space with
secondary indexes reads the tuple before it writes the log, so the parts of these indexes need no check here; the
primary key does not change. Constraints are functions of the server's user, and are not run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.field_types import DECIMAL_DIGITS, FIELD_TYPES, ValueClass, type_family
from schemas.space import Field, Space
from udfs.operations import decimals
from udfs.operations.msgpack_walk import read_integer
from udfs.operations.update_rules import Rules
from udfs.operations.value_class import class_of_value

_INTEGER_RANGES = {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)}
_INTEGER_RANGES |= {f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)}

_ONE_CLASS = {"double": ValueClass.DOUBLE, "float32": ValueClass.FLOAT, "float64": ValueClass.DOUBLE}
"""Types that accept fewer classes of values here than in `schemas.field_types`."""


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

        A field of a type that `FIELD_TYPES` does not have fits: its space has no table.
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
    kind = class_of_value(value)
    if kind is ValueClass.NIL:
        return field.is_nullable or field.has_default or field.type == "any"
    if field.type in _ONE_CLASS and not (field.type == "double" and rules.double_accepts_integers):
        return kind is _ONE_CLASS[field.type]
    known = FIELD_TYPES.get(type_family(field.type))
    if known is not None and kind not in known.accepted_classes:
        return False
    if field.type in _INTEGER_RANGES:
        least, greatest = _INTEGER_RANGES[field.type]
        return least <= read_integer(value, 0)[0] <= greatest
    if field.type in DECIMAL_DIGITS:
        return _fits_decimal(value, DECIMAL_DIGITS[field.type], field.scale)
    return True


def _fits_decimal(value: bytes, digits: int, scale: int) -> bool:
    scaled = decimals.read(value, 0).scaleb(scale, decimals.context(is_wide=True))
    return scaled == scaled.to_integral_value() and abs(scaled) < 10**digits
