"""Applies one operation to the tree of a tuple's fields, also inside a field by a JSON path.

The first operation of a request in a field becomes a `SingleUpdate` (`src/box/xrow_update_bar.c`): only the changed
value is rewritten, and the header of its container if the number of elements changes; everything else keeps its bytes.
A new key of a map comes first.

A second operation in the same field (`src/box/xrow_update_route.c`) makes a `CommonPath` of the common part of the two
paths, whose bytes stay; where the paths diverge, the container becomes an updated array or map
(`udfs.operations.update_tree`) with the first operation as its child.
"""

from schemas.errors import TupleError, UnsupportedError
from udfs.operations.arithmetic import Scalar, read_scalar
from udfs.operations.json_path import ANY, END, NUMBER, STRING, Lexer, Token, invalid_path
from udfs.operations.msgpack_kinds import ARRAY, INT, KIND, MAP, STR, UINT
from udfs.operations.msgpack_walk import (
    encode_array,
    encode_map,
    encode_string,
    find_string_key,
    read_header,
    read_integer,
    skip,
    skip_many,
    string_bounds,
)
from udfs.operations.operation import Operation
from udfs.operations.tuple_format import FormatNode
from udfs.operations.update_rules import Rules
from udfs.operations.update_tree import (
    Array,
    ComputedValue,
    Map,
    TupleFields,
    Update,
    UpdatedField,
    compute_scalar,
    encode_at,
    repeated_update_error,
)


def element_at(data: bytes, pos: int, token: Token) -> int | None:
    """Return the start of the element of a container that a token names; None if there is no such element.

    A token NUMBER with index i names the element i of an array, or the key i + 1 of a map (`tuple_field_go_to_index`).
    """
    kind = KIND[data[pos]]
    if kind not in (ARRAY, MAP):
        return None
    count, pos = read_header(data, pos)
    if kind == ARRAY:
        if token.kind != NUMBER or token.index >= count:
            return None
        return skip_many(data, pos, token.index)
    if token.kind != NUMBER:
        found = find_string_key(data, pos, len(data), count, token.key)
        return None if found is None else found[1]
    for _ in range(count):
        value = skip(data, pos)
        if KIND[data[pos]] in (UINT, INT) and read_integer(data, pos)[0] == token.index + 1:
            return value
        pos = skip(data, value)
    return None


class SingleUpdate:
    """A single operation inside a field; its path leads to `point` (`XUPDATE_BAR` in the server).

    Attributes:
        parent: Offset in the field's data at which the container of the point starts.
        point, point_end: Offsets of the replaced or removed bytes: start and end, which are equal for an insertion.
        code: `!` adds, `#` removes, `=` replaces; any other code computes.
        key: The key that `!` adds to a map.
        value: The result of a scalar operation.
    """

    __slots__ = ("code", "key", "op", "parent", "path", "point", "point_end", "value")

    def __init__(self, op: Operation, path: bytes) -> None:
        self.op, self.path, self.code = op, path, op.code
        self.parent = self.point = self.point_end = 0
        self.key: bytes | None = None
        self.value: Scalar | None = None

    def render(self, field: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the field after the operation."""
        data = field.data
        if self.code == "!":
            head, first = self._resized_header(data, 1)
            if self.key is not None:
                new = encode_string(self.key) + self.op.value
                return data[field.start : self.parent] + head + new + data[first : field.end]
            new = data[first : self.point] + self.op.value
            return data[field.start : self.parent] + head + new + data[self.point : field.end]
        if self.code == "#":
            head, first = self._resized_header(data, -self.op.count)
            kept = data[first : self.point] + data[self.point_end : field.end]
            return data[field.start : self.parent] + head + kept
        new = self.op.value if self.value is None else encode_at(self.value, node_at(node, self.path))
        return data[field.start : self.point] + new + data[self.point_end : field.end]

    def _resized_header(self, data: bytes, growth: int) -> tuple[bytes, int]:
        """Return the header of the container with `growth` more elements, and where its first element starts."""
        count, first = read_header(data, self.parent)
        is_array = KIND[data[self.parent]] == ARRAY
        return (encode_array if is_array else encode_map)(count + growth), first


def node_at(node: FormatNode | None, path: bytes) -> FormatNode | None:
    """Return the format node at the end of a path from `node`.

    The server reads the indexes of this path as 0-based (`json_tree_lookup_path`), although paths are 1-based.
    """
    lexer = Lexer(path, base=0)
    while node is not None and (token := lexer.next()).kind != END:
        node = node.child(token.index if token.kind == NUMBER else token.key)
    return node


def apply_single(op: Operation, field: UpdatedField, rules: Rules) -> None:
    """Apply an operation whose path continues inside an unchanged field.

    Raises:
        TupleError: The tuple lacks the path, or the operation does not fit the value there; the field does not change.
    """
    lexer = op.lexer
    if lexer is None:
        raise op.no_such_field()
    single = SingleUpdate(op, lexer.path[lexer.offset :])
    token = _follow_path(single, field, lexer)
    data = field.data
    if op.code in "=!":
        if token is not None:
            single.code = "!"
            _find_insertion(single, field, token)
        elif op.code == "!" and KIND[data[single.parent]] == MAP:
            raise op.update_error("the key exists already")
    elif token is not None:
        raise op.no_such_field()
    elif op.code == "#":
        _find_deletion(single, field)
    else:
        single.value = compute_scalar(op, read_scalar(data, single.point), rules)
    field.update = single


def _follow_path(single: SingleUpdate, field: UpdatedField, lexer: Lexer) -> Token | None:
    """Set the point of an update by following its path; return the last token if the tuple lacks only its element."""
    pos: int | None = field.start
    last: Token | None = None
    while (token := lexer.next()).kind != END:
        if last is not None:
            raise single.op.no_such_field()
        if token.kind == ANY:
            raise invalid_path(lexer.path, lexer.symbols - 1)
        single.parent = single.parent if pos is None else pos
        pos = element_at(field.data, single.parent, token)
        if pos is None:
            if single.op.code not in "=!":
                raise single.op.no_such_field()
            last = token
    if pos is not None:
        single.point, single.point_end = pos, skip(field.data, pos)
    return last


def _find_insertion(single: SingleUpdate, field: UpdatedField, token: Token) -> None:
    kind = KIND[field.data[single.parent]]
    if token.kind == STRING:
        if kind != MAP:
            raise single.op.update_error("can not access by key a non-map field")
        single.key = token.key
        return
    if kind != ARRAY:
        raise single.op.update_error("can not access by index a non-array field")
    if token.index > read_header(field.data, single.parent)[0]:
        raise single.op.no_such_field()
    single.point = single.point_end = skip(field.data, single.parent)


def _find_deletion(single: SingleUpdate, field: UpdatedField) -> None:
    data, op = field.data, single.op
    count, pos = read_header(data, single.parent)
    if KIND[data[single.parent]] == ARRAY:
        before = 0
        while pos < single.point:
            pos, before = skip(data, pos), before + 1
        op.count = min(op.count, count - before)
        for _ in range(op.count - 1):
            single.point_end = skip(data, single.point_end)
        return
    if op.count != 1:
        raise op.update_error("can delete only 1 field from a map in a row")
    while (value := skip(data, pos)) != single.point:
        pos = skip(data, value)
    _require_plain_key(op, data[pos : single.point])
    single.point = pos


def _require_plain_key(op: Operation, key: bytes) -> None:
    # Servers before gh-13027 use the size of the path's key: a key in another encoding gives a broken tuple.
    if KIND[key[0]] != STR:
        is_plain = len(key) == 1 and key[0] == 1
    else:
        start, end = string_bounds(key, 0)
        is_plain = key == encode_string(key[start:end])
    if not is_plain:
        raise UnsupportedError(
            f"'#' of the key {key.hex()} by the path {op.field}: servers before 3.9 write a broken tuple",
            advice="take the space from a snapshot",
        )


class CommonPath:
    """The common path of all operations inside a field, and the container where the paths diverge."""

    __slots__ = ("container", "path")

    def __init__(self, path: bytes, container: UpdatedField) -> None:
        self.path, self.container = path, container

    def render(self, field: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the field: the bytes before the container, the container, the bytes after it."""
        data = field.data
        inner = self.container.render(node_at(node, self.path))
        return data[field.start : self.container.start] + inner + data[self.container.end : field.end]


def follow_common_path(op: Operation, field: UpdatedField, common: CommonPath, rules: Rules) -> UpdatedField:
    """Return the field in which an operation continues: at the end of the common path, or where the two paths diverge.

    Paths are compared as bytes, as in the server: a path `.abc` follows a common path `.ab` too, and continues as `c`.
    """
    lexer = op.lexer
    if lexer is None:
        raise op.no_such_field()
    if lexer.path.startswith(common.path, lexer.offset):
        lexer.offset += len(common.path)
        return common.container
    return split_path(op, field, rules)


def split_path(op: Operation, field: UpdatedField, rules: Rules) -> UpdatedField:
    """Split the path of a field's update where the path of a new operation diverges; return the container there.

    Raises:
        TupleError: The two paths do not diverge, or the container does not accept the next token of the new path.
        UnsupportedError: The server's own result is undefined or not known.
    """
    update = field.update
    if not isinstance(update, SingleUpdate | CommonPath) or op.lexer is None:
        raise op.no_such_field()
    old = Lexer(update.path)
    shared, parent, mine, theirs = _find_divergence(op, op.lexer, old, field, rules)
    container = _new_container(op, field.data, parent, mine)
    _add_child(container, theirs, _update_below(update, old.offset, field, rules), rules)
    op.token, op.is_consumed = mine, False
    if not shared:
        field.update = container
        return field
    inner = UpdatedField(field.data, parent, skip(field.data, parent), container)
    field.update = CommonPath(update.path[:shared], inner)
    return inner


def _find_divergence(
    op: Operation, lexer: Lexer, old: Lexer, field: UpdatedField, rules: Rules
) -> tuple[int, int, Token, Token]:
    """Return where the path of an operation diverges from the path of an earlier one.

    Returns:
        shared, parent: Length of the common part of the paths, and start of the container at its end.
        mine, theirs: The next token of the operation's path, and of the earlier operation's path.
    """
    parent = field.start
    last: tuple[int, int, Token] | None = None
    while True:
        shared, offset = old.offset, lexer.offset
        mine, theirs = lexer.next(), old.next()
        if theirs.kind == END:
            if not rules.allows_repeated_fields or last is None:
                raise _same_path_error(op, mine, rules)
            # The first path is a prefix of the second or equal to it, so they diverge at its last token.
            lexer.offset = offset
            return *last, last[2]
        if mine != theirs:
            return shared, parent, mine, theirs
        found = element_at(field.data, parent, mine)
        if found is None:
            # Only a key or element that the first operation added is not in the old bytes.
            if not rules.allows_repeated_fields:
                raise UnsupportedError(
                    f"an operation on {op.field}, which another operation of the request has added"
                )
            return shared, parent, mine, theirs
        last, parent = (shared, parent, mine), found


def _same_path_error(op: Operation, token: Token, rules: Rules) -> TupleError | UnsupportedError:
    """Return the error for an operation whose path equals or continues the path of an earlier operation."""
    if rules.allows_repeated_fields:
        return UnsupportedError(f"several operations on {op.field} or inside it, under one path")
    if token.kind != END:
        return UnsupportedError(
            f"an operation inside {op.field}, which another operation of the request has changed"
        )
    return repeated_update_error(op)


def _update_below(
    update: SingleUpdate | CommonPath, offset: int, field: UpdatedField, rules: Rules
) -> UpdatedField:
    """Return a field for a container inside `field`: its update has only the path from `offset` on."""
    rest = update.path[offset:]
    if isinstance(update, CommonPath):
        if rest:
            return UpdatedField(field.data, field.start, field.end, CommonPath(rest, update.container))
        return update.container
    single = SingleUpdate(update.op, rest)
    single.code, single.parent, single.key, single.value = (
        update.code,
        update.parent,
        update.key,
        update.value,
    )
    single.point, single.point_end = update.point, update.point_end
    result: Update = single
    if rules.allows_repeated_fields and not rest and single.value is not None:
        result = ComputedValue(single.value)
    return UpdatedField(field.data, field.start, field.end, result)


def _new_container(op: Operation, data: bytes, pos: int, token: Token) -> Array | Map:
    """Return the array or map at `pos` for updates; raise if the token, an index or a key, does not fit its kind."""
    kind = KIND[data[pos]]
    if kind == ARRAY:
        if token.kind != NUMBER:
            raise op.update_error("can not update array by non-integer index")
        return Array(data, pos)
    if kind == MAP:
        if token.kind != STRING:
            raise op.update_error("can not update map by non-string key")
        return Map(data, pos, skip(data, pos))
    raise op.no_such_field()


def _add_child(container: Array | Map, token: Token, child: UpdatedField, rules: Rules) -> None:
    """Apply the update of the earlier operation, `child`, to the element that its token names in the new container."""
    update = child.update
    if isinstance(container, Map) and token.kind != STRING:
        raise UnsupportedError("two operations in a map, one of them by an integer key")
    if (
        isinstance(update, SingleUpdate)
        and not update.path
        and update.code in ("!#=" if rules.allows_repeated_fields else "!#")
    ):
        # It changes the container itself, so it is applied there again, as if the request had named it by number.
        update.op.token, update.op.is_consumed = token, False
        container.apply(update.op, rules)
        return
    found = container.items[token.index] if isinstance(container, Array) else container.find(token.key)
    if found is None:
        raise UnsupportedError("an operation below a key that is not in the tuple")
    found.update = update


def apply_operation(op: Operation, tree: TupleFields, rules: Rules) -> None:
    """Apply one operation to the fields of a tuple, after the operations before it.

    Raises:
        TupleError: The operation does not fit the tuple.
        UnsupportedError: The server's result is undefined or not known.
    """
    field = tree.apply(op, rules)
    while field is not None:
        update = field.update
        if isinstance(update, Array | Map):
            field = update.apply(op, rules)
        elif update is None:
            apply_single(op, field, rules)
            return
        elif isinstance(update, SingleUpdate):
            field = split_path(op, field, rules)
        elif isinstance(update, CommonPath):
            field = follow_common_path(op, field, update, rules)
        else:
            raise op.no_such_field() if rules.allows_repeated_fields else repeated_update_error(op)
