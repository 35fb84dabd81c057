"""The keys of one space that are to be forgotten, compared with rows of tables and of logs by value.

The bytes of a key select rows quickly, and are what the search looks for. Short keys, such as small numbers, have bytes
that are everywhere: of these only whole rows are compared.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgpack

from observe.key_changes.definitions import SpaceDefinitions
from observe.log_rows.read import is_same_value
from schemas.errors import TupleError
from schemas.field_types import FIELD_TYPES, ValueClass, type_family
from udfs.before_replace.row import decode
from udfs.keys.key_patterns import Value

SHORTEST_SEARCHED = 4
"""Fewer bytes than these are not searched for, since they occur by chance."""

_BASE64_SHIFTS = (0, 1, 2)

_NARROW_CLASSES = {
    *(ValueClass.UNSIGNED, ValueClass.UNSIGNED_BIG, ValueClass.INTEGER, ValueClass.BOOLEAN),
    *(ValueClass.STRING, ValueClass.BINARY, ValueClass.UUID),
}
"""If a key has only these, a number in it is an integer; of other classes equal numbers may have other bytes."""


@dataclass(frozen=True)
class ForgottenKeys:
    """Keys of one space."""

    space: SpaceDefinitions
    keys: Sequence[Sequence[Value]]
    """The values of each key's parts."""

    def check(self, name: str) -> None:
        """Raise ConfigurationError if a key has another number of parts than the space's primary key."""
        for key in self.keys:
            self.space.check_key(name, key)

    def is_key(self, data: bytes | None) -> bool:
        """Return whether a MessagePack array is one of the keys."""
        return data is not None and self._has_values(_decoded(data))

    def is_tuple(self, data: bytes | None) -> bool:
        """Return whether a tuple has one of the keys, by any definition of the space."""
        if data is None:
            return False
        return any(map(self._has_values, self._keys_in_tuple(data)))

    def is_row(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of `_changelog`, `_pending` or a log has one of the keys; its space is not compared."""
        return self.is_key(row.get("key")) or self.is_tuple(row.get("tuple"))

    def is_range_end(self, body: bytes | None) -> bool:
        """Return whether the body of a DELETE_RANGE names one of the keys as the begin or the end of its range."""
        found = None if body is None else _decoded(body)
        return isinstance(found, dict) and any(map(self._has_values, found.values()))

    def _keys_in_tuple(self, data: bytes) -> Iterator[Any]:
        for definition in {id(one.definition): one.definition for one in self.space.definitions}.values():
            try:
                yield definition.key_values_in_tuple(data)
            except (TupleError, ValueError, LookupError, TypeError):
                continue

    def _has_values(self, parts: Any) -> bool:
        return isinstance(parts, list | tuple) and any(
            len(parts) == len(key) and all(map(is_same_value, parts, key)) for key in self.keys
        )

    @cached_property
    def row_needles(self) -> tuple[bytes, ...] | None:
        """Bytes of which every row with one of the keys has some; None if a key has no such bytes."""
        found: set[bytes] = set()
        for key in self.keys:
            texts = [_bytes_of(value) for value in key if isinstance(value, str | bytes)]
            numbers = [value for value in key if isinstance(value, int) and not isinstance(value, bool)]
            if texts and not any(isinstance(value, str) and _may_be_packed(value) for value in key):
                found.add(max(texts, key=len))
            elif numbers and not self._has_wide_numbers:
                found.update(_number_bytes(max(numbers, key=abs)))
            else:
                return None
        return tuple(sorted(found))

    def may_be_in(self, data: bytes) -> bool:
        """Return whether bytes of rows may have one of the keys; False is certain."""
        return self.row_needles is None or any(needle in data for needle in self.row_needles)

    @cached_property
    def _has_wide_numbers(self) -> bool:
        kinds = {type_family(part.type) for parts in self.space.primary_keys for part in parts}
        return not {one for kind in kinds for one in FIELD_TYPES[kind].accepted_classes} <= _NARROW_CLASSES

    @cached_property
    def searched(self) -> tuple[bytes, ...]:
        """The bytes that the search looks for: each key as MessagePack, and a key of one text as text and in base64."""
        found: set[bytes] = set()
        for key in self.keys:
            packed = b"".join(map(_packed, key))
            found.add(packed)
            text = key[0] if len(key) == 1 else None
            if isinstance(text, str | bytes):
                raw = _bytes_of(text)
                found.add(raw)
                found.update(_escaped(raw))
                if len(raw) >= SHORTEST_SEARCHED:
                    found.update(_base64_of(raw))
        return tuple(sorted(one for one in found if len(one) >= SHORTEST_SEARCHED))

    @cached_property
    def pattern(self) -> re.Pattern[bytes] | None:
        """A pattern of all of `searched`; None if there are none."""
        return re.compile(b"|".join(map(re.escape, self.searched))) if self.searched else None


def _bytes_of(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _may_be_packed(value: str) -> bool:
    """Whether a text may be an extension in a row: a uuid, a decimal or a time."""
    return not re.search(r"[^0-9a-fA-F+\-:.TZ ]", value)


def _number_bytes(value: int) -> Iterator[bytes]:
    """Yield the bytes of an integer in all encodings as an integer or a double; a leading type byte is left out."""
    yield msgpack.packb(value)
    for size in (1, 2, 4, 8):
        for signed in (False, True):
            try:
                yield value.to_bytes(size, "big", signed=signed)
            except OverflowError:
                continue
    try:
        yield msgpack.packb(float(value))[1:]
    except OverflowError:
        return


def _packed(value: Value) -> bytes:
    if isinstance(value, str):
        return bytes(msgpack.packb(value, unicode_errors="surrogateescape"))
    return bytes(msgpack.packb(value))


def _escaped(raw: bytes) -> Iterator[bytes]:
    """Yield a text as JSON writes it, where that differs."""
    text = raw.decode("utf-8", "surrogateescape")
    for is_ascii in (True, False):
        yield json.dumps(text, ensure_ascii=is_ascii)[1:-1].encode("utf-8", "surrogateescape")


def _base64_of(raw: bytes) -> Iterator[bytes]:
    """Yield what all base64 texts of longer bytes have in common that contain these bytes."""
    for shift in _BASE64_SHIFTS:
        whole = base64.b64encode(bytes(shift) + raw)
        begin = -(-shift * 8 // 6) if shift else 0
        end = (shift + len(raw)) * 8 // 6
        yield whole[begin:end]


def _decoded(data: bytes) -> Any:
    try:
        return decode(data)
    except (TupleError, ValueError):
        return None
