"""`:` replaces a part of a string, counted in bytes."""

from dataclasses import dataclass

from schemas.errors import TupleError
from udfs.operations.arithmetic import (
    Binary,
    OperationArguments,
    Scalar,
    ScalarOperation,
    argument_type_error,
    read_int32,
)
from udfs.operations.msgpack_kinds import BIN, KIND, STR
from udfs.operations.msgpack_walk import skip, string_bounds
from udfs.operations.update_rules import Rules

ER_UPDATE_SPLICE = 25
"""Tarantool's error code."""


@dataclass(frozen=True, slots=True)
class Splice:
    """The arguments of `:`: remove `cut` bytes from the 0-based `offset` on, and put `paste` there.

    A negative offset counts from the end; a negative `cut` leaves that many bytes at the end.
    """

    offset: int
    cut: int
    paste: bytes


def splice_error(field: str) -> TupleError:
    """Return the error `ER_UPDATE_SPLICE`: the offset is before the start of the string."""
    return TupleError(f"SPLICE error on field {field}: offset is out of bound", code=ER_UPDATE_SPLICE)


def _read_splice(arguments: OperationArguments) -> Splice:
    code, field, data, pos = arguments.code, arguments.field, arguments.data, arguments.begin
    offset = read_int32(data, pos, arguments.rules)
    if offset is None:
        raise argument_type_error(code, field, "an integer")
    if offset >= 0:
        offset -= arguments.index_base
        if offset < 0:
            raise splice_error(field)
    pos = skip(data, pos)
    cut = read_int32(data, pos, arguments.rules)
    if cut is None:
        raise argument_type_error(code, field, "an integer")
    pos = skip(data, pos)
    if KIND[data[pos]] != STR and not (arguments.rules.splices_binary and KIND[data[pos]] == BIN):
        raise argument_type_error(code, field, "a string")
    start, end = string_bounds(data, pos)
    return Splice(offset, cut, data[start:end])


def splice_value(code: str, field: str, old: Scalar | None, splice: Splice, rules: Rules) -> Scalar:
    """Return the string or binary `old` after `:`.

    An offset past its end means its end; an offset before its start is an error.
    """
    if isinstance(old, Binary) and rules.splices_binary:
        return Binary(_splice_bytes(field, old.value, splice))
    if not isinstance(old, bytes):
        raise argument_type_error(code, field, "a string")
    return _splice_bytes(field, old, splice)


def _splice_bytes(field: str, text: bytes, splice: Splice) -> bytes:
    size, offset = len(text), splice.offset
    if offset < 0:
        offset += size + 1
        if offset < 0:
            raise splice_error(field)
    offset = min(offset, size)
    rest = size - offset
    cut = max(rest + splice.cut, 0) if splice.cut < 0 else min(splice.cut, rest)
    whole = memoryview(text)  # its slices are not copies
    return b"".join((whole[:offset], splice.paste, whole[offset + cut :]))


SPLICE = ScalarOperation(5, _read_splice, splice_value)
