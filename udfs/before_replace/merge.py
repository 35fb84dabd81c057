"""Makes one tuple from several versions, for the policies `merge_fields` and `sum`.

Both policies start from the last writer's tuple and replace some of its fields. Fields are matched by name, because two
replicasets' formats may have them at different positions; a field that the last writer's format lacks is left out.
All other fields keep their exact bytes.
"""

from collections.abc import Mapping, Sequence

from schemas.errors import TupleError
from udfs.before_replace.policy import Candidate, Formats
from udfs.operations import arithmetic
from udfs.operations.arithmetic import AS_INTEGER, Number
from udfs.operations.msgpack_kinds import KIND, NIL
from udfs.operations.msgpack_walk import join_tuple, split_tuple
from udfs.operations.scalars.addition import add
from udfs.operations.update_rules import LATEST

_NIL = b"\xc0"


def field_bytes(candidate: Candidate, formats: Formats, name: str) -> bytes | None:
    """Return a field's MessagePack; None if the version has no such field or it is nil."""
    number = formats.field_number(candidate.format_index, name)
    parts = split_tuple(candidate.tuple) if candidate.tuple is not None else []
    if number < 0 or number >= len(parts) or KIND[parts[number][0]] == NIL:
        return None
    return parts[number]


def with_fields(candidate: Candidate, formats: Formats, values: Mapping[str, bytes | None]) -> bytes:
    """Return a version's tuple with the values of some fields, by field name, replaced.

    The value None is written as nil. A missing field before a replaced field is filled with nil.
    """
    if candidate.tuple is None:
        raise TupleError("a deleted version has no fields")
    parts = split_tuple(candidate.tuple)
    for name, value in values.items():
        number = formats.field_number(candidate.format_index, name)
        if number < 0 or (value is None and number >= len(parts)):
            continue
        parts += [_NIL] * (number + 1 - len(parts))
        parts[number] = value if value is not None else _NIL
    return join_tuple(parts)


def merge_fields(
    candidates: Sequence[Candidate],
    formats: Formats,
    sequence_fields: Mapping[str, Sequence[str]],
    sequences: Mapping[str, Sequence[bytes | None]],
) -> bytes:
    """Return the last writer's tuple, with each named field from the version whose sequence of the field is greatest.

    Args:
        sequence_fields: For each merged field, its sequence: the fields that say how new its value is. They are copied
            with it.
        sequences: For each merged field, the value of its sequence in each candidate, as bytes that compare like the
            values (`udfs.keys.sequence`). The greatest value wins; of equal ones the last candidate's.
    """
    values: dict[str, bytes | None] = {}
    for name, members in sequence_fields.items():
        sequence_values = sequences[name]
        newest = max(range(len(candidates)), key=lambda i: (sequence_values[i] or b"", i))
        for member in (name, *members):
            values[member] = field_bytes(candidates[newest], formats, member)
    return with_fields(candidates[-1], formats, values)


def sum_fields(candidates: Sequence[Candidate], formats: Formats, columns: Sequence[str]) -> bytes:
    """Return the last writer's tuple with the sum of some fields over all versions.

    Numbers are added in the order of the versions, as Tarantool's UPDATE adds them; nil is skipped.

    Raises:
        TupleError: A field is not a number, or the sum does not fit the field's type. The error's field `code` has
            Tarantool's error code.
    """
    values: dict[str, bytes | None] = {}
    for name in columns:
        total: Number | None = None
        for candidate in candidates:
            data = field_bytes(candidate, formats, name)
            if data is None:
                continue
            number = arithmetic.read_number(data, 0)
            if number is None:
                raise arithmetic.argument_type_error("+", f"'{name}'", "a number")
            start = Number(AS_INTEGER, 0) if total is None else total
            total = add("+", f"'{name}'", start, number, LATEST)
        as_double = formats.is_double(candidates[-1].format_index, name)
        values[name] = None if total is None else arithmetic.encode(total, as_double)
    return with_fields(candidates[-1], formats, values)
