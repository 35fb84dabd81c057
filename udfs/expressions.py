"""Evaluates the expressions of `schemas.expression` on Arrow columns: filters and computed columns of a space's table.

A value that cannot be computed (a division by zero, a text that is no number, a result beyond its type) is NULL, as by
Spark's `try_…` functions; a filter keeps the rows for which it is true. Integers stay integers under `+`, `-`, `*`,
`%`; a division of integers, and all arithmetic with decimals, gives decimals, rounded half-even; a double makes
doubles. Decimals are computed row by row in Python: exact, at about a microsecond each.
"""

import decimal
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from schemas.errors import ExpressionError
from schemas.expression import Expression, Term

DIVISION_SCALE = 18
"""Digits after the point of a quotient, and the most of a product, unless an operand has more."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_CONTEXT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_EVEN, traps=[])
_LONGS = range(-(2**63), 2**63)

Value = Any
"""A `pa.Array`, or a `pa.Scalar` that holds for each row."""

_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    _TIMESTAMP: TimestampType(),
}

_CAST_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": _TIMESTAMP,
    "binary": pa.binary(),
}


def evaluate(expression: Expression, rows: pa.Table) -> pa.Array:
    """Return the value of an expression for each row.

    Raises:
        ExpressionError: A column is missing, or a value has a type that the operation does not take.
    """
    found = _result_type(_evaluate(expression.root, rows))
    if isinstance(found, pa.Scalar):
        return pa.repeat(found, rows.num_rows)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def keeps(expression: Expression, rows: pa.Table) -> pa.Array:
    """Return for each row whether a filter is true for it: neither false nor NULL."""
    found = evaluate(expression, rows)
    if not pa.types.is_boolean(found.type):
        raise ExpressionError(f"{expression.text!r} is no filter: it gives {found.type}")
    return pc.fill_null(found, False)


def spark_type(expression: Expression, columns: Sequence[pa.Field]) -> DataType:
    """Return the Spark type of an expression's values; errors as of `evaluate`."""
    kind = evaluate(expression, pa.schema(columns).empty_table()).type
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    found = _SPARK_TYPES.get(kind)
    if found is None:
        raise ExpressionError(f"{expression.text!r} gives {kind}, which no column can have")
    return found


def _result_type(value: Value) -> Value:
    kind = value.type
    if pa.types.is_null(kind):
        return value.cast(pa.string())
    if pa.types.is_integer(kind) and kind not in _SPARK_TYPES:
        return value.cast(pa.int64())
    return value


def _evaluate(node: Term, rows: pa.Table) -> Value:
    if node.operation == "column":
        if node.value not in rows.column_names:
            raise ExpressionError(f"there is no column {node.value}; known: {', '.join(rows.column_names)}")
        return rows[node.value].combine_chunks()
    if node.operation == "literal":
        return _literal(node.value)
    operands = [_evaluate(operand, rows) for operand in node.operands]
    try:
        return _OPERATIONS[node.operation](node, *operands)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        kinds = ", ".join(str(operand.type) for operand in operands)
        raise ExpressionError(f"{node.operation} does not take {kinds}") from error


def _literal(value: Any) -> pa.Scalar:
    if isinstance(value, Decimal):
        scale = max(-int(value.as_tuple().exponent), 0)
        return pa.scalar(value, pa.decimal128(38, min(scale, 38)))
    if isinstance(value, int) and not isinstance(value, bool) and value not in _LONGS:
        return pa.scalar(Decimal(value), pa.decimal128(38, 0))
    return pa.scalar(value)


def _is_number(value: Value) -> bool:
    return bool(pa.types.is_integer(value.type) or pa.types.is_floating(value.type) or _is_decimal(value))


def _is_decimal(value: Value) -> bool:
    return bool(pa.types.is_decimal(value.type))


def _by_row(function: Callable[..., Any], kind: pa.DataType, *values: Value) -> Value:
    """Apply a function of Python to each row; a row with a null, or with an exception, gives null."""

    def result(*row: Any) -> Any:
        if any(one is None for one in row):
            return None
        try:
            return function(*row)
        except (ArithmeticError, ValueError, TypeError):
            return None

    if all(isinstance(value, pa.Scalar) for value in values):
        return pa.scalar(result(*(value.as_py() for value in values)), kind)
    length = next(len(value) for value in values if not isinstance(value, pa.Scalar))
    columns = [
        [value.as_py()] * length if isinstance(value, pa.Scalar) else value.to_pylist() for value in values
    ]
    return pa.array([result(*row) for row in zip(*columns, strict=True)], kind)


def _quantized(value: Decimal, scale: int) -> Decimal | None:
    """Return a decimal rounded to a scale; None if it has more than 38 digits then."""
    found = value.quantize(Decimal(1).scaleb(-scale), context=_CONTEXT)
    return found if found.is_finite() and abs(found) < Decimal(10) ** (38 - scale) else None


_DECIMAL_OPERATIONS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _CONTEXT.add,
    "-": _CONTEXT.subtract,
    "*": _CONTEXT.multiply,
    "/": _CONTEXT.divide,
    "%": _CONTEXT.remainder,
}
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


def _arithmetic(node: Term, left: Value, right: Value) -> Value:
    operation = node.operation
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, pa.int64())
    if not (_is_number(left) and _is_number(right)):
        raise pa.ArrowTypeError("not numbers")
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return _double_arithmetic(operation, *(pc.cast(one, pa.float64()) for one in (left, right)))
    if not _is_decimal(left) and not _is_decimal(right) and operation != "/":
        left, right = (pc.cast(one, pa.int64()) for one in (left, right))
        if operation in _CHECKED:
            try:
                return _CHECKED[operation](left, right)
            except pa.ArrowInvalid:
                pass
        return _by_row(lambda a, b: _long(operation, a, b), pa.int64(), left, right)
    scales = [one.type.scale if _is_decimal(one) else 0 for one in (left, right)]
    scale = max(scales)
    if operation == "*":
        scale = max(scale, min(sum(scales), DIVISION_SCALE))
    elif operation == "/":
        scale = max(scale, DIVISION_SCALE)
    compute = _DECIMAL_OPERATIONS[operation]
    return _by_row(
        lambda a, b: _quantized(compute(Decimal(a), Decimal(b)), scale), pa.decimal128(38, scale), left, right
    )


def _long(operation: str, left: int, right: int) -> int | None:
    value = int(_DECIMAL_OPERATIONS[operation](Decimal(left), Decimal(right)))
    return value if value in _LONGS else None


def _double_arithmetic(operation: str, left: Value, right: Value) -> Value:
    if operation == "%":
        return _by_row(lambda a, b: float(Decimal(a) % Decimal(b)), pa.float64(), left, right)
    if operation == "/":
        right = pc.if_else(pc.equal(right, 0.0), pa.scalar(None, pa.float64()), right)
        return pc.divide(left, right)
    return {"+": pc.add, "-": pc.subtract, "*": pc.multiply}[operation](left, right)


def _compared(left: Value, right: Value) -> tuple[Value, Value]:
    if pa.types.is_null(left.type):
        left = pa.scalar(None, right.type)
    if pa.types.is_null(right.type):
        right = pa.scalar(None, left.type)
    if left.type == right.type:
        return left, right
    if _is_number(left) and _is_number(right):
        if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
            return pc.cast(left, pa.float64()), pc.cast(right, pa.float64())
        return left, right
    for kind in (left.type, right.type):
        if pa.types.is_temporal(kind) and all(
            pa.types.is_string(one.type) or pa.types.is_temporal(one.type) for one in (left, right)
        ):
            wider = _TIMESTAMP if _TIMESTAMP in (left.type, right.type) else kind
            return _cast(left, wider), _cast(right, wider)
    raise pa.ArrowTypeError("types differ")


_COMPARISONS: dict[str, tuple[Callable[[Value, Value], Value], Callable[[Any, Any], bool]]] = {
    "=": (pc.equal, lambda a, b: a == b),
    "<>": (pc.not_equal, lambda a, b: a != b),
    "<": (pc.less, lambda a, b: a < b),
    "<=": (pc.less_equal, lambda a, b: a <= b),
    ">": (pc.greater, lambda a, b: a > b),
    ">=": (pc.greater_equal, lambda a, b: a >= b),
}


def _comparison(node: Term, left: Value, right: Value) -> Value:
    return _compare(node.operation, left, right)


def _compare(operation: str, left: Value, right: Value) -> Value:
    left, right = _compared(left, right)
    by_arrow, by_row = _COMPARISONS[operation]
    if left.type == right.type:
        return by_arrow(left, right)
    # Decimals of other digits, or a decimal and an integer: Python compares them exactly.
    return _by_row(by_row, pa.bool_(), left, right)


def _logical(node: Term, *operands: Value) -> Value:
    found = [pc.cast(one, pa.bool_()) if pa.types.is_null(one.type) else one for one in operands]
    if not all(pa.types.is_boolean(one.type) for one in found):
        raise pa.ArrowTypeError("not conditions")
    if node.operation == "NOT":
        return pc.invert(found[0])
    return (pc.and_kleene if node.operation == "AND" else pc.or_kleene)(*found)


def _is_in(_node: Term, value: Value, *others: Value) -> Value:
    found = _compare("=", value, others[0])
    for other in others[1:]:
        found = pc.or_kleene(found, _compare("=", value, other))
    return found


def _text(value: Value) -> Value:
    return value if pa.types.is_string(value.type) else _cast(value, pa.string())


def _common(values: Sequence[Value]) -> list[Value]:
    """Return values in one type, for CASE and coalesce."""
    kinds = {value.type for value in values if not pa.types.is_null(value.type)}
    if len(kinds) > 1 and all(_is_number(pa.scalar(None, kind)) for kind in kinds):
        if any(pa.types.is_floating(kind) for kind in kinds):
            kinds = {pa.float64()}
        elif any(pa.types.is_decimal(kind) for kind in kinds):
            scale = max(kind.scale for kind in kinds if pa.types.is_decimal(kind))
            kinds = {pa.decimal128(38, scale)}
        else:
            kinds = {pa.int64()}
    if len(kinds) > 1:
        raise pa.ArrowTypeError("types differ")
    kind = next(iter(kinds), pa.string())
    return [value if value.type == kind else _cast(value, kind) for value in values]


def _case(_node: Term, *operands: Value) -> Value:
    results = _common([*operands[1::2], operands[-1]])
    found = results[-1]
    for condition, value in reversed(list(zip(operands[:-1:2], results[:-1], strict=True))):
        found = pc.if_else(pc.fill_null(pc.cast(condition, pa.bool_()), False), value, found)
    return found


def _cast(value: Value, kind: pa.DataType) -> Value:
    """Cast values; one that the type does not have becomes null."""
    if value.type == kind:
        return value
    if pa.types.is_string(value.type) and kind == _TIMESTAMP:
        naive = _cast(pc.replace_substring_regex(value, r"(Z|\+00:?00)$", ""), pa.timestamp("us"))
        return pc.assume_timezone(naive, "UTC")
    if pa.types.is_decimal(kind):
        return _by_row(lambda one: _quantized(Decimal(str(one).strip()), kind.scale), kind, value)
    try:
        return pc.cast(value, kind)
    except pa.ArrowInvalid:
        return _by_row(lambda one: _cast_one(one, value.type, kind), kind, value)


def _cast_one(value: Any, source: pa.DataType, kind: pa.DataType) -> Any:
    try:
        if pa.types.is_integer(kind) and isinstance(value, Decimal | float):
            value, source = int(value), pa.int64()
        return pa.scalar(value, source).cast(kind).as_py()
    except (pa.ArrowInvalid, OverflowError):
        return None


def _cast_node(node: Term, value: Value) -> Value:
    name = node.value[0]
    return _cast(value, pa.decimal128(*node.value[1:]) if name == "decimal" else _CAST_TYPES[name])


def _round(_node: Term, value: Value, digits: Value | None = None) -> Value:
    count = 0 if digits is None else int(digits.as_py())
    if _is_decimal(value):
        scale = max(min(count, value.type.scale), 0)
        return _by_row(
            lambda one: one.quantize(Decimal(1).scaleb(-count), decimal.ROUND_HALF_UP, _CONTEXT).quantize(
                Decimal(1).scaleb(-scale), context=_CONTEXT
            ),
            pa.decimal128(38, scale),
            value,
        )
    return pc.round(value, ndigits=count, round_mode="half_towards_infinity")


def _substring(_node: Term, value: Value, start: Value, length: Value | None = None) -> Value:
    first = max(int(start.as_py()) - 1, 0)
    return pc.utf8_slice_codeunits(
        _text(value), first, None if length is None else first + int(length.as_py())
    )


_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def _json_value(_node: Term, value: Value, path: Value) -> Value:
    """Return the value at a path (`$.a.b[0]`) of JSON text: a scalar as its text, anything else as JSON."""
    steps = [(name, index) for name, index in _STEP.findall(str(path.as_py()).removeprefix("$"))]

    def found(text: str) -> str | None:
        inner = json.loads(text, parse_float=str, parse_int=str)
        for name, index in steps:
            inner = inner[int(index)] if index else inner.get(name) if isinstance(inner, dict) else None
            if inner is None:
                return None
        return inner if isinstance(inner, str) else json.dumps(inner)

    def safe(text: str) -> str | None:
        try:
            return found(text)
        except (IndexError, KeyError):
            return None

    return _by_row(safe, pa.string(), value)


def _part(function: Callable[[Value], Value]) -> Callable[..., Value]:
    return lambda _node, value: pc.cast(function(value), pa.int64())


_OPERATIONS: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(_DECIMAL_OPERATIONS, _arithmetic),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(("AND", "OR", "NOT"), _logical),
    "IS NULL": lambda _node, value: pc.is_null(value),
    "IN": _is_in,
    "LIKE": lambda node, value: pc.match_like(_text(value), node.value),
    "||": lambda _node, left, right: pc.binary_join_element_wise(_text(left), _text(right), ""),
    "case": _case,
    "cast": _cast_node,
    "coalesce": lambda _node, *values: pc.coalesce(*_common(values)),
    "lower": lambda _node, value: pc.utf8_lower(_text(value)),
    "upper": lambda _node, value: pc.utf8_upper(_text(value)),
    "trim": lambda _node, value: pc.utf8_trim_whitespace(_text(value)),
    "length": lambda _node, value: pc.cast(pc.utf8_length(_text(value)), pa.int64()),
    "substring": _substring,
    "abs": lambda _node, value: pc.abs(value),
    "round": _round,
    "floor": lambda _node, value: pc.floor(value),
    "ceil": lambda _node, value: pc.ceil(value),
    "date": lambda _node, value: _cast(value, pa.date32()),
    "year": _part(pc.year),
    "month": _part(pc.month),
    "day": _part(pc.day),
    "hour": _part(pc.hour),
    "json_value": _json_value,
}
