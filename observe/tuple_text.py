"""Shows MessagePack, and text of any origin, to people: whatever bytes a log has, nothing here raises an error.

Python's own text of a value escapes control characters and those that change the direction of writing; `visible` does
the same for text that is shown as it is.
"""

from __future__ import annotations

import msgpack


def tuple_text(data: bytes) -> str:
    """Return MessagePack as text; as hexadecimal digits what is none, or what Python cannot write.

    Python has no maps with containers as keys, and does not write values that are nested a thousand times.
    """
    try:
        return str(msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape"))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return data.hex()


def visible(text: str) -> str:
    """Return a text whose characters all show: others than line breaks and tabs are escaped as Python does."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)
