"""`&`, `|` and `^`: both sides are unsigned integers."""

from udfs.operations.arithmetic import (
    AS_INTEGER,
    Number,
    OperationArguments,
    Scalar,
    ScalarOperation,
    argument_type_error,
)
from udfs.operations.msgpack_kinds import KIND, UINT
from udfs.operations.msgpack_walk import read_integer
from udfs.operations.update_rules import Rules


def _read_mask(arguments: OperationArguments) -> int:
    if KIND[arguments.data[arguments.begin]] != UINT:
        raise argument_type_error(arguments.code, arguments.field, "a positive integer")
    return read_integer(arguments.data, arguments.begin)[0]


def combine_bits(code: str, field: str, left: Scalar | None, right: int, rules: Rules) -> Number:
    """Return `left & right`, `left | right` or `left ^ right`; left must be an unsigned integer."""
    value = left.value if isinstance(left, Number) else None
    if not isinstance(left, Number) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise argument_type_error(code, field, "a positive integer")
    if left.is_signed and not rules.allows_repeated_fields:
        raise argument_type_error(code, field, "a positive integer")
    return Number(
        AS_INTEGER, value & right if code == "&" else value | right if code == "|" else value ^ right
    )


BITS = ScalarOperation(3, _read_mask, combine_bits)
