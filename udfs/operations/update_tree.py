"""The tree of updated fields: a field's old bytes and its change, and the arrays and maps that are rewritten.

The server applies the operations of a request to a tree over the old tuple and writes the tree at the end
(`src/box/xrow_update_field.h`). This tree has the same shape as the server's, because the shape decides bytes: which
headers and keys are rewritten, and the order of a map's keys. `udfs.operations.update_path` has the nodes of operations
that go into a field by a JSON path.

An array or a map in which several elements are updated, or whose size changes, is rewritten
(`src/box/xrow_update_array.c`, `src/box/xrow_update_map.c`): its header in the shortest form and, in a map, the updated
keys first (the last touched one in front), then the unchanged others. `apply` of a container performs the operation if
its path ends there, else it returns the element in which the operation continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schemas.errors import TupleError, UnsupportedError
from udfs.operations.arithmetic import AS_INTEGER, Number, Scalar, encode, read_scalar
from udfs.operations.json_path import NUMBER, STRING, Token
from udfs.operations.msgpack_walk import (
    encode_array,
    encode_map,
    encode_string,
    find_string_key,
    read_header,
    skip,
)
from udfs.operations.operation import Operation
from udfs.operations.scalars import SCALAR_OPERATIONS
from udfs.operations.scalars.addition import SumOverflowError
from udfs.operations.tuple_format import FormatNode, Step
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
class ComputedValue:
    """The result of a scalar operation, encoded at the end, when the field's final position is known."""

    value: Scalar

    def render(self, _: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the encoding of the result."""
        return encode_at(self.value, node)


@dataclass(frozen=True, slots=True)
class AssignedValue:
    """The value of `=`, for servers that accept only another `=` or `#` after it."""

    value: bytes

    def render(self, _field: UpdatedField, _node: FormatNode | None) -> bytes:
        """Return the value in the encoding of the log."""
        return self.value


def encode_at(value: Scalar, node: FormatNode | None) -> bytes:
    """Return the encoding of a result; `node` is its node in the format."""
    if node is not None and node.is_float32:
        raise UnsupportedError(
            "arithmetic on a float32 field", advice="follow the space from a snapshot, or with `=` alone"
        )
    return encode(value, node is not None and node.is_double)


def _node_of_element(node: FormatNode | None, step: Step) -> FormatNode | None:
    return None if node is None else node.child(step)


def compute_scalar(op: Operation, old: Scalar | None, rules: Rules) -> Scalar:
    """Return the result of a scalar operation on a value."""
    return SCALAR_OPERATIONS[op.code].compute(op.code, op.field, old, op.argument, rules)


def apply_scalar(op: Operation, field: UpdatedField, rules: Rules) -> None:
    """Apply a scalar operation to an element of an updated container."""
    before = field.update
    if before is None:
        field.update = ComputedValue(compute_scalar(op, read_scalar(field.data, field.start), rules))
        return
    if not rules.allows_repeated_fields:
        raise repeated_update_error(op)
    try:
        field.update = ComputedValue(
            compute_scalar(op, before.value if isinstance(before, ComputedValue) else None, rules)
        )
    except SumOverflowError as error:
        if error.total is None:
            raise UnsupportedError(
                f"a decimal overflow on {op.field}, which the request has changed before"
            ) from None
        field.update = ComputedValue(Number(AS_INTEGER, error.total))
        raise


def apply_assignment(op: Operation, field: UpdatedField, rules: Rules) -> None:
    """Apply `=` to an element of an updated container; earlier changes of the element are lost."""
    if rules.allows_repeated_fields:
        field.data, field.start, field.end, field.update = op.data, op.start, op.end, None
    else:
        field.update = AssignedValue(op.value)


def repeated_update_error(op: Operation) -> TupleError:
    """Return the error of a second operation on a field, where the server allows only one."""
    return op.update_error("double update of the same field")


NULL = b"\xc0"

GAP_NULLS_MAX = 1 << 20
"""Greatest number of nulls to add; more than a server's tuple can have, so a request for more is an error."""


class Array:
    """An updated array: one `UpdatedField` per element, in their order after the operations so far."""

    __slots__ = ("items",)

    def __init__(self, data: bytes, start: int) -> None:
        self.items: list[UpdatedField] = []
        count, pos = read_header(data, start)
        for _ in range(count):
            end = skip(data, pos)
            self.items.append(UpdatedField(data, pos, end))
            pos = end

    def render(self, _: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the updated array as MessagePack; each element is encoded by the format of its final position."""
        encoded = (item.render(_node_of_element(node, number)) for number, item in enumerate(self.items))
        return encode_array(len(self.items)) + b"".join(encoded)

    def __len__(self) -> int:
        return len(self.items)

    def element(self, number: int) -> UpdatedField:
        """Return an element; the caller may change it in place."""
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
        if op.is_terminal and op.code == "#" and token.index >= size and rules.ignores_missing_deletes:
            return None
        number = self._element_number(op, size)
        if not op.is_terminal:
            op.is_consumed = True
            return self.element(number)
        if op.code == "#":
            self.remove(number, op.count)
        elif op.code == "=":
            apply_assignment(op, self.element(number), rules)
        else:
            apply_scalar(op, self.element(number), rules)
        return None

    def _element_number(self, op: Operation, count: int) -> int:
        number = op.token.index
        if number < 0:
            number += count
        if not 0 <= number < count:
            raise op.no_such_field()
        op.token = Token(NUMBER, number)
        return number

    def _insert(self, op: Operation, rules: Rules) -> None:
        gap = op.token.index - len(self)
        if gap > 0 and op.is_root and rules.fills_gaps:
            if gap > GAP_NULLS_MAX:
                raise TupleError(f"{gap} nulls do not fit into a tuple", code=2)
            self.insert(len(self), [UpdatedField(NULL, 0, 1)] * gap)
        self.insert(self._element_number(op, len(self) + 1), [UpdatedField(op.data, op.start, op.end)])


class TupleFields(Array):
    """The encoded fields of a tuple, with an `UpdatedField` for each field that an operation touches.

    So a request costs a copy of the list, and the decoding of the fields that it touches only.
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
        self._renumber(number, number, len(elements))
        self.encoded[number:number] = [one.data[one.start : one.end] for one in elements]

    def remove(self, number: int, count: int) -> None:
        """Remove some fields."""
        self._renumber(number, number + count, -count)
        del self.encoded[number : number + count]

    def _renumber(self, begin: int, end: int, shift: int) -> None:
        """Forget the changes of the fields `begin` to `end` (excluded); add `shift` to the numbers of later ones."""
        found = ((number, field) for number, field in self.touched.items() if not begin <= number < end)
        self.touched = {number + shift * (number >= end): field for number, field in found}

    def rendered(self, node: FormatNode | None) -> list[bytes]:
        """Return the encoded fields after the operations; `node` is the root of the format."""
        for number, field in self.touched.items():
            self.encoded[number] = field.render(_node_of_element(node, number))
        return self.encoded


class _MapItem:
    """A touched key of a map with its value, and the untouched pairs `data[tail:tail_end]` that follow it.

    The key is None in the item that begins an untouched map, and after the key was removed.
    """

    __slots__ = ("field", "key", "tail", "tail_end")

    def __init__(self, key: bytes | None, field: UpdatedField | None, tail: int, tail_end: int) -> None:
        self.key, self.field, self.tail, self.tail_end = key, field, tail, tail_end


class Map:
    """An updated map: its touched keys, the last touched one first.

    Each item also has the untouched pairs that followed its key in the old encoding.
    """

    __slots__ = ("count", "data", "items")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.data = data
        self.count, first = read_header(data, start)
        self.items = [_MapItem(None, None, first, end)] if self.count else []

    def render(self, _: UpdatedField, node: FormatNode | None) -> bytes:
        """Return the map: touched pairs, then the untouched ones."""
        parts = [encode_map(self.count)]
        for item in self.items:
            if item.key is not None and item.field is not None:
                parts += (encode_string(item.key), item.field.render(_node_of_element(node, item.key)))
        parts += (self.data[item.tail : item.tail_end] for item in self.items)
        return b"".join(parts)

    def find(self, key: bytes) -> UpdatedField | None:
        """Return the value of a string key and mark the key as touched; None if the map has no such key."""
        for item in self.items:
            if item.key == key:
                return item.field
        for item in self.items:
            found = find_string_key(self.data, item.tail, item.tail_end, self.count, key)
            if found is not None:
                pos, value = found
                return self._touch(item, key, pos, UpdatedField(self.data, value, skip(self.data, value)))
        return None

    def _touch(self, item: _MapItem, key: bytes, pos: int, field: UpdatedField) -> UpdatedField:
        """Take the pair at `pos` out of the untouched pairs of `item` and make its key touched; return its value."""
        if pos == item.tail and item.key is None:
            item.key, item.field, item.tail = key, field, field.end
        else:
            self.items.insert(0, _MapItem(key, field, field.end, item.tail_end))
            item.tail_end = pos
        return field

    def put(self, key: bytes, field: UpdatedField) -> None:
        """Add a key that the map does not have."""
        self.count += 1
        self.items.insert(0, _MapItem(key, field, 0, 0))

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
            apply_assignment(op, field, rules)
        else:
            apply_scalar(op, field, rules)
        return None

    def _apply_missing(self, op: Operation) -> None:
        if op.code in "=!":
            self.put(op.token.key, UpdatedField(op.data, op.start, op.end))
        elif op.code != "#":
            raise op.no_such_field()
