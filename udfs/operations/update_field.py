"""A field under update: its old bytes, and the result of the operations so far.

The server applies the operations of a request to a tree over the old tuple and writes the tree at the end
(`src/box/xrow_update_field.h`). This tree has the same shape as the server's, because the shape decides bytes: which
headers and keys are rewritten, and the order of a map's keys. Its inner nodes are in `update_containers`, `update_bar`
and `operations` (`Route`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schemas.errors import TupleError, UnsupportedError
from udfs.operations.arithmetic import AS_INTEGER, Number, Scalar, encode, read_scalar
from udfs.operations.operation import Operation
from udfs.operations.scalars import SCALAR_OPERATIONS
from udfs.operations.scalars.addition import SumOverflowError
from udfs.operations.tuple_format import FormatNode
from udfs.operations.update_rules import Rules


class Update(Protocol):
    """A change of a field, and how to write the field after it."""

    def render(self, field: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the field's new encoding; `node` is its node in the format."""
        ...


class UpdatedField:
    """A field: the bytes `data[start:end]`, and their change (None if there is none)."""

    __slots__ = ("data", "end", "start", "update")

    def __init__(self, data: bytes, start: int, end: int, update: Update | None = None) -> None:
        self.data, self.start, self.end, self.update = data, start, end, update

    def render(self, node: FormatNode | None) -> bytes:
        """Return the new encoding."""
        return self.data[self.start : self.end] if self.update is None else self.update.render(self, node)


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of a scalar operation, encoded at the end, when the field's final position is known."""

    value: Scalar

    def render(self, _: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the encoding of the result."""
        return encode_at(self.value, node)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The value of `=`, for servers that accept only another `=` or `#` after it."""

    value: bytes

    def render(self, _field: UpdatedField, _node: FormatNode | None) -> bytes:
        """Return the value in the encoding of the log."""
        return self.value


def encode_at(value: Scalar, node: FormatNode | None) -> bytes:
    """Return the encoding of a result; `node` is its node in the format."""
    if node is not None and node.is_single:
        raise UnsupportedError(
            "arithmetic on a float32 field", advice="follow the space from a snapshot, or with `=` alone"
        )
    return encode(value, node is not None and node.is_double)


def compute(op: Operation, old: Scalar | None, rules: Rules) -> Scalar:
    """Return the result of a scalar operation on a value."""
    return SCALAR_OPERATIONS[op.code].compute(op.code, op.field, old, op.argument, rules)


def change_scalar(op: Operation, field: UpdatedField, rules: Rules) -> None:
    """Apply a scalar operation to an element of an updated container."""
    before = field.update
    if before is None:
        field.update = Computed(compute(op, read_scalar(field.data, field.start), rules))
        return
    if not rules.can_repeat:
        raise double_update(op)
    try:
        field.update = Computed(compute(op, before.value if isinstance(before, Computed) else None, rules))
    except SumOverflowError as error:
        if error.total is None:
            raise UnsupportedError(
                f"a decimal overflow on {op.field}, which the request has changed before"
            ) from None
        field.update = Computed(Number(AS_INTEGER, error.total))
        raise


def assign(op: Operation, field: UpdatedField, rules: Rules) -> None:
    """Apply `=` to an element of an updated container; earlier changes of the element are lost."""
    if rules.can_repeat:
        field.data, field.start, field.end, field.update = op.data, op.start, op.end, None
    else:
        field.update = Assigned(op.value)


def double_update(op: Operation) -> TupleError:
    """Return the error of a second operation on a field that may have only one."""
    return op.update_error("double update of the same field")
