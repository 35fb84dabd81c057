"""A tuple as a custom function sees it: read fields by number or name, and make changed copies.

Values are plain Python: int, float, str, bytes, bool, None, list, dict, `decimal.Decimal`, `uuid.UUID`, aware
`datetime`; extensions that have none of these are `msgpack.ExtType`. A field that a function does not replace keeps
its exact bytes. Strings that are not UTF-8 are read with surrogate escapes, and written with their old bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack

from udfs.operations import decimals
from udfs.operations.msgpack_walk import join_tuple, split_tuple

_DECIMAL, _UUID, _DATETIME = 1, 2, 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(Sequence[Any]):
    """One immutable tuple."""

    __slots__ = ("_parts", "data", "layout", "names")

    def __init__(self, data: bytes, names: tuple[str, ...], layout: int = 0) -> None:
        self.data, self.names, self.layout = data, names, layout
        self._parts = split_tuple(data)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, field: Any) -> Any:
        if isinstance(field, slice):
            return [decode(part) for part in self._parts[field]]
        if isinstance(field, str):
            number = self._field_number(field)
            return decode(self._parts[number]) if number < len(self._parts) else None
        return decode(self._parts[field])

    def __iter__(self) -> Iterator[Any]:
        return (decode(part) for part in self._parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return repr(list(self))

    def _field_number(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"there is no field {name!r}")
        return self.names.index(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by name; `default` if it is nil or there is no such field."""
        value = self[name] if name in self.names else None
        return default if value is None else value

    def update(self, **values: Any) -> Row:
        """Return a copy with some fields replaced."""
        parts = list(self._parts)
        for name, value in values.items():
            number = self._field_number(name)
            parts += [b"\xc0"] * (number + 1 - len(parts))
            parts[number] = encode(value)
        return Row(join_tuple(parts), self.names, self.layout)

    def with_values(self, values: Sequence[Any]) -> Row:
        """Return a tuple of the same format with `values` as all of its fields; unchanged values keep their bytes."""
        parts = [
            self._parts[i] if i < len(self._parts) and _is_same_value(self[i], value) else encode(value)
            for i, value in enumerate(values)
        ]
        return Row(join_tuple(parts), self.names, self.layout)


def have_same_positions(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a position means the same field in two formats, given as names of fields.

    That is so if the two lists of names are equal, or one list begins with the other.
    """
    return all(map(operator.eq, one, other))


def in_format(row: Row, names: Sequence[str]) -> bytes:
    """Return the MessagePack of a row, with its fields moved to their positions in the format `names`."""
    if have_same_positions(row.names, names):
        return row.data
    named = dict(zip(row.names, split_tuple(row.data), strict=False))
    count = max((index for index, name in enumerate(names, start=1) if name in named), default=0)
    return join_tuple([named.get(name, b"\xc0") for name in names[:count]])


def _is_same_value(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def decode(data: bytes) -> Any:
    """Decode one MessagePack value."""
    return msgpack.unpackb(
        data,
        strict_map_key=False,
        unicode_errors="surrogateescape",
        ext_hook=_decoded_extension,
        use_list=True,
    )


def encode(value: Any) -> bytes:
    """Encode one value as MessagePack."""
    data: bytes = msgpack.packb(
        value, default=_as_extension, unicode_errors="surrogateescape", strict_types=False
    )
    return data


def _decoded_extension(code: int, body: bytes) -> Any:
    if code == _DECIMAL:
        return decimals.read(msgpack.packb(msgpack.ExtType(code, body)), 0)
    if code == _UUID and len(body) == 16:
        return UUID(bytes=body)
    if code == _DATETIME and len(body) in (8, 16):
        nanoseconds = int.from_bytes(body[8:12], "little", signed=True)
        seconds = int.from_bytes(body[:8], "little", signed=True)
        try:
            return _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
        except OverflowError:
            return msgpack.ExtType(code, body)
    return msgpack.ExtType(code, body)


def _as_extension(value: Any) -> msgpack.ExtType:
    if isinstance(value, Decimal):
        extension: msgpack.ExtType = msgpack.unpackb(decimals.encode(value))
        return extension
    if isinstance(value, UUID):
        return msgpack.ExtType(_UUID, value.bytes)
    if isinstance(value, datetime) and value.tzinfo is not None:
        since = value - _EPOCH
        seconds = since // timedelta(seconds=1)
        nanoseconds = (since - timedelta(seconds=seconds)) // timedelta(microseconds=1) * 1000
        body = seconds.to_bytes(8, "little", signed=True)
        if nanoseconds:
            body += nanoseconds.to_bytes(4, "little", signed=True) + bytes(4)
        return msgpack.ExtType(_DATETIME, body)
    raise TypeError(f"{type(value).__name__} cannot be in a tuple")
