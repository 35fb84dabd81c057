"""UPDATE's and UPSERT's operations on a tuple's raw bytes: `= + - & | ^ : ! #`, by number, name or JSON path.

Each operation changes the tuple as the one before it left it. What is not touched keeps its bytes. What one
value becomes is in `tests.oracle.values`.

Source: `src/box/xrow_update.c`, `xrow_update_array.c`, `xrow_update_bar.c`; checked against a real server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracle import mp
from tests.oracle.keys import path_tokens
from tests.oracle.values import OperationError, scalar

NIL = b"\xc0"
FILLS_GAPS_SINCE = (2, 8)
"""From 2.8.1 on `=` and `!` beyond the end fill the gap with nulls, `#` there does nothing (gh-3378)."""


@dataclass(frozen=True)
class FormatField:
    """What an operation needs of a format's field."""

    name: str
    type: str


@dataclass(frozen=True)
class Context:
    """What the operations mean: the space's format, the number of the first field, the server's version."""

    format: Sequence[FormatField] = ()
    index_base: int = 1
    version: tuple[int, int] = (2, 6)


@dataclass
class _Field:
    raw: bytes
    is_changed: bool = False


def update(raw: bytes, operations: bytes, context: Context) -> bytes:
    """Return the tuple after an UPDATE.

    Raises:
        OperationError: Where an operation fails.
    """
    fields = [_Field(one) for one in mp.split_array(raw)]
    for operation in mp.split_array(operations):
        _do(fields, mp.split_array(operation), context)
    return mp.join_array([one.raw for one in fields])


def upsert(raw: bytes, operations: bytes, context: Context) -> bytes:
    """Return the tuple after the operations of an UPSERT: those that fail are passed over."""
    fields = [_Field(one) for one in mp.split_array(raw)]
    for operation in mp.split_array(operations):
        try:
            _do(fields, mp.split_array(operation), context)
        except OperationError:
            continue
    return mp.join_array([one.raw for one in fields])


def _do(fields: list[_Field], operation: list[bytes], context: Context) -> None:
    opcode = mp.decode(operation[0])
    number, path = _resolve(mp.decode(operation[1]), context)
    if path:
        field = fields[_position(number, len(fields))]
        if field.is_changed:
            raise OperationError("double update of a field")
        field.raw = _inside(field.raw, path, opcode, operation[2:], context)
    elif opcode in ("=", "!"):
        _put(fields, number, operation[2], context, is_insert=opcode == "!")
    elif opcode == "#":
        _remove(fields, number, _count(operation[2]), context)
    else:
        _change(fields, number, opcode, operation[2:], context)


def _put(fields: list[_Field], number: int, raw: bytes, context: Context, *, is_insert: bool) -> None:
    if context.version >= FILLS_GAPS_SINCE:
        fields.extend(_Field(NIL) for _ in range(number - len(fields)))
    if is_insert or number == len(fields):
        fields.insert(_position(number, len(fields) + 1), _Field(raw))
    else:
        fields[_position(number, len(fields))] = _Field(raw, is_changed=True)


def _remove(fields: list[_Field], number: int, count: int, context: Context) -> None:
    if number >= len(fields) and context.version >= FILLS_GAPS_SINCE:
        return
    at = _position(number, len(fields))
    del fields[at : at + count]


def _change(fields: list[_Field], number: int, opcode: str, arguments: list[bytes], context: Context) -> None:
    at = _position(number, len(fields))
    if fields[at].is_changed:
        raise OperationError("double update of a field")
    made = scalar(fields[at].raw, opcode, arguments, context.index_base, context.version)
    if at < len(context.format) and context.format[at].type == "double":
        made = mp.encode(mp.decode(made))
    fields[at] = _Field(made, is_changed=True)


def _resolve(target: Any, context: Context) -> tuple[int, list[int | str]]:
    if isinstance(target, int):
        if 0 <= target < context.index_base:
            raise OperationError(f"no field {target}")
        return (target - context.index_base if target >= 0 else target), []
    names = [one.name for one in context.format]
    if target in names:
        return names.index(target), []
    first, *rest = path_tokens(target)
    if isinstance(first, int):
        return first, rest
    if first not in names:
        raise OperationError(f"no field {first}")
    return names.index(first), rest


def _position(number: int, size: int) -> int:
    at = number if number >= 0 else number + size
    if not 0 <= at < size:
        raise OperationError(f"no field {number}")
    return at


def _count(raw: bytes) -> int:
    count = mp.decode(raw)
    if not isinstance(count, int) or count < 1:
        raise OperationError("cannot delete that many fields")
    return count


def _inside(
    raw: bytes, path: list[int | str], opcode: str, arguments: list[bytes], context: Context
) -> bytes:
    """Return a container after an operation at a path below it."""
    token, rest = path[0], path[1:]
    if isinstance(token, int):
        if not mp.is_array(raw):
            raise OperationError("not an array")
        items = mp.split_array(raw)
        if rest:
            items[_position(token, len(items))] = _inside(
                items[_position(token, len(items))], rest, opcode, arguments, context
            )
        else:
            _item(items, token, opcode, arguments, context)
        return mp.join_array(items)
    if not mp.is_map(raw):
        raise OperationError("not a map")
    pairs = mp.split_map(raw)
    at = next((i for i, (key, _) in enumerate(pairs) if mp.is_string(key) and mp.decode(key) == token), None)
    if rest:
        if at is None:
            raise OperationError(f"no key {token}")
        pairs[at] = (pairs[at][0], _inside(pairs[at][1], rest, opcode, arguments, context))
    else:
        _pair(pairs, at, token, opcode, arguments, context)
    return mp.join_map(pairs)


def _item(items: list[bytes], at: int, opcode: str, arguments: list[bytes], context: Context) -> None:
    if opcode == "!" or (opcode == "=" and at == len(items)):
        items.insert(_position(at, len(items) + 1), arguments[0])
        return
    at = _position(at, len(items))
    if opcode == "=":
        items[at] = arguments[0]
    elif opcode == "#":
        del items[at : at + _count(arguments[0])]
    else:
        items[at] = scalar(items[at], opcode, arguments, context.index_base, context.version)


def _pair(
    pairs: list[tuple[bytes, bytes]],
    at: int | None,
    name: str,
    opcode: str,
    arguments: list[bytes],
    context: Context,
) -> None:
    if at is None:
        if opcode not in ("=", "!"):
            raise OperationError(f"no key {name}")
        pairs.insert(0, (mp.encode(name), arguments[0]))
    elif opcode == "!":
        raise OperationError(f"the key {name} exists")
    elif opcode == "#":
        if _count(arguments[0]) != 1:
            raise OperationError("only one key of a map can be deleted")
        del pairs[at]
    else:
        key, old = pairs[at]
        is_set = opcode == "="
        made = arguments[0] if is_set else scalar(old, opcode, arguments, context.index_base, context.version)
        pairs[at] = (key, made)
