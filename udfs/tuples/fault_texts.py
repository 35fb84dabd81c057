"""Says why a tuple cannot be split into fields, or why a value does not fit its column, in words of the user."""

from __future__ import annotations

from schemas.errors import TupleError
from schemas.field_types import ColumnStorage, type_family
from schemas.layout import DECIMAL_PRECISION, TableLayout
from udfs.kernels.values import ABSENT, CLASS_NAMES
from udfs.operations import decimals, msgpack_walk
from udfs.tuples.kernels.columns import INVALID, NOT_EXACT, NOT_UTF8, OUT_OF_RANGE, TOO_LARGE, WRONG_CLASS
from udfs.tuples.kernels.walk import NO_FORMAT, NOT_ARRAY, TRAILING_BYTES

_CONTENTS = {
    ColumnStorage.DECIMAL: "decimal",
    ColumnStorage.DECIMAL_TEXT: "decimal",
    ColumnStorage.UUID: "uuid",
    ColumnStorage.TIMESTAMP: "datetime",
    ColumnStorage.INTERVAL: "interval",
}
"""What the extensions of a column are, by its storage."""

COUNTED = (OUT_OF_RANGE, NOT_EXACT)
"""The statuses of a decimal whose text has a number of digits."""


def walk_fault(code: int, position: int, kind: int, format_index: int) -> str:
    """Return why a tuple cannot be split into fields; fields are counted from 1, as in Tarantool's messages."""
    if code == NO_FORMAT:
        return f"there is no format with index {format_index}"
    if code == NOT_ARRAY:
        return f"the tuple is not an array: {CLASS_NAMES[kind]} found"
    if code == TRAILING_BYTES:
        return "bytes follow the end of the tuple"
    return f"the tuple is not MessagePack at field {position + 1}"


def column_fault(layout: TableLayout, column: int, status: int, format_index: int, digits: int) -> str:
    """Return why the value of a column does not fit; the column after the last is `_extra`.

    Args:
        digits: Of a decimal with a status of `COUNTED`: its digits before the point, or behind it; 0 if not counted.
    """
    if status >= WRONG_CLASS:
        names = [field.name for field in layout.formats[format_index]]
        position = names.index(layout.fields[column].name)
        field, found = layout.formats[format_index][position], status - WRONG_CLASS
        where = f"field {position + 1} ({field.name})"
        if found == ABSENT:
            return f"{where} is missing: {field.type} expected"
        return f"{where}: {field.type} expected, {CLASS_NAMES[found]} found"
    if column == len(layout.fields):
        return f"fields past the format: {_status_text(layout, None, '', '_extra', status, 0)}"
    field = layout.fields[column]
    kind = layout.spark_schema().fields[column].dataType.simpleString()
    text = _status_text(layout, layout.storage_of(field), field.type, kind, status, digits)
    return f"field {field.name}: {text}"


def _status_text(
    layout: TableLayout, storage: ColumnStorage | None, field_type: str, kind: str, status: int, digits: int
) -> str:
    if storage is ColumnStorage.DECIMAL and status in COUNTED:
        scale = int(layout.options.decimal_scale)
        taken, where = (DECIMAL_PRECISION - scale, "before") if status == OUT_OF_RANGE else (scale, "behind")
        count = f"{digits} digits" if digits else "too many digits"
        return (
            f"a decimal of {count} {where} the point; the column, {kind}, takes {taken}; "
            "`types.decimal: string` keeps it"
        )
    if storage is ColumnStorage.LONG and status == OUT_OF_RANGE:
        family = type_family(field_type)
        way_out = f"; `types.{family}: precise` keeps it" if family in ("unsigned", "integer") else ""
        return f"a number beyond the range of {kind}{way_out}"
    if storage is ColumnStorage.TIMESTAMP and status == OUT_OF_RANGE:
        return f"a datetime outside of the years 1 to 9999, which a {kind} has"
    if status == NOT_UTF8 and storage is ColumnStorage.STRING:
        return f"the string is not UTF-8; `spaces.strings: {{{layout.space}: binary}}` keeps its bytes"
    return {
        OUT_OF_RANGE: f"the value is beyond the range of {kind}",
        NOT_EXACT: f"{kind} has no value that is exactly this one",
        INVALID: f"the content of the {_CONTENTS.get(storage, 'extension')} is not valid"
        if storage is not None
        else "the content of an extension is not valid",
        NOT_UTF8: "the string is not UTF-8",
        TOO_LARGE: "the value is too large for a variant",
    }[status]


def counted_digits(data: bytes, position: int, status: int) -> int:
    """Return the digits of the decimal in a field of a tuple: before the point if it is out of range, else behind it.

    0 if they cannot be counted.
    """
    try:
        _, pos = msgpack_walk.read_header(data, 0)
        for _ in range(position):
            pos = msgpack_walk.skip(data, pos)
        value = decimals.read(data, pos)
    except (TupleError, IndexError):
        return 0
    _, digits, exponent = value.as_tuple()
    return max(0, len(digits) + int(exponent) if status == OUT_OF_RANGE else -int(exponent))
