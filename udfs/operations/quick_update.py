"""Applies the most frequent operations without the tree: `=` of a field, `+ -` of integers, by number or name.

Only a shortcut: it returns the result of `udfs.operations.operations`, or None for anything that it does not handle or
that can fail. It takes the tuple as encoded fields, so that a chain of changes to a key splits and joins it only once.
"""

from __future__ import annotations

from collections.abc import Mapping

from udfs.operations.msgpack_walk import SIZE, encode_integer, skip

_SET, _ADD, _SUBTRACT = b"=+-"


def _integer(data: bytes) -> int | None:
    code = data[0]
    if code < 0x80:
        return code
    if code >= 0xE0:
        return code - 0x100
    if 0xCC <= code <= 0xD3:
        return int.from_bytes(data[1:], "big", signed=code >= 0xD0)
    return None


def quick_update(
    fields: list[bytes], operations: bytes, index_base: int, names: Mapping[bytes, int], key: frozenset[int]
) -> dict[int, bytes] | None:
    """Return the fields that the operations change, by number, or None if the shortcut does not handle them.

    Parameters
    ----------
    fields : list of bytes
        The tuple's encoded fields; not changed here.
    operations : bytes
        MessagePack array of operations.
    index_base : int
        Number of the first field.
    names : mapping of bytes to int
        Numbers of the named fields.
    key : frozenset of int
        Fields of the primary key, which the shortcut does not handle.

    Returns
    -------
    dict of int to bytes, or None
        The new encoding of each field that changes, so that the cost does not depend on the number of fields.

    """
    try:
        return _apply(fields, operations, index_base, names, key)
    except IndexError:
        return None


def _apply(
    fields: list[bytes], operations: bytes, index_base: int, names: Mapping[bytes, int], key: frozenset[int]
) -> dict[int, bytes] | None:
    count, pos = operations[0] - 0x90, 1
    if not 0 < count < 16:
        return None
    changed: dict[int, bytes] = {}
    for _ in range(count):
        if operations[pos : pos + 2] != b"\x93\xa1":
            return None
        code, head = operations[pos + 2], operations[pos + 3]
        start = pos + 4
        if head < 0x80:
            number = head - index_base
        elif head >= 0xE0:
            number = head - 0x100 + len(fields)
        elif 0xA0 <= head < 0xC0:
            start += head - 0xA0
            number = names.get(operations[pos + 4 : start], -1)
        else:
            return None
        if not 0 <= number < len(fields) or number in key:
            return None
        size = SIZE[operations[start]]
        pos = start + size if size else skip(operations, start)
        value = operations[start:pos] if code == _SET else None
        if value is None and number not in changed:
            value = _sum(fields[number], operations[start:pos], code)
        if value is None:
            return None
        changed[number] = value
    return changed if pos == len(operations) else None


def _sum(old: bytes, argument: bytes, code: int) -> bytes | None:
    left, right = _integer(old), _integer(argument)
    if left is None or right is None or code not in (_ADD, _SUBTRACT):
        return None
    total = left + right if code == _ADD else left - right
    return encode_integer(total) if -(1 << 63) <= total < 1 << 64 else None
