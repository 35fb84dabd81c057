"""Handles a second operation inside a field that already has one by a path: splits the paths where they diverge.

Source: `src/box/xrow_update_route.c`. The common part of the paths becomes a route, whose bytes stay; where they
diverge, the container becomes an updated array or map with the first operation as its child.
"""

from __future__ import annotations

from schemas.errors import TupleError, UnsupportedError
from udfs.operations.json_path import END, NUMBER, STRING, Lexer, Token
from udfs.operations.msgpack_walk import ARRAY, KIND, MAP, skip
from udfs.operations.operation import Operation
from udfs.operations.tuple_format import FormatNode
from udfs.operations.update_bar import Bar, descend, place
from udfs.operations.update_containers import Array, Map
from udfs.operations.update_field import Computed, Update, UpdatedField, double_update
from udfs.operations.update_rules import Rules


class Route:
    """The common path of all operations inside a field, and the container where they diverge."""

    __slots__ = ("hop", "path")

    def __init__(self, path: bytes, hop: UpdatedField) -> None:
        self.path, self.hop = path, hop

    def render(self, field: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the field: the bytes before the container, the container, the bytes after it."""
        data = field.data
        inner = self.hop.render(place(node, self.path))
        return data[field.start : self.hop.start] + inner + data[self.hop.end : field.end]


def follow(op: Operation, field: UpdatedField, route: Route, rules: Rules) -> UpdatedField:
    """Return the field in which an operation continues after the route.

    Paths are compared as bytes, as in the server: a path `.abc` follows a route `.ab` too, and then continues as `c`.
    """
    lexer = op.lexer
    if lexer is None:
        raise op.no_such_field()
    if lexer.path.startswith(route.path, lexer.offset):
        lexer.offset += len(route.path)
        return route.hop
    return branch(op, field, rules)


def branch(op: Operation, field: UpdatedField, rules: Rules) -> UpdatedField:
    """Split the path of a field's bar or route where a new operation diverges; return the container there.

    Raises
    ------
    TupleError
        The operation does not diverge from the path, or the container does not accept its token.
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
            if not rules.several or last is None:
                raise _same_path(op, mine, rules)
            # The first path is a prefix of the second or equal to it, so they diverge at its last token.
            shared, parent, mine = last
            theirs, op.lexer.offset = mine, offset
            break
        if mine != theirs:
            break
        found = descend(field.data, parent, mine)
        if found is None:
            # Only a key or element that the first operation added is not in the old bytes.
            if not rules.several:
                raise UnsupportedError(
                    f"an operation on {op.field}, which another operation of the request has added"
                )
            break
        last, parent = (shared, parent, mine), found
    container = _container(op, field.data, parent, mine)
    _plant(container, theirs, _child(update, old.offset, field, rules), rules)
    op.token, op.is_consumed = mine, False
    if not shared:
        field.update = container
        return field
    hop = UpdatedField(field.data, parent, skip(field.data, parent), container)
    field.update = Route(update.path[:shared], hop)
    return hop


def _same_path(op: Operation, mine: Token, rules: Rules) -> TupleError | UnsupportedError:
    if rules.several:
        return UnsupportedError(f"several operations on {op.field} or inside it, under one path")
    if mine.kind != END:
        return UnsupportedError(
            f"an operation inside {op.field}, which another operation of the request has changed"
        )
    return double_update(op)


def _child(update: Bar | Route, offset: int, field: UpdatedField, rules: Rules) -> UpdatedField:
    """Return the field's update as the child of a container; its path keeps only the part below."""
    rest = update.path[offset:]
    if isinstance(update, Route):
        if rest:
            return UpdatedField(field.data, field.start, field.end, Route(rest, update.hop))
        return update.hop
    bar = Bar(update.op, rest)
    bar.code, bar.parent, bar.key, bar.value = update.code, update.parent, update.key, update.value
    bar.point, bar.point_end = update.point, update.point_end
    result: Update = bar
    if rules.several and not rest and bar.value is not None:
        result = Computed(bar.value)
    return UpdatedField(field.data, field.start, field.end, result)


def _container(op: Operation, data: bytes, pos: int, mine: Token) -> Array | Map:
    kind = KIND[data[pos]]
    if kind == ARRAY:
        if mine.kind != NUMBER:
            raise op.wrong("can not update array by non-integer index")
        return Array(data, pos)
    if kind == MAP:
        if mine.kind != STRING:
            raise op.wrong("can not update map by non-string key")
        return Map(data, pos, skip(data, pos))
    raise op.no_such_field()


def _plant(container: Array | Map, token: Token, child: UpdatedField, rules: Rules) -> None:
    update = child.update
    if isinstance(container, Map) and token.kind != STRING:
        raise UnsupportedError("two operations in a map, one of them by an integer key")
    if isinstance(update, Bar) and not update.path and update.code in ("!#=" if rules.several else "!#"):
        # It changes the container itself, so it is applied there again, as if the request had named it by number.
        update.op.token, update.op.is_consumed = token, False
        container.apply(update.op, rules)
        return
    found = container.items[token.index] if isinstance(container, Array) else container.find(token.key)
    if found is None:
        raise UnsupportedError("an operation below a key that is not in the tuple")
    found.update = update
