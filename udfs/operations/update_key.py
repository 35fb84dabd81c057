"""Checks whether operations change a tuple's primary key: such an UPDATE is an error, such an UPSERT has no effect.

Values are compared as the index compares them, so a number may change its type. Source: `memtx_space_execute_upsert`
(`src/box/memtx_space.c`), `tuple_compare`. `udfs.keys` has whole columns of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.errors import UnsupportedError
from schemas.space import KeyPart
from udfs.operations.arithmetic import Number, read_number
from udfs.operations.json_path import END, Lexer
from udfs.operations.msgpack_walk import BIN, EXT, KIND, STR, skip, string
from udfs.operations.update_bar import element_at

_BYTE_COLLATIONS = (None, 0, 3)
"""Collations that compare bytes: none at all, and `none` and `binary` of `_collation`."""


def key_fields(parts: Iterable[KeyPart]) -> frozenset[int]:
    """Return the 0-based numbers of the fields with parts of a key."""
    return frozenset(part.field for part in parts)


def is_same_key(old: Sequence[bytes], new: Sequence[bytes], parts: Iterable[KeyPart]) -> bool:
    """Return whether two tuples, as their encoded fields, have the same key.

    Raises
    ------
    UnsupportedError
        A string of the key changed under a collation.

    """
    return all(_is_same_part(_part_value(old, part), _part_value(new, part), part) for part in parts)


def _part_value(fields: Sequence[bytes], part: KeyPart) -> bytes | None:
    if part.field >= len(fields):
        return None
    data = fields[part.field]
    lexer = Lexer(part.path.encode())
    found: int | None = 0
    while found is not None and (token := lexer.next()).kind != END:
        found = element_at(data, found, token)
    return None if found is None else data[found : skip(data, found)]


def _is_same_part(old: bytes | None, new: bytes | None, part: KeyPart) -> bool:
    if old == new or old is None or new is None:
        return old == new
    left, right = read_number(old, 0), read_number(new, 0)
    if isinstance(left, Number) and isinstance(right, Number):
        return left.value == right.value
    if KIND[old[0]] != KIND[new[0]] or KIND[old[0]] not in (STR, BIN, EXT):
        return False
    (old_start, old_end), (new_start, new_end) = string(old, 0), string(new, 0)
    if KIND[old[0]] == EXT:
        return old[old_start - 1 : old_end] == new[new_start - 1 : new_end]
    is_equal = old[old_start:old_end] == new[new_start:new_end]
    if not is_equal and KIND[old[0]] == STR and part.collation not in _BYTE_COLLATIONS:
        raise UnsupportedError(f"an UPSERT that changes a string of the key under collation {part.collation}")
    return is_equal
