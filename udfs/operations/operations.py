"""Applies UPDATE and UPSERT to a tuple, byte for byte as the server does.

Source: `src/box/xrow_update.c`. Operations apply one after another, each to the result of the previous ones; untouched
values keep their bytes, so a number that is not in its shortest form stays so. `udfs.versions.fold` applies the rows
of a key.

memtx checks the result before it writes the log, so all its rows fit their format. Vinyl logs an UPSERT without reading
the tuple; since 2.6.1 a later read skips an UPSERT whose result does not fit (gh-1622, `src/box/vy_upsert.c`):
`fits_format`.
Types of secondary index parts, constraints and the number of fields are not checked.

A second operation inside a field that already has one by a path (`src/box/xrow_update_route.c`): the common part of the
paths becomes a route, whose bytes stay; where they diverge, the container becomes an updated array or map with the
first operation as its child.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.errors import TupleError, UnsupportedError
from schemas.space import Field
from udfs.operations.decimals import EXTENSION
from udfs.operations.json_path import END, NUMBER, STRING, Lexer, Token
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
    join,
    skip,
    split,
    string,
)
from udfs.operations.operation import Operation, decode_operations, operation_groups
from udfs.operations.tuple_format import FormatNode, TupleFormat
from udfs.operations.update_bar import Bar, apply_bar, element_at, node_at
from udfs.operations.update_containers import Array, Map, TupleFields
from udfs.operations.update_field import Computed, Update, UpdatedField, double_update
from udfs.operations.update_key import is_same_key
from udfs.operations.update_rules import Rules


class Route:
    """The common path of all operations inside a field, and the container where they diverge."""

    __slots__ = ("hop", "path")

    def __init__(self, path: bytes, hop: UpdatedField) -> None:
        self.path, self.hop = path, hop

    def render(self, field: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the field: the bytes before the container, the container, the bytes after it."""
        data = field.data
        inner = self.hop.render(node_at(node, self.path))
        return data[field.start : self.hop.start] + inner + data[self.hop.end : field.end]


def follow_route(op: Operation, field: UpdatedField, route: Route, rules: Rules) -> UpdatedField:
    """Return the field in which an operation continues: the end of the route, or where its path leaves the route.

    Paths are compared as bytes, as in the server: a path `.abc` follows a route `.ab` too, and then continues as `c`.
    """
    lexer = op.lexer
    if lexer is None:
        raise op.no_such_field()
    if lexer.path.startswith(route.path, lexer.offset):
        lexer.offset += len(route.path)
        return route.hop
    return split_path(op, field, rules)


def split_path(op: Operation, field: UpdatedField, rules: Rules) -> UpdatedField:
    """Split the path of a field's bar or route where the path of a new operation leaves it; return the container there.

    Raises
    ------
    TupleError
        The two paths do not diverge, or the container does not accept the token of the new one.
    UnsupportedError
        The server's own result is undefined or not known.

    """
    update = field.update
    if not isinstance(update, Bar | Route) or op.lexer is None:
        raise op.no_such_field()
    old = Lexer(update.path)
    parent = field.start
    last: tuple[int, int, Token] | None = None
    while True:
        shared, offset = old.offset, op.lexer.offset
        mine, theirs = op.lexer.next(), old.next()
        if theirs.kind == END:
            if not rules.can_repeat or last is None:
                raise _same_path_error(op, mine, rules)
            # The first path is a prefix of the second or equal to it, so they diverge at its last token.
            shared, parent, mine = last
            theirs, op.lexer.offset = mine, offset
            break
        if mine != theirs:
            break
        found = element_at(field.data, parent, mine)
        if found is None:
            # Only a key or element that the first operation added is not in the old bytes.
            if not rules.can_repeat:
                raise UnsupportedError(
                    f"an operation on {op.field}, which another operation of the request has added"
                )
            break
        last, parent = (shared, parent, mine), found
    container = _new_container(op, field.data, parent, mine)
    _add_child(container, theirs, _update_below(update, old.offset, field, rules), rules)
    op.token, op.is_consumed = mine, False
    if not shared:
        field.update = container
        return field
    hop = UpdatedField(field.data, parent, skip(field.data, parent), container)
    field.update = Route(update.path[:shared], hop)
    return hop


def _same_path_error(op: Operation, mine: Token, rules: Rules) -> TupleError | UnsupportedError:
    """Return the error for an operation whose path equals that of an earlier one, or begins with it."""
    if rules.can_repeat:
        return UnsupportedError(f"several operations on {op.field} or inside it, under one path")
    if mine.kind != END:
        return UnsupportedError(
            f"an operation inside {op.field}, which another operation of the request has changed"
        )
    return double_update(op)


def _update_below(update: Bar | Route, offset: int, field: UpdatedField, rules: Rules) -> UpdatedField:
    """Return the field with its update as the child of a container: the path is cut at `offset`."""
    rest = update.path[offset:]
    if isinstance(update, Route):
        if rest:
            return UpdatedField(field.data, field.start, field.end, Route(rest, update.hop))
        return update.hop
    bar = Bar(update.op, rest)
    bar.code, bar.parent, bar.key, bar.value = update.code, update.parent, update.key, update.value
    bar.point, bar.point_end = update.point, update.point_end
    result: Update = bar
    if rules.can_repeat and not rest and bar.value is not None:
        result = Computed(bar.value)
    return UpdatedField(field.data, field.start, field.end, result)


def _new_container(op: Operation, data: bytes, pos: int, mine: Token) -> Array | Map:
    kind = KIND[data[pos]]
    if kind == ARRAY:
        if mine.kind != NUMBER:
            raise op.update_error("can not update array by non-integer index")
        return Array(data, pos)
    if kind == MAP:
        if mine.kind != STRING:
            raise op.update_error("can not update map by non-string key")
        return Map(data, pos, skip(data, pos))
    raise op.no_such_field()


def _add_child(container: Array | Map, token: Token, child: UpdatedField, rules: Rules) -> None:
    """Put the update of the earlier operation at its token in the new container."""
    update = child.update
    if isinstance(container, Map) and token.kind != STRING:
        raise UnsupportedError("two operations in a map, one of them by an integer key")
    if isinstance(update, Bar) and not update.path and update.code in ("!#=" if rules.can_repeat else "!#"):
        # It changes the container itself, so it is applied there again, as if the request had named it by number.
        update.op.token, update.op.is_consumed = token, False
        container.apply(update.op, rules)
        return
    found = container.items[token.index] if isinstance(container, Array) else container.find(token.key)
    if found is None:
        raise UnsupportedError("an operation below a key that is not in the tuple")
    found.update = update


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


def fits_format(values: Sequence[bytes], fields: Sequence[Field], rules: Rules) -> bool:
    """Return whether encoded fields have the types of a format, and missing ones are nullable; an unknown type fits."""
    have_types = all(_has_type(value, one, rules) for value, one in zip(values, fields, strict=False))
    return have_types and all(one.is_nullable for one in fields[len(values) :])


def _has_type(value: bytes, field: Field, rules: Rules) -> bool:
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
        The server's result is not known; the reason names the case.

    """
    return join(updated_fields(split(old), operations, index_base, fmt))


def updated_fields(fields: list[bytes], operations: bytes, index_base: int, fmt: TupleFormat) -> list[bytes]:
    """Return the encoded fields of a tuple after an UPDATE, as `apply_update` does for a whole tuple."""
    tree = TupleFields(fields)
    for op in decode_operations(operations, index_base, fmt):
        _perform(op, tree, fmt.rules)
    new = tree.rendered(fmt.root)
    if not is_same_key(fields, new, fmt.key):
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
        The server's result is not known; the reason names the case.

    """
    if old is not None:
        fields = split(old)
        upserted = upserted_fields(fields, operations, index_base, fmt)
        return old if upserted is fields else join(upserted)
    first, *rest = operation_groups(operations)
    decode_operations(first, index_base, fmt)
    if not rest:
        return new
    fields = split(new)
    upserted = _apply_groups(fields, rest, index_base, fmt)
    return new if upserted is fields else join(upserted)


def upserted_fields(fields: list[bytes], operations: bytes, index_base: int, fmt: TupleFormat) -> list[bytes]:
    """Return the encoded fields of a tuple after an UPSERT; the same list if nothing changes."""
    return _apply_groups(fields, operation_groups(operations), index_base, fmt)


def _apply_groups(
    fields: list[bytes], groups: Iterable[bytes], index_base: int, fmt: TupleFormat
) -> list[bytes]:
    for group in groups:
        fields = _apply_group(fields, group, index_base, fmt)
    return fields


def _apply_group(old: list[bytes], operations: bytes, index_base: int, fmt: TupleFormat) -> list[bytes]:
    decoded = decode_operations(operations, index_base, fmt)
    tree, skipped = TupleFields(old), 0
    for op in decoded:
        try:
            _perform(op, tree, fmt.rules)
        except TupleError:
            skipped += 1
    result = tree.rendered(fmt.root)
    if fmt.checked and not fits_format(result, fmt.checked, fmt.rules):
        raise UnsupportedError("an UPSERT in a vinyl space whose result does not fit the format")
    if is_same_key(old, result, fmt.key):
        return result
    if skipped and any(op.is_from_end for op in decoded):
        # The server checks the key by field numbers that count skipped operations as done.
        raise UnsupportedError(
            "an UPSERT that skips operations, counts fields from the end, and changes the key"
        )
    return old


def _perform(op: Operation, tree: TupleFields, rules: Rules) -> None:
    field = tree.apply(op, rules)
    while field is not None:
        update = field.update
        if isinstance(update, Array | Map):
            field = update.apply(op, rules)
        elif update is None:
            apply_bar(op, field, rules)
            return
        elif isinstance(update, Bar):
            field = split_path(op, field, rules)
        elif isinstance(update, Route):
            field = follow_route(op, field, update, rules)
        else:
            raise op.no_such_field() if rules.can_repeat else double_update(op)
