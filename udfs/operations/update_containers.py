"""Arrays and maps in which several elements are updated, or whose size changes.

Source: `src/box/xrow_update_array.c` and `src/box/xrow_update_map.c`. Such a container is rewritten: its header in the
shortest form and, in a map, the updated keys first (the last touched one in front), then the unchanged others.

Each `apply` performs the operation if its path ends here, and else returns the element in which it continues.
`udfs.operations.update_bar` handles a container with a single operation by a path.
"""

from __future__ import annotations

from schemas.errors import TupleError
from udfs.operations.json_path import NUMBER, STRING, Token
from udfs.operations.msgpack_walk import (
    KIND,
    STR,
    encode_array,
    encode_map,
    encode_string,
    header,
    skip,
    string,
)
from udfs.operations.operation import Operation
from udfs.operations.tuple_format import FormatNode
from udfs.operations.update_field import UpdatedField, assign, change_scalar
from udfs.operations.update_rules import Rules

NULL = b"\xc0"

GAP_MAX = 1 << 24
"""Greatest number of nulls to add; more than a server's tuple can hold, so a request for more is an error."""


class Array:
    """An updated array: one `Field` per element, in their order after the operations so far."""

    __slots__ = ("items",)

    def __init__(self, data: bytes, start: int) -> None:
        self.items: list[UpdatedField] = []
        count, pos = header(data, start)
        for _ in range(count):
            end = skip(data, pos)
            self.items.append(UpdatedField(data, pos, end))
            pos = end

    def render(self, _: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the array; an element's format node is that of its final position."""
        if node is None:
            return encode_array(len(self.items)) + b"".join(item.render(None) for item in self.items)
        encoded = (item.render(node.children.get(number)) for number, item in enumerate(self.items))
        return encode_array(len(self.items)) + b"".join(encoded)

    def apply(self, op: Operation, rules: Rules) -> UpdatedField | None:
        """Apply an operation, or return the element in which it continues."""
        token = op.advance()
        if token.kind != NUMBER:
            raise op.wrong("can't update an array by a non-numeric index")
        size = len(self.items)
        is_new = op.code == "!" or (op.code == "=" and token.index >= size)
        if op.is_terminal and is_new:
            self._insert(op, rules)
            return None
        if op.is_terminal and op.code == "#" and token.index >= size and rules.lenient_delete:
            return None
        number = self._number(op, size)
        if not op.is_terminal:
            op.is_consumed = True
            return self.items[number]
        if op.code == "#":
            del self.items[number : number + op.count]
        elif op.code == "=":
            assign(op, self.items[number], rules)
        else:
            change_scalar(op, self.items[number], rules)
        return None

    def _number(self, op: Operation, count: int) -> int:
        number = op.token.index
        if number < 0:
            number += count
        if not 0 <= number < count:
            raise op.no_such_field()
        op.token = Token(NUMBER, number)
        return number

    def _insert(self, op: Operation, rules: Rules) -> None:
        gap = op.token.index - len(self.items)
        if gap > 0 and op.is_root and rules.autofill:
            if gap > GAP_MAX:
                raise TupleError(f"{gap} nulls do not fit into a tuple", code=2)
            self.items += [UpdatedField(NULL, 0, 1) for _ in range(gap)]
        self.items.insert(self._number(op, len(self.items) + 1), UpdatedField(op.data, op.start, op.end))


class _Item:
    """A touched key (None: removed, or none yet), its value, and the untouched pairs after it."""

    __slots__ = ("field", "key", "tail", "tail_end")

    def __init__(self, key: bytes | None, field: UpdatedField | None, tail: int, tail_end: int) -> None:
        self.key, self.field, self.tail, self.tail_end = key, field, tail, tail_end


class Map:
    """An updated map: touched keys, newest first, each with the untouched pairs that followed it."""

    __slots__ = ("count", "data", "items")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.data = data
        self.count, first = header(data, start)
        self.items = [_Item(None, None, first, end)] if self.count else []

    def render(self, _: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the map: touched pairs, then the untouched ones."""
        parts = [encode_map(self.count)]
        for item in self.items:
            if item.key is not None and item.field is not None:
                inner = node.children.get(item.key) if node is not None else None
                parts += (encode_string(item.key), item.field.render(inner))
        parts += (self.data[item.tail : item.tail_end] for item in self.items)
        return b"".join(parts)

    def find(self, key: bytes) -> UpdatedField | None:
        """Return the value of a string key and mark the key as touched; None if the map has no such key."""
        for item in self.items:
            if item.key == key:
                return item.field
        for item in self.items:
            pos = item.tail
            while pos < item.tail_end:
                value = skip(self.data, pos)
                end = skip(self.data, value)
                if KIND[self.data[pos]] == STR and self._text(pos) == key:
                    return self._touch(item, key, pos, UpdatedField(self.data, value, end))
                pos = end
        return None

    def _text(self, pos: int) -> bytes:
        start, end = string(self.data, pos)
        return self.data[start:end]

    def _touch(self, item: _Item, key: bytes, pos: int, field: UpdatedField) -> UpdatedField:
        if pos == item.tail and item.key is None:
            item.key, item.field, item.tail = key, field, field.end
        else:
            self.items.insert(0, _Item(key, field, field.end, item.tail_end))
            item.tail_end = pos
        return field

    def put(self, key: bytes, field: UpdatedField) -> None:
        """Add a key that the map does not have."""
        self.count += 1
        self.items.insert(0, _Item(key, field, 0, 0))

    def _remove(self, key: bytes) -> None:
        for item in self.items:
            if item.key == key:
                item.key = item.field = None
                self.count -= 1

    def apply(self, op: Operation, rules: Rules) -> UpdatedField | None:
        """Apply an operation, or return the value in which it continues."""
        if op.is_consumed and op.advance().kind != STRING:
            raise op.wrong("can't update a map by not a string key")
        key = op.token.key
        field = self.find(key)
        if not op.is_terminal:
            if field is None:
                raise op.no_such_field()
            op.is_consumed = True
            return field
        if op.code == "#" and op.count != 1:
            raise op.wrong("can delete only 1 field from a map in a row")
        if op.code == "!" and field is not None:
            raise op.wrong("the key exists already")
        if field is None:
            self._apply_missing(op)
        elif op.code == "#":
            self._remove(key)
        elif op.code == "=":
            assign(op, field, rules)
        else:
            change_scalar(op, field, rules)
        return None

    def _apply_missing(self, op: Operation) -> None:
        if op.code in "=!":
            self.put(op.token.key, UpdatedField(op.data, op.start, op.end))
        elif op.code != "#":
            raise op.no_such_field()
