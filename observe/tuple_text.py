"""Formats MessagePack and untrusted text for people; never raises an error, whatever bytes a log has.

Python's `repr` escapes control characters and characters that change the writing direction; `visible` does the same for
plain text.
"""

from __future__ import annotations

import msgpack


def tuple_text(data: bytes) -> str:
    """Return MessagePack as text, or as hexadecimal digits if the bytes are malformed or Python cannot show the value.

    Python cannot show maps whose keys are containers, and values that are nested a thousand times.
    """
    try:
        return str(msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape"))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return data.hex()


def visible(text: str) -> str:
    """Return a text with its unprintable characters, except line breaks and tabs, escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
