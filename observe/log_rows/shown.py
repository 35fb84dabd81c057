"""Formats rows of a log: one line of text or JSON each.

JSON has the columns of Tarantool's own `xlog.pairs`; values without a JSON type become text: decimals, uuids and
datetimes in their usual form, bytes that are not UTF-8 as {"base64": ...}, non-finite numbers by name.
"""

from __future__ import annotations

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
from observe.log_rows.read import LoggedRow
from udfs.before_replace.row import decode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain(value: Any) -> Any:
    """Return a decoded value in JSON's types."""
    if isinstance(value, Mapping):
        return {_name(key): plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    found = value
    if isinstance(value, str) and not _is_text(value):
        found = _base64(value.encode("utf-8", "surrogateescape"))
    elif isinstance(value, bytes):
        found = _base64(value)
    elif isinstance(value, msgpack.ExtType):
        found = {"ext": value.code, **_base64(value.data)}
    elif isinstance(value, datetime):
        found = value.isoformat()
    elif isinstance(value, Decimal | UUID) or (isinstance(value, float) and not math.isfinite(value)):
        found = str(value)
    return found


def _name(key: Any) -> str:
    found = _scalar(key)
    return found if isinstance(found, str) else json.dumps(found)


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _base64(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode("ascii")}


def named(values: Any, definition: LoggedSpace | None) -> Any:
    """Return a tuple as a map by field names, or unchanged if they are not known."""
    fields = () if definition is None else definition.space.fields
    if not isinstance(values, list) or not fields:
        return values
    names = [one.name for one in fields[: len(values)]]
    return {
        **dict(zip(names, values, strict=False)),
        **{str(n): values[n - 1] for n in range(len(names) + 1, len(values) + 1)},
    }


def time_of(microseconds: int | None) -> str | None:
    """Return a time in ISO 8601, to the microsecond; out of the calendar's range as a number."""
    if microseconds is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    except OverflowError:
        return str(microseconds)


def json_of(found: LoggedRow, origin: str | None, *, with_result: bool) -> str:
    """Return one line of JSON.

    Parameters
    ----------
    found : LoggedRow
    origin : str or None
        The uuid of the row's instance.
    with_result : bool
        Whether the tuple after an UPDATE or UPSERT is included.

    """
    row, space = found.row, found.definition
    columns: dict[str, Any] = {
        **{"file": found.file, "position": row.position, "row": row.row, "type": row.type},
        **{"replica_id": row.replica_id, "origin": origin, "group_id": row.group_id},
        **{"lsn": row.lsn, "tsn": row.tsn, "is_commit": row.is_commit, "flags": row.flags or None},
        **{"timestamp": time_of(row.timestamp), "space_id": row.space_id},
        **{"space": None if space is None else space.space.name, "index_base": row.index_base},
        **{"key": _plain(row.key), "tuple": _plain(row.tuple), "operations": _plain(row.operations)},
    }
    if row.tuple is not None:
        columns["fields"] = named(columns["tuple"], space)
    if not any((row.key, row.tuple, row.operations)):
        columns["body"] = _plain(row.body)
    kept = {name: value for name, value in columns.items() if value is not None}
    if with_result and row.type in ("UPDATE", "UPSERT") and found.taken.is_known:
        kept["result"] = named(_plain(found.taken.after), space)
    return json.dumps(kept, ensure_ascii=False)


def _plain(data: bytes | None) -> Any:
    return None if data is None else plain(decode(data))


def text_of(found: LoggedRow, origin: str | None, *, with_result: bool) -> str:
    """Return one line of text; parameters as in `json_of`."""
    row, definition = found.row, found.definition
    where = "" if row.space_id is None else f" {definition.space.name if definition else row.space_id}"
    who = "-" if row.replica_id is None else str(row.replica_id)
    end = "" if row.is_commit else " +"
    when = (time_of(row.timestamp) or "-").replace("+00:00", "Z")
    line = f"{when} {who}/{row.lsn if row.lsn is not None else '-'}{end} {row.type}{where}"
    parts: Sequence[tuple[str, Any]] = (
        ("key", _plain(row.key)),
        ("", named(_plain(row.tuple), definition)),
        ("operations", _plain(row.operations)),
    )
    line += "".join(
        f" {name} {_line(value)}" if name else f" {_line(value)}"
        for name, value in parts
        if value is not None
    )
    if not any((row.key, row.tuple, row.operations)) and row.body is not None:
        line += f" {_line(_plain(row.body))}"
    if with_result and row.type in ("UPDATE", "UPSERT"):
        after = named(_plain(found.taken.after), definition)
        line += f" -> {_line(after)}" if found.taken.is_known else " -> not known"
    return line if origin is None else f"{line}  # {origin}"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
