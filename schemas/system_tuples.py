"""Tuples of the system spaces, read so that an odd one is a TupleError and nothing else.

No server writes an odd one, but anyone who can write a source's files can. So all code that reads `_schema`, `_space`,
`_index`, `_cluster`, `_truncate` or a `.vylog` takes values through these functions: none of them raises anything but
TupleError, and what they return has the type and the range that it should have. Not here: what a definition means
(`schemas.space`).
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
"""The most items of an array or a map: one that claims more takes no memory."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def unpacked(data: bytes) -> Any:
    """Return one decoded MessagePack object; strings that are not UTF-8 and keys of any type are kept.

    Raises
    ------
    TupleError
        It is not one whole object, or one that is too large or too deep for a system tuple.

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
    """Return the fields of a tuple, or the parts of a key.

    Parameters
    ----------
    data : bytes or None
        MessagePack.
    name : str
        What it is, for the error.

    """
    if data is None:
        raise TupleError(f"{name} is missing")
    fields = unpacked(data)
    if not isinstance(fields, list):
        raise TupleError(f"{name} is not an array: {shown(fields)}")
    return fields


def field_at(fields: Sequence[Any], place: int, name: str) -> Any:
    """Return the field at a place, from 0."""
    if place >= len(fields):
        raise TupleError(f"{name} is missing: there are {len(fields)} fields")
    return fields[place]


def integer_of(value: Any, name: str, least: int = 0, most: int = ID_MAX) -> int:
    """Return an integer of a range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise TupleError(f"{name} is not an integer from {least} to {most}: {shown(value)}")
    return value


def text_of(value: Any, name: str) -> str:
    """Return a text that is UTF-8 and not longer than a name may be."""
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
    """Return a uuid in lower case; only the form that servers write is accepted."""
    if not isinstance(value, str) or _UUID.fullmatch(value) is None:
        raise TupleError(f"{name} is not a uuid: {shown(value)}")
    return value.lower()


def replica_id_of(value: Any) -> int:
    """Return a replica id, 1 to 31."""
    return integer_of(value, "the replica id", 1, VCLOCK_MAX - 1)


def shown(value: Any) -> str:
    """Return a short text of ASCII for any value, for errors."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
