"""Walks over MessagePack without decoding it (kinds, ends of values, headers, elements), and writes shortest encodings.

Works on bytes and positions: a value that an operation does not touch must keep its exact encoding, so containers are
never decoded to Python objects. Kinds and limits are those of Tarantool's msgpuck (`mp_typeof`, `mp_next`,
`mp_encode_*`), which writes every integer, string and container header in its shortest form.

Large containers are searched by compiled loops (`udfs.operations.kernels.elements`), which are imported with the first
large container: a command such as `cat`, which rarely needs them, prints its first row without waiting for them.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from schemas.errors import TupleError
from udfs.operations.msgpack_kinds import ARRAY, KIND, SIZE, STR

ER_INVALID_MSGPACK = 20
"""Tarantool's error code."""


# First byte -> (width of the length, 1 if an extension's type byte follows).
_LENGTH_WIDTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_LENGTH_WIDTHS |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}


# Exclusive limit of the unsigned encoding, that encoding, the signed one of the same width.
_INTEGER_ENCODINGS = (
    (1 << 8, (">BB", 0xCC), (">Bb", 0xD0)),
    (1 << 16, (">BH", 0xCD), (">Bh", 0xD1)),
    (1 << 32, (">BI", 0xCE), (">Bi", 0xD2)),
    (1 << 64, (">BQ", 0xCF), (">Bq", 0xD3)),
)


def raise_broken(reason: str = "the MessagePack ends inside a value") -> NoReturn:
    """Raise a `TupleError` for bytes that are not MessagePack."""
    raise TupleError(reason, code=ER_INVALID_MSGPACK)


def skip(data: bytes, pos: int) -> int:
    """Return the position after the value at `pos` (`mp_next`); raise TupleError if it is cut short."""
    left, end = 1, len(data)
    while left:
        if pos >= end:
            raise_broken()
        code = data[pos]
        size = SIZE[code]
        left -= 1
        if size:
            pos += size
        elif code in _LENGTH_WIDTHS:
            width, more = _LENGTH_WIDTHS[code]
            pos += 1 + width + more + int.from_bytes(data[pos + 1 : pos + 1 + width], "big")
        else:
            count, pos = read_header(data, pos)
            left += count if KIND[code] == ARRAY else 2 * count
    if pos > end:
        raise_broken()
    return pos


def read_header(data: bytes, pos: int) -> tuple[int, int]:
    """Return the number of a container's elements (a map's pairs) and where the first one starts."""
    code = data[pos] if pos < len(data) else 0xC1
    if 0x80 <= code < 0xA0:
        return code & 0x0F, pos + 1
    width = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}.get(code)
    if width is None or pos + 1 + width > len(data):
        raise_broken("the MessagePack has another value in place of a container")
    return int.from_bytes(data[pos + 1 : pos + 1 + width], "big"), pos + 1 + width


def string_bounds(data: bytes, pos: int) -> tuple[int, int]:
    """Return start and end of the bytes of the string (or binary, or extension's body) at `pos`."""
    end = skip(data, pos)
    code = data[pos]
    if code < 0xC0:
        return pos + 1, end
    if code in _LENGTH_WIDTHS:
        width, more = _LENGTH_WIDTHS[code]
        return pos + 1 + width + more, end
    return pos + 2, end


def read_integer(data: bytes, pos: int) -> tuple[int, int]:
    """Return the integer at `pos`, of kind UINT or INT, and the position after it."""
    code = data[pos]
    if code < 0x80:
        return code, pos + 1
    if code >= 0xE0:
        return code - 0x100, pos + 1
    end = skip(data, pos)
    return int.from_bytes(data[pos + 1 : end], "big", signed=code >= 0xD0), end


def split_tuple(data: bytes) -> list[bytes]:
    """Return the encoded fields of a tuple; the whole of `data` is one MessagePack array."""
    if not data or KIND[data[0]] != ARRAY:
        raise_broken("a tuple must be a MessagePack array")
    count, pos = read_header(data, 0)
    fields = []
    try:
        for _ in range(count):
            size = SIZE[data[pos]]
            end = pos + size if size else skip(data, pos)
            fields.append(data[pos:end])
            pos = end
    except IndexError:
        raise_broken()
    if pos != len(data):
        raise_broken("a tuple does not end where its array ends")
    return fields


def join_tuple(fields: list[bytes]) -> bytes:
    """Return the tuple of encoded fields, with the shortest header."""
    return encode_array(len(fields)) + b"".join(fields)


MANY_BYTES, MANY_ELEMENTS = 1024, 64
"""Sizes of containers that compiled loops search: calling a loop costs as much as about ten elements in Python."""


def skip_many(data: bytes, pos: int, count: int) -> int:
    """Return the position after the `count` values that begin at `pos`."""
    if count >= MANY_ELEMENTS:
        import numpy as np

        from udfs.operations.kernels.elements import skip_elements

        found = skip_elements(np.frombuffer(data, np.uint8), pos, count)
        if found >= 0:
            return found
    for _ in range(count):
        pos = skip(data, pos)
    return pos


def find_string_key(data: bytes, pos: int, end: int, count: int, key: bytes) -> tuple[int, int] | None:
    """Return where a string key of a map and its value begin; None if the map has no such key.

    Args:
        pos, end, count: Start of the first pair; the search ends at `end` or after `count` pairs.
    """
    if count >= MANY_ELEMENTS and end - pos >= MANY_BYTES:
        import numpy as np

        from udfs.operations.kernels.elements import find_string_key

        found = find_string_key(np.frombuffer(data, np.uint8), pos, end, count, np.frombuffer(key, np.uint8))
        if found[0] != -1:
            return found if found[0] >= 0 else None
    while count > 0 and pos < end:
        value = skip(data, pos)
        if KIND[data[pos]] == STR:
            begin, stop = string_bounds(data, pos)
            if data[begin:stop] == key:
                return pos, value
        pos = skip(data, value)
        count -= 1
    return None


def encode_integer(value: int) -> bytes:
    """Return the shortest encoding (`mp_encode_uint`, `mp_encode_int`) of -2^63 <= value < 2^64."""
    if -0x20 <= value < 0x80:
        return bytes((value & 0xFF,))
    for limit, unsigned, signed in _INTEGER_ENCODINGS:
        if 0 <= value < limit:
            return struct.pack(unsigned[0], unsigned[1], value)
        if -limit // 2 <= value < 0:
            return struct.pack(signed[0], signed[1], value)
    raise OverflowError(f"{value} does not fit into MessagePack")


def encode_string(text: bytes) -> bytes:
    """Return the shortest encoding of a string (`mp_encode_str`)."""
    size = len(text)
    if size < 0x20:
        return bytes((0xA0 | size,)) + text
    if size < 0x100:
        return bytes((0xD9, size)) + text
    return struct.pack(">BH", 0xDA, size) + text if size < 0x10000 else struct.pack(">BI", 0xDB, size) + text


def encode_binary(content: bytes) -> bytes:
    """Return the shortest encoding of a binary (`mp_encode_bin`)."""
    size = len(content)
    if size < 0x100:
        return bytes((0xC4, size)) + content
    pattern, code = (">BH", 0xC5) if size < 0x10000 else (">BI", 0xC6)
    return struct.pack(pattern, code, size) + content


def encode_array(count: int) -> bytes:
    """Return the shortest header of an array (`mp_encode_array`)."""
    if count < 0x10:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 0x10000 else struct.pack(">BI", 0xDD, count)


def encode_map(count: int) -> bytes:
    """Return the shortest header of a map (`mp_encode_map`)."""
    if count < 0x10:
        return bytes((0x80 | count,))
    return struct.pack(">BH", 0xDE, count) if count < 0x10000 else struct.pack(">BI", 0xDF, count)
