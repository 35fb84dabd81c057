"""`:` replaces a part of a string, counted in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import TupleError
from udfs.operations.arithmetic import (
    Binary,
    OperationArguments,
    Scalar,
    ScalarOperation,
    arg_type,
    read_int32,
)
from udfs.operations.msgpack_walk import BIN, KIND, STR, skip, string
from udfs.operations.update_rules import Rules

UPDATE_SPLICE = 25
"""`ER_UPDATE_SPLICE`."""


@dataclass(frozen=True, slots=True)
class Splice:
    """OperationArguments of `:`: 0-based offset, bytes to cut, bytes to paste; negative numbers count from the end."""

    offset: int
    cut: int
    paste: bytes


def splice_bound(field: str) -> TupleError:
    """Return `ER_UPDATE_SPLICE`: the offset is before the start of the string."""
    return TupleError(f"SPLICE error on field {field}: offset is out of bound", code=UPDATE_SPLICE)


def _read(given: OperationArguments) -> Splice:
    code, field, data, pos = given.code, given.field, given.data, given.pos
    offset = read_int32(data, pos, given.rules)
    if offset is None:
        raise arg_type(code, field, "an integer")
    if offset >= 0:
        offset -= given.index_base
        if offset < 0:
            raise splice_bound(field)
    pos = skip(data, pos)
    cut = read_int32(data, pos, given.rules)
    if cut is None:
        raise arg_type(code, field, "an integer")
    pos = skip(data, pos)
    if KIND[data[pos]] != STR and not (given.rules.splices_binary and KIND[data[pos]] == BIN):
        raise arg_type(code, field, "a string")
    start, end = string(data, pos)
    return Splice(offset, cut, data[start:end])


def cut_and_paste(code: str, field: str, old: Scalar | None, splice: Splice, rules: Rules) -> Scalar:
    """Return a string or binary after `:`; an offset past its end means its end, one before its start is an error."""
    if isinstance(old, Binary) and rules.splices_binary:
        return Binary(_spliced(field, old.value, splice))
    if not isinstance(old, bytes):
        raise arg_type(code, field, "a string")
    return _spliced(field, old, splice)


def _spliced(field: str, text: bytes, splice: Splice) -> bytes:
    size, offset = len(text), splice.offset
    if offset < 0:
        offset += size + 1
        if offset < 0:
            raise splice_bound(field)
    offset = min(offset, size)
    rest = size - offset
    cut = max(rest + splice.cut, 0) if splice.cut < 0 else min(splice.cut, rest)
    whole = memoryview(text)  # of which a slice is no copy
    return b"".join((whole[:offset], splice.paste, whole[offset + cut :]))


SPLICE = ScalarOperation(5, _read, cut_and_paste)
