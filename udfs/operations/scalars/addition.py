"""`+` and `-`: integers stay integers from -2^63 to 2^64 - 1.

With a double or a float the sum is computed as a double, and written as MP_FLOAT if that is exact (see
`udfs.operations.update_rules` for older servers); with a decimal everything becomes a decimal.

An overflow is an error. Since 3.0 the server stores the sum before it finds the overflow, if an earlier operation of
the request has changed the field (`xrow_update_op_do_arith` computes in place). An UPSERT skips the failed operation
and continues with this sum (`SumOverflowError.total`).
"""

import struct
from decimal import Decimal

from schemas.errors import TupleError, UnsupportedError
from udfs.operations import decimals
from udfs.operations.arithmetic import (
    AS_DECIMAL,
    AS_DOUBLE,
    AS_FLOAT,
    AS_INTEGER,
    Number,
    OperationArguments,
    Scalar,
    ScalarOperation,
    argument_type_error,
    as_int64,
    encode,
    fits_integer,
    read_number,
)
from udfs.operations.update_rules import Rules

ER_UPDATE_INTEGER_OVERFLOW, ER_UPDATE_DECIMAL_OVERFLOW = 95, 160
"""Tarantool's error codes."""

FLOAT_MAX = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]


class SumOverflowError(TupleError):
    """The sum does not fit its type. `total` is the exact sum of two integers; None if the sum is a decimal."""

    total: int | None = None


def _read_operand(arguments: OperationArguments) -> Number:
    number = read_number(arguments.data, arguments.begin)
    if number is None:
        raise argument_type_error(arguments.code, arguments.field, "a number")
    return number


def add(code: str, field: str, left: Scalar | None, right: Number, rules: Rules) -> Number:
    """Return left + right, or left - right if `code` is `-`.

    Raises:
        TupleError: Left is not a number.
        SumOverflowError: The result does not fit its type.
    """
    if not isinstance(left, Number):
        raise argument_type_error(code, field, "a number")
    operand_type = min(left.type, right.type)
    if operand_type == AS_DECIMAL:
        return Number(AS_DECIMAL, _add_decimals(code, field, left, right, rules))
    if operand_type == AS_INTEGER:
        a, b = int(left.value), int(right.value)
        total = a + b if code == "+" else a - b
        if not fits_integer(total):
            error = SumOverflowError(
                f"Integer overflow when performing '{code}' operation on field {field}",
                code=ER_UPDATE_INTEGER_OVERFLOW,
            )
            error.total = total
            raise error
        return Number(AS_INTEGER, total)
    x, y = (float(as_int64(n.value) if isinstance(n.value, int) else n.value) for n in (left, right))
    return _typed_sum(x + y if code == "+" else x - y, operand_type, rules)


def _round_to_float(value: float) -> float:
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _typed_sum(total: float, operand_type: int, rules: Rules) -> Number:
    """Return a sum with the type that the server stores; `operand_type` is `AS_DOUBLE` if an operand is a double."""
    is_exact = -FLOAT_MAX <= total <= FLOAT_MAX and _round_to_float(total) == total
    exact = Number(AS_FLOAT if is_exact else AS_DOUBLE, total)
    if rules.float_sums == "exact":
        return exact
    typed = Number(operand_type, _round_to_float(total) if operand_type == AS_FLOAT else total)
    if rules.float_sums == "unclear" and encode(typed, as_double=False) != encode(exact, as_double=False):
        raise UnsupportedError(f"the sum {total!r}, which servers before 2.6 store in different ways")
    return typed


def _add_decimals(code: str, field: str, left: Number, right: Number, rules: Rules) -> Decimal:
    ctx = decimals.context(rules.has_wide_decimals)

    def convert(number: Number) -> Decimal | None:
        return (
            decimals.from_double(number.value, ctx)
            if isinstance(number.value, float)
            else Decimal(as_int64(number.value) if isinstance(number.value, int) else number.value)
        )

    a, b = convert(left), convert(right)
    if a is None or b is None:
        raise argument_type_error(code, field, "a number convertible to decimal")
    total = decimals.add(a, b, ctx) if code == "+" else decimals.subtract(a, b, ctx)
    if total is None:
        raise SumOverflowError(
            f"Decimal overflow when performing operation '{code}' on field {field}",
            code=ER_UPDATE_DECIMAL_OVERFLOW,
        )
    return total


ADDITION = ScalarOperation(3, _read_operand, add)
