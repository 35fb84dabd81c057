"""Applies UPDATE and UPSERT to a tuple, byte for byte as the server does.

Source: `src/box/xrow_update.c`. Operations apply one after another, each to the result of the previous ones; untouched
values keep their bytes, so a number that is not in its shortest form stays so. `udfs.operations.update_path` applies
one operation, `udfs.versions.key_state` the rows of a key. `quick_update` is a shortcut for the most frequent
operations.

The primary key is compared as the index compares it, so a number in it may change its type
(`memtx_space_execute_upsert` in `src/box/memtx_space.c`, `tuple_compare`). An UPDATE that changes the key is an error;
an UPSERT that would change it has no effect.

Memtx checks the result before it writes the log, so all rows of memtx spaces fit their format. Vinyl logs an UPSERT
without reading the tuple; since 2.6.1 a later read skips an UPSERT whose result does not fit the space (gh-1622,
`src/box/vy_upsert.c`), as `udfs.operations.tuple_check` finds it.
"""

from collections.abc import Iterable, Mapping, Sequence

from schemas.errors import TupleError, UnsupportedError
from schemas.space import BYTE_COLLATIONS, KeyPart
from udfs.operations.arithmetic import Number, read_number
from udfs.operations.json_path import END, Lexer
from udfs.operations.msgpack_kinds import BIN, EXT, KIND, SIZE, STR
from udfs.operations.msgpack_walk import encode_integer, join_tuple, skip, split_tuple, string_bounds
from udfs.operations.operation import decode_operations, operations_by_request
from udfs.operations.tuple_format import TupleFormat
from udfs.operations.update_path import apply_operation, element_at
from udfs.operations.update_tree import TupleFields

ER_CANT_UPDATE_PRIMARY_KEY = 94
"""`ER_CANT_UPDATE_PRIMARY_KEY`."""


def apply_update(old: bytes, operations: bytes, index_base: int, fmt: TupleFormat) -> bytes:
    """Return the tuple after an UPDATE.

    Args:
        index_base: Number of the first field: body key 0x15, or 0 if it is absent.
        fmt: The format valid at the row, with the rules of the server that executed it.

    Raises:
        TupleError: The server would refuse it; `code` is the server's.
        UnsupportedError: The server's result is not known; the reason names the case.
    """
    return join_tuple(updated_fields(split_tuple(old), operations, index_base, fmt))


def updated_fields(fields: list[bytes], operations: bytes, index_base: int, fmt: TupleFormat) -> list[bytes]:
    """Return the encoded fields of a tuple after an UPDATE, as `apply_update` does for a whole tuple."""
    tree = TupleFields(fields)
    for op in decode_operations(operations, index_base, fmt):
        apply_operation(op, tree, fmt.rules)
    new = tree.rendered(fmt.root)
    if not is_same_key(fields, new, fmt.primary_key):
        raise TupleError(
            "Attempt to modify a tuple field which is part of the primary index",
            code=ER_CANT_UPDATE_PRIMARY_KEY,
        )
    return new


def apply_upsert(
    old: bytes | None, new: bytes, operations: bytes, index_base: int, fmt: TupleFormat
) -> bytes:
    """Return the tuple after an UPSERT.

    An operation that does not fit the tuple is skipped (the server logs it); an operation that fits no tuple is an
    error, even if the tuple is inserted. If the result has another primary key, or does not fit a vinyl space, the
    tuple does not change. A row of a vinyl run can have several requests (`operations_by_request`).
    """
    if old is not None:
        fields = split_tuple(old)
        upserted = upserted_fields(fields, operations, index_base, fmt)
        return old if upserted is fields else join_tuple(upserted)
    first, *rest = operations_by_request(operations)
    decode_operations(first, index_base, fmt)
    if not rest:
        return new
    fields = split_tuple(new)
    upserted = _upsert_groups(fields, rest, index_base, fmt)
    return new if upserted is fields else join_tuple(upserted)


def upserted_fields(fields: list[bytes], operations: bytes, index_base: int, fmt: TupleFormat) -> list[bytes]:
    """Return the encoded fields of a tuple after an UPSERT; the same list if nothing changes."""
    return _upsert_groups(fields, operations_by_request(operations), index_base, fmt)


def _upsert_groups(
    fields: list[bytes], groups: Iterable[bytes], index_base: int, fmt: TupleFormat
) -> list[bytes]:
    """Return the fields after several UPSERTs; a group has the operations of one (`operations_by_request`)."""
    for group in groups:
        fields = _upsert_group(fields, group, index_base, fmt)
    return fields


def _upsert_group(old: list[bytes], operations: bytes, index_base: int, fmt: TupleFormat) -> list[bytes]:
    decoded = decode_operations(operations, index_base, fmt)
    tree, skipped = TupleFields(old), 0
    for op in decoded:
        try:
            apply_operation(op, tree, fmt.rules)
        except TupleError:
            skipped += 1
    result = tree.rendered(fmt.root)
    if fmt.check is not None and not fmt.check.fits(result, fmt.rules):
        return old
    if is_same_key(old, result, fmt.primary_key):
        return result
    if skipped and any(op.is_from_end for op in decoded):
        # The server computes field numbers for this check as if it had not skipped any operation.
        raise UnsupportedError(
            "an UPSERT that skips operations, counts fields from the end, and changes the key"
        )
    return old


def is_same_key(old: Sequence[bytes], new: Sequence[bytes], parts: Iterable[KeyPart]) -> bool:
    """Return whether two tuples, given as their encoded fields, have the same key.

    Raises:
        UnsupportedError: The strings of a part with a collation differ, so the keys may still be the same.
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
    (old_start, old_end), (new_start, new_end) = string_bounds(old, 0), string_bounds(new, 0)
    if KIND[old[0]] == EXT:
        return old[old_start - 1 : old_end] == new[new_start - 1 : new_end]
    is_equal = old[old_start:old_end] == new[new_start:new_end]
    if not is_equal and KIND[old[0]] == STR and part.collation not in BYTE_COLLATIONS:
        raise UnsupportedError(f"an UPSERT that changes a string of the key under collation {part.collation}")
    return is_equal


_SET, _ADD, _SUBTRACT = b"=+-"


def quick_update(
    fields: list[bytes],
    operations: bytes,
    index_base: int,
    names: Mapping[bytes, int],
    key_fields: frozenset[int],
) -> dict[int, bytes] | None:
    """Return the fields that an UPDATE or UPSERT changes, by number; None if this shortcut does not handle it.

    It handles `=` of a field, and `+` and `-` of integers, by number or name, without the tree. It returns None for
    anything else and for anything that can fail. It takes the tuple as encoded fields, so that a chain of changes of a
    key splits and joins the tuple only once.
    """
    try:
        return _quick_update(fields, operations, index_base, names, key_fields)
    except IndexError:
        return None


def _quick_update(
    fields: list[bytes],
    operations: bytes,
    index_base: int,
    names: Mapping[bytes, int],
    key_fields: frozenset[int],
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
        if not 0 <= number < len(fields) or number in key_fields:
            return None
        size = SIZE[operations[start]]
        pos = start + size if size else skip(operations, start)
        value = operations[start:pos] if code == _SET else None
        if value is None and number not in changed:
            value = _quick_sum(fields[number], operations[start:pos], code)
        if value is None:
            return None
        changed[number] = value
    return changed if pos == len(operations) else None


def _quick_sum(old: bytes, argument: bytes, code: int) -> bytes | None:
    left, right = _quick_integer(old), _quick_integer(argument)
    if left is None or right is None or code not in (_ADD, _SUBTRACT):
        return None
    total = left + right if code == _ADD else left - right
    return encode_integer(total) if -(1 << 63) <= total < 1 << 64 else None


def _quick_integer(data: bytes) -> int | None:
    code = data[0]
    if code < 0x80:
        return code
    if code >= 0xE0:
        return code - 0x100
    if 0xCC <= code <= 0xD3:
        return int.from_bytes(data[1:], "big", signed=code >= 0xD0)
    return None
