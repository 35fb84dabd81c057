"""Arrays and maps in which several elements are updated, or whose size changes.

Source: `src/box/xrow_update_array.c` and `src/box/xrow_update_map.c`. Such a container is rewritten: its header in the
shortest form and, in a map, the updated keys first (the last touched one in front), then the unchanged others.

Each `apply` performs the operation if its path ends in the container, else it returns the element of the next step.
`udfs.operations.update_bar` handles a container with a single operation by a path.
"""

from __future__ import annotations

from schemas.errors import TupleError
from udfs.operations.element_search import find_text
from udfs.operations.json_path import NUMBER, STRING, Token
from udfs.operations.msgpack_walk import (
    encode_array,
    encode_map,
    encode_string,
    header,
    skip,
)
from udfs.operations.operation import Operation
from udfs.operations.tuple_format import FormatNode
from udfs.operations.update_field import UpdatedField, assign, change_scalar
from udfs.operations.update_rules import Rules

NULL = b"\xc0"

GAP_MAX = 1 << 20
"""Greatest number of nulls to add; more than a server's tuple can have, so a request for more is an error."""


class Array:
    """An updated array: one `UpdatedField` per element, in their order after the operations so far."""

    __slots__ = ("items",)

    def __init__(self, data: bytes, start: int) -> None:
        self.items: list[UpdatedField] = []
        count, pos = header(data, start)
        for _ in range(count):
            end = skip(data, pos)
            self.items.append(UpdatedField(data, pos, end))
            pos = end

    def render(self, _: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the updated array as MessagePack; each element is checked by the format of its final position."""
        if node is None:
            return encode_array(len(self.items)) + b"".join(item.render(None) for item in self.items)
        encoded = (item.render(node.children.get(number)) for number, item in enumerate(self.items))
        return encode_array(len(self.items)) + b"".join(encoded)

    def __len__(self) -> int:
        return len(self.items)

    def element(self, number: int) -> UpdatedField:
        """Return an element, which the caller may change in place."""
        return self.items[number]

    def insert(self, number: int, elements: list[UpdatedField]) -> None:
        """Insert elements before another one, or after the last."""
        self.items[number:number] = elements

    def remove(self, number: int, count: int) -> None:
        """Remove some elements."""
        del self.items[number : number + count]

    def apply(self, op: Operation, rules: Rules) -> UpdatedField | None:
        """Apply an operation, or return the element in which it continues."""
        token = op.advance()
        if token.kind != NUMBER:
            raise op.update_error("can't update an array by a non-numeric index")
        size = len(self)
        is_new = op.code == "!" or (op.code == "=" and token.index >= size)
        if op.is_terminal and is_new:
            self._insert(op, rules)
            return None
        if op.is_terminal and op.code == "#" and token.index >= size and rules.lenient_delete:
            return None
        number = self._number(op, size)
        if not op.is_terminal:
            op.is_consumed = True
            return self.element(number)
        if op.code == "#":
            self.remove(number, op.count)
        elif op.code == "=":
            assign(op, self.element(number), rules)
        else:
            change_scalar(op, self.element(number), rules)
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
        gap = op.token.index - len(self)
        if gap > 0 and op.is_root and rules.autofill:
            if gap > GAP_MAX:
                raise TupleError(f"{gap} nulls do not fit into a tuple", code=2)
            self.insert(len(self), [UpdatedField(NULL, 0, 1)] * gap)
        self.insert(self._number(op, len(self) + 1), [UpdatedField(op.data, op.start, op.end)])


class TupleFields(Array):
    """The fields of a tuple under update: encoded, with an `UpdatedField` for each that an operation touches.

    So an operation costs as much as the touched fields and the list, not as every field.
    """

    __slots__ = ("encoded", "touched")

    def __init__(self, encoded: list[bytes]) -> None:
        self.encoded = encoded.copy()
        self.touched: dict[int, UpdatedField] = {}

    def __len__(self) -> int:
        return len(self.encoded)

    def element(self, number: int) -> UpdatedField:
        """Return a field, which the caller may change in place."""
        if number not in self.touched:
            data = self.encoded[number]
            self.touched[number] = UpdatedField(data, 0, len(data))
        return self.touched[number]

    def insert(self, number: int, elements: list[UpdatedField]) -> None:
        """Insert unchanged fields before another one, or after the last."""
        self._move(number, number, len(elements))
        self.encoded[number:number] = [one.data[one.start : one.end] for one in elements]

    def remove(self, number: int, count: int) -> None:
        """Remove some fields."""
        self._move(number, number + count, -count)
        del self.encoded[number : number + count]

    def _move(self, begin: int, end: int, by: int) -> None:
        """Forget the changes of the fields `begin <= number < end`, and renumber the touched fields after them."""
        found = ((number, field) for number, field in self.touched.items() if not begin <= number < end)
        self.touched = {number + by * (number >= end): field for number, field in found}

    def rendered(self, node: FormatNode | None) -> list[bytes]:
        """Return the encoded fields after the operations; `node` is the root of the format."""
        for number, field in self.touched.items():
            inner = None if node is None else node.children.get(number)
            self.encoded[number] = field.render(inner)
        return self.encoded


class _Item:
    """A touched key (None: none yet, or removed), its value, and the untouched pairs `data[tail:tail_end]` after it."""

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
            found = find_text(self.data, item.tail, item.tail_end, self.count, key)
            if found is not None:
                pos, value = found
                return self._touch(item, key, pos, UpdatedField(self.data, value, skip(self.data, value)))
        return None

    def _touch(self, item: _Item, key: bytes, pos: int, field: UpdatedField) -> UpdatedField:
        """Take the pair at `pos` out of the untouched pairs of `item` and make its key touched; return its value."""
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
        """Apply an operation, or return the nested value that its path goes into."""
        if op.is_consumed and op.advance().kind != STRING:
            raise op.update_error("can't update a map by not a string key")
        key = op.token.key
        field = self.find(key)
        if not op.is_terminal:
            if field is None:
                raise op.no_such_field()
            op.is_consumed = True
            return field
        if op.code == "#" and op.count != 1:
            raise op.update_error("can delete only 1 field from a map in a row")
        if op.code == "!" and field is not None:
            raise op.update_error("the key exists already")
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
