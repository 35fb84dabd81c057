"""Builds a regular expression that finds a key in hexadecimal MessagePack, in any of its encodings.

The pattern is for query engines that can neither decode MessagePack nor compare slices of bytes. It filters rows
quickly, but may also match other rows, so the caller compares the matches by value. Encodings:
<https://github.com/msgpack/msgpack/blob/master/spec.md>; extensions: `mp_extension_types.h` of Tarantool.
"""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from uuid import UUID

from schemas.field_types import FIELD_TYPES, ValueClass, type_family
from schemas.space import KeyPart

_ARRAY_PATTERN = "^(?:9.|dc....|dd.{8})"
_DECIMAL_PATTERN = "(?:c7..01|d[4-8]01)"
_DATETIME_PATTERN = "(?:d704|d804|c7..04)"
_PATTERNS_OF_BEGINS = {_DECIMAL_PATTERN, _DATETIME_PATTERN}

Value = str | bytes | int | float | bool | tuple[int, bytes] | None
"""The value of a key's part; an extension without a text is (type, content), as `msgpack.ExtType` is."""


def key_pattern(values: Sequence[Value], parts: Sequence[KeyPart]) -> str | None:
    """Return a pattern that finds a key, and the tuples that begin with it; None if there are no values."""
    found = ""
    for value, part in zip(values, parts, strict=False):
        encodings = list(_encodings(value, _accepted(part.type)))
        found += f"(?:{'|'.join(encodings)})"
        if not _PATTERNS_OF_BEGINS.isdisjoint(encodings):
            break  # the length of the value is not known without its bytes
    return _ARRAY_PATTERN + found if found else None


def begins_with_key(parts: Sequence[KeyPart]) -> bool:
    """Return whether a tuple begins with its key, so that one pattern finds both."""
    return all(part.field == index and not part.path for index, part in enumerate(parts))


def _accepted(field_type: str) -> Sequence[ValueClass]:
    known = FIELD_TYPES.get(type_family(field_type))
    return () if known is None else known.accepted_classes


def _encodings(value: Value, accepted: Sequence[ValueClass]) -> Iterator[str]:
    """Yield patterns of hexadecimal digits, one for each MessagePack encoding that a value may have.

    For example, a number may be stored as an integer or as a double. A pattern for a decimal or a datetime matches only
    its first bytes.
    """
    if value is None or isinstance(value, bool):
        yield {None: "c0", False: "c2", True: "c3"}[value]
    elif isinstance(value, int | float):
        yield from _number_encodings(value)
        if ValueClass.DECIMAL in accepted:
            yield _DECIMAL_PATTERN
    elif isinstance(value, tuple):
        code, data = value
        yield f"(?:c7..{code:02x}|d[4-8]{code:02x}){data.hex()}"
    else:
        yield from _text_encodings(value, accepted)


def _number_encodings(value: int | float) -> Iterator[str]:
    if value == int(value):
        yield from _integer_encodings(int(value))
    for head, shape in (("ca", ">f"), ("cb", ">d")):
        try:
            data = struct.pack(shape, value)
        except OverflowError:
            continue
        if struct.unpack(shape, data)[0] == value:
            yield head + data.hex()


def _integer_encodings(value: int) -> Iterator[str]:
    if -32 <= value < 128:
        yield f"{value & 0xFF:02x}"
    for power, size in enumerate((1, 2, 4, 8)):
        if 0 <= value < 1 << 8 * size:
            yield f"{0xCC + power:02x}{value.to_bytes(size, 'big').hex()}"
        if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
            yield f"{0xD0 + power:02x}{value.to_bytes(size, 'big', signed=True).hex()}"


def _text_encodings(value: str | bytes, accepted: Sequence[ValueClass]) -> Iterator[str]:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    if len(data) < 32:
        yield f"{0xA0 | len(data):02x}{data.hex()}"
    for strings, binaries, size in ((0xD9, 0xC4, 1), (0xDA, 0xC5, 2), (0xDB, 0xC6, 4)):
        if len(data) < 1 << 8 * size:
            length = len(data).to_bytes(size, "big").hex()
            yield f"{strings:02x}{length}{data.hex()}"
            yield f"{binaries:02x}{length}{data.hex()}"
    if isinstance(value, bytes):
        return
    if ValueClass.UUID in accepted:
        with contextlib.suppress(ValueError):
            yield f"d802{UUID(value).hex}"
    if ValueClass.DECIMAL in accepted:
        yield _DECIMAL_PATTERN
    if ValueClass.DATETIME in accepted:
        yield _DATETIME_PATTERN
