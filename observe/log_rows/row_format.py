"""Formats rows of logs, and MessagePack, for people and programs.

A row becomes one line of text or JSON. JSON has the columns of Tarantool's `xlog.pairs`. Values without a JSON type
become text: decimals, uuids and datetimes in their usual form, bytes that are not UTF-8 as {"base64": ...}, non-finite
numbers by name. `tuple_text` and `escape_unprintable` never raise an error, whatever bytes a log has: they escape
control characters and characters that change the writing direction, as Python's `repr` does.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack

from observe.log_rows.catalog import LoggedSpace
from observe.log_rows.read import RowWithContext
from schemas.errors import TupleError
from udfs.before_replace.row import decode, encode

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_json_value(value: Any) -> Any:
    """Convert a value decoded from MessagePack to types that JSON has."""
    if isinstance(value, Mapping):
        return {_json_object_key(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item) for item in value]
    return _json_scalar(value)


def _json_scalar(value: Any) -> Any:
    converted = value
    if isinstance(value, str) and not _is_utf8(value):
        converted = _base64_object(value.encode("utf-8", "surrogateescape"))
    elif isinstance(value, bytes):
        converted = _base64_object(value)
    elif isinstance(value, msgpack.ExtType):
        converted = {"ext": value.code, **_base64_object(value.data)}
    elif isinstance(value, datetime):
        converted = value.isoformat()
    elif isinstance(value, Decimal | UUID) or (isinstance(value, float) and not math.isfinite(value)):
        converted = str(value)
    return converted


def _json_object_key(key: Any) -> str:
    converted = _json_scalar(key)
    return converted if isinstance(converted, str) else json.dumps(converted)


def _is_utf8(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _base64_object(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode("ascii")}


def with_field_names(values: Any, definition: LoggedSpace | None) -> Any:
    """Return a tuple as a dict by field name; fields without a name have their number, counted from 1, as the key.

    The tuple is returned unchanged if no names are known.
    """
    fields = () if definition is None else definition.space.fields
    if not isinstance(values, list) or not fields:
        return values
    names = [one.name for one in fields[: len(values)]]
    return {
        **dict(zip(names, values, strict=False)),
        **{str(n): values[n - 1] for n in range(len(names) + 1, len(values) + 1)},
    }


def time_text(microseconds: int | None) -> str | None:
    """Return a time (microseconds since 1970) in ISO 8601, or as a number if it is out of the calendar's range."""
    if microseconds is None:
        return None
    try:
        return (_UNIX_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    except OverflowError:
        return str(microseconds)


def row_json(logged_row: RowWithContext, origin_uuid: str | None, *, with_tuple_after: bool) -> str:
    """Return a row as one line of JSON."""
    row, space = logged_row.row, logged_row.definition
    columns: dict[str, Any] = {
        **{"file": logged_row.file, "position": row.position, "row": row.row, "type": row.type},
        **{"replica_id": row.replica_id, "origin": origin_uuid, "group_id": row.group_id},
        **{"lsn": row.lsn, "tsn": row.tsn, "is_commit": row.is_commit, "flags": row.flags or None},
        **{"timestamp": time_text(row.timestamp), "space_id": row.space_id},
        **{"space": None if space is None else space.space.name, "index_base": row.index_base},
        **{
            "key": _json_value_of(row.key),
            "tuple": _json_value_of(row.tuple),
            "operations": _json_value_of(row.operations),
        },
    }
    if row.tuple is not None:
        columns["fields"] = with_field_names(columns["tuple"], space)
    if not any((row.key, row.tuple, row.operations)):
        columns["body"] = _json_value_of(row.body)
    document = {name: value for name, value in columns.items() if value is not None}
    if with_tuple_after and row.type in ("UPDATE", "UPSERT") and logged_row.context.is_tuple_known:
        document["result"] = with_field_names(_json_value_of(logged_row.context.tuple_after), space)
    return json.dumps(document, ensure_ascii=False)


def _json_value_of(data: bytes | None) -> Any:
    return None if data is None else to_json_value(decode(data))


def row_text(logged_row: RowWithContext, origin_uuid: str | None, *, with_tuple_after: bool) -> str:
    """Return a row as one line of text."""
    row, definition = logged_row.row, logged_row.definition
    where = "" if row.space_id is None else f" {definition.space.name if definition else row.space_id}"
    who = "-" if row.replica_id is None else str(row.replica_id)
    end = "" if row.is_commit else " +"
    when = (time_text(row.timestamp) or "-").replace("+00:00", "Z")
    line = f"{when} {who}/{row.lsn if row.lsn is not None else '-'}{end} {row.type}{where}"
    parts: Sequence[tuple[str, Any]] = (
        ("key", _json_value_of(row.key)),
        ("", with_field_names(_json_value_of(row.tuple), definition)),
        ("operations", _json_value_of(row.operations)),
    )
    line += "".join(
        f" {name} {_json_line(value)}" if name else f" {_json_line(value)}"
        for name, value in parts
        if value is not None
    )
    if not any((row.key, row.tuple, row.operations)) and row.body is not None:
        line += f" {_json_line(_json_value_of(row.body))}"
    if with_tuple_after and row.type in ("UPDATE", "UPSERT"):
        tuple_after = with_field_names(_json_value_of(logged_row.context.tuple_after), definition)
        line += f" -> {_json_line(tuple_after)}" if logged_row.context.is_tuple_known else " -> not known"
    return line if origin_uuid is None else f"{line}  # {origin_uuid}"


def _json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tuple_text(data: bytes) -> str:
    """Return MessagePack as text, or as hexadecimal digits if the bytes are malformed or Python cannot show the value.

    Python cannot show maps whose keys are containers, and values that are nested a thousand times.
    """
    try:
        return str(
            msgpack.unpackb(
                data, strict_map_key=False, unicode_errors="surrogateescape", ext_hook=_shown_extension
            )
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return data.hex()


class _Shown(str):
    """A text that is shown without quotation marks, also within a list."""

    __slots__ = ()
    __repr__ = str.__str__


def _shown_extension(code: int, body: bytes) -> Any:
    """Return a decimal, uuid or datetime as it is usually written; other extensions, and inexact ones, as they are."""
    extension = msgpack.ExtType(code, body)
    try:
        value = decode(msgpack.packb(extension))
        is_exact = encode(value) == msgpack.packb(extension)
    except (ValueError, TypeError, ArithmeticError, TupleError):
        return extension
    if not is_exact or isinstance(value, msgpack.ExtType):
        return extension
    return _Shown(value.isoformat() if isinstance(value, datetime) else value)


def escape_unprintable(text: str) -> str:
    """Return a text with its unprintable characters, except line breaks and tabs, escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
