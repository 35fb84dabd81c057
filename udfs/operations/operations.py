"""Applies UPDATE and UPSERT to a tuple, byte for byte as the server does.

Source: `src/box/xrow_update.c`. Operations apply one after another, each to the result of the previous ones; untouched
values keep their bytes, so a number that is not in its shortest form stays so. `udfs.versions.fold` applies the rows
of a key.
"""

from __future__ import annotations

from schemas.errors import TupleError, UnsupportedError
from udfs.operations.msgpack_walk import split
from udfs.operations.operation import Operation, decode_operations, operation_groups
from udfs.operations.tuple_format import TupleFormat
from udfs.operations.update_bar import Bar, open_bar
from udfs.operations.update_containers import Array, Map
from udfs.operations.update_field import UpdatedField, double_update
from udfs.operations.update_key import is_same_key
from udfs.operations.update_route import Route, branch, follow
from udfs.operations.update_rules import Rules
from udfs.operations.update_shape import fits

PRIMARY_KEY = 94
"""`ER_CANT_UPDATE_PRIMARY_KEY`."""


def apply_update(old: bytes, operations: bytes, index_base: int, fmt: TupleFormat) -> bytes:
    """Return the tuple after an UPDATE.

    Parameters
    ----------
    old : bytes
        The tuple, a MessagePack array.
    operations : bytes
        MessagePack array of operations.
    index_base : int
        Number of the first field: body key 0x15, or 0 if it is absent.
    fmt : TupleFormat
        The format valid at the row, with the rules of the server that executed it.

    Returns
    -------
    bytes
        The new tuple.

    Raises
    ------
    TupleError
        The server would refuse it; `code` is the server's.
    UnsupportedError
        The server's result is not known; named in the reason.

    """
    root = _root(old)
    for op in decode_operations(operations, index_base, fmt):
        _perform(op, root, fmt.rules)
    new = root.render(fmt.root)
    if not is_same_key(old, new, fmt.key):
        raise TupleError(
            "Attempt to modify a tuple field which is part of the primary index", code=PRIMARY_KEY
        )
    return new


def apply_upsert(
    old: bytes | None, new: bytes, operations: bytes, index_base: int, fmt: TupleFormat
) -> bytes:
    """Return the tuple after an UPSERT.

    An operation that does not fit the tuple is skipped (the server logs it); an operation that fits no tuple is an
    error, even if the tuple is inserted. If the result has another primary key, the tuple does not change. A row of
    a vinyl run can have several requests, each a group of operations.

    Parameters
    ----------
    old : bytes or None
        The tuple under the key; None if there is none.
    new : bytes
        The tuple to insert if `old` is None.
    operations, index_base, fmt
        As in `apply_update`.

    Returns
    -------
    bytes
        The tuple.

    Raises
    ------
    TupleError
        The server would refuse it; `code` is the server's.
    UnsupportedError
        The server's result is not known; named in the reason.

    """
    first, *rest = operation_groups(operations)
    result = _upserted(old, new, first, index_base, fmt)
    for group in rest:
        result = _upserted(result, new, group, index_base, fmt)
    return result


def _upserted(old: bytes | None, new: bytes, operations: bytes, index_base: int, fmt: TupleFormat) -> bytes:
    decoded = decode_operations(operations, index_base, fmt)
    if old is None:
        return new
    root, skipped = _root(old), 0
    for op in decoded:
        try:
            _perform(op, root, fmt.rules)
        except TupleError:
            skipped += 1
    result = root.render(fmt.root)
    if fmt.checked and not fits(result, fmt.checked, fmt.rules):
        raise UnsupportedError("an UPSERT in a vinyl space whose result does not fit the format")
    if is_same_key(old, result, fmt.key):
        return result
    if skipped and any(op.is_from_end for op in decoded):
        # The server checks the key by field numbers that count skipped operations as done.
        raise UnsupportedError(
            "an UPSERT that skips operations, counts fields from the end, and changes the key"
        )
    return old


def _root(old: bytes) -> UpdatedField:
    split(old)
    return UpdatedField(old, 0, len(old), Array(old, 0))


def _perform(op: Operation, root: UpdatedField, rules: Rules) -> None:
    field: UpdatedField | None = root
    while field is not None:
        update = field.update
        if isinstance(update, Array | Map):
            field = update.apply(op, rules)
        elif update is None:
            open_bar(op, field, rules)
            return
        elif isinstance(update, Bar):
            field = branch(op, field, rules)
        elif isinstance(update, Route):
            field = follow(op, field, update, rules)
        else:
            raise double_update(op)
