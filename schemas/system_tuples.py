"""Reads tuples of the system spaces safely: an invalid one raises TupleError and nothing else.

No server writes an invalid one, but anyone who can write a source's files can. So all code that reads `_schema`,
`_space`, `_index`, `_cluster`, `_truncate` or a `.vylog` reads values by these functions: they raise only TupleError,
and their results have the right type and range.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgpack

from schemas.errors import TupleError
from schemas.iproto import VCLOCK_MAX

ID_MAX = 2**31 - 1
"""The highest id of a space, and the highest number of a field (`BOX_SPACE_MAX`)."""

NAME_MAX = 65_000
"""The longest name, in bytes (`BOX_NAME_MAX`)."""

_ITEMS_MAX = 1 << 16
"""Greatest number of items of an array or a map; a header that claims more is an error, before memory is allocated."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def unpacked(data: bytes) -> Any:
    """Decode one MessagePack object; strings that are not UTF-8 and keys of any type are allowed.

    Raises:
        TupleError: The data are not one whole object, or it is too large or too deep for a system tuple.
    """
    try:
        return msgpack.unpackb(
            data,
            strict_map_key=False,
            unicode_errors="surrogateescape",
            max_array_len=_ITEMS_MAX,
            max_map_len=_ITEMS_MAX,
        )
    except (
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
        MemoryError,
        msgpack.UnpackException,
    ) as error:
        raise TupleError(f"not a MessagePack object that servers write: {shown(str(error))}") from None


def fields_of(data: bytes | None, name: str) -> Sequence[Any]:
    """Return the fields of a tuple, or the parts of a key; raise `TupleError` if it is not an array.

    Args:
        data: MessagePack.
        name: Name of the tuple in the error.
    """
    if data is None:
        raise TupleError(f"{name} is missing")
    fields = unpacked(data)
    if not isinstance(fields, list):
        raise TupleError(f"{name} is not an array: {shown(fields)}")
    return fields


def field_at(fields: Sequence[Any], position: int, name: str) -> Any:
    """Return the field at a 0-based position; raise `TupleError` with `name` if there are fewer fields."""
    if position >= len(fields):
        raise TupleError(f"{name} is missing: there are {len(fields)} fields")
    return fields[position]


def integer_of(value: Any, name: str, minimum: int = 0, maximum: int = ID_MAX) -> int:
    """Return a value that must be an integer from `minimum` to `maximum`, or raise `TupleError`."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise TupleError(f"{name} is not an integer from {minimum} to {maximum}: {shown(value)}")
    return value


def text_of(value: Any, name: str) -> str:
    """Return a value that must be a UTF-8 text of at most `NAME_MAX` bytes, or raise `TupleError`."""
    if not isinstance(value, str):
        raise TupleError(f"{name} is not a string: {shown(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise TupleError(f"{name} is not UTF-8: {shown(value)}") from None
    if size > NAME_MAX:
        raise TupleError(f"{name} has {size} bytes, the most are {NAME_MAX}")
    return value


def uuid_of(value: Any, name: str) -> str:
    """Return a uuid in lower case; raise `TupleError` for any other form than servers write."""
    if not isinstance(value, str) or _UUID.fullmatch(value) is None:
        raise TupleError(f"{name} is not a uuid: {shown(value)}")
    return value.lower()


def replica_id_of(value: Any) -> int:
    """Return a value that must be a replica id, 1 to 31, or raise `TupleError`."""
    return integer_of(value, "the replica id", 1, VCLOCK_MAX - 1)


def shown(value: Any) -> str:
    """Return a short ASCII text of any value, for errors."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
