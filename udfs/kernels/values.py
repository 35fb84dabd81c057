"""Reads one MessagePack value in memory: its class, its content, its end, and the content of strings and datetimes.

A value's class (`kind` in the code) is finer than MessagePack's type and follows what Tarantool's field types
distinguish (`src/box/field_def.c`); an extension is classed by its type (`src/lib/core/mp_extension_types.h`). `head`
returns `(class, argument, next)`, positions being addresses. For a number or a boolean the argument is its value (the
bit pattern of a double or of an unsigned above 2^63 - 1) and `next` is its end. For a string, varbinary or extension
the argument is the length and `next` the first byte of the content. For an array or a map the argument is the count and
`next` the first element. No value is converted.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.compiled import inner
from udfs.kernels.memory import load8, load32, load64, load64_big

Int: TypeAlias = Any
"""A 64-bit integer: `int` for the type checker, `np.int64` in compiled code."""

Head: TypeAlias = tuple[Int, Int, Int]
"""(class, argument, next) of a value, as above."""

ABSENT = 0
NIL = 1
UNSIGNED = 2
UNSIGNED_BIG = 3
INTEGER = 4
FLOAT = 5
DOUBLE = 6
BOOLEAN = 7
STRING = 8
BINARY = 9
ARRAY = 10
MAP = 11
DECIMAL = 12
UUID = 13
ERROR = 14
DATETIME = 15
INTERVAL = 16
EXTENSION = 17
BAD = 18
"""The classes: ABSENT means no value, UNSIGNED_BIG an unsigned above 2^63 - 1, BAD bytes that are no MessagePack."""

CLASS_NAMES = (
    "nothing",
    "nil",
    "unsigned",
    "unsigned",
    "integer",
    "float",
    "double",
    "boolean",
    "string",
    "varbinary",
    "array",
    "map",
    "decimal",
    "uuid",
    "error",
    "datetime",
    "interval",
    "an unknown extension",
    "bytes that are not MessagePack",
)
"""The name of each class in error texts."""

OVERREAD_BYTES = 64
"""A kernel may load this many bytes from the start of a value or its content, even if that is shorter."""


def _head_table() -> NDArray[np.int64]:
    """Return an integer for each first byte of a value, which says how to read the value's head.

    Its bits, from the lowest: 8 for the class, 8 for the number of bytes of the argument, 16 for whether it is an
    extension, and 32 for the argument if this is in the first byte itself.
    """
    table = [(BAD, 0, 0, 0)] * 256
    for byte in range(256):
        if byte < 0x80:
            table[byte] = (UNSIGNED, 0, 0, byte)
        elif byte < 0xA0:
            table[byte] = (MAP if byte < 0x90 else ARRAY, 0, 0, byte & 0x0F)
        elif byte < 0xC0:
            table[byte] = (STRING, 0, 0, byte & 0x1F)
        elif byte >= 0xE0:
            table[byte] = (INTEGER, 0, 0, byte - 256)
    table[0xC0], table[0xC2], table[0xC3] = (NIL, 0, 0, 0), (BOOLEAN, 0, 0, 0), (BOOLEAN, 0, 0, 1)
    table[0xCA], table[0xCB] = (FLOAT, 4, 0, 0), (DOUBLE, 8, 0, 0)
    for power in range(4):
        table[0xCC + power], table[0xD0 + power] = (UNSIGNED, 1 << power, 0, 0), (INTEGER, 1 << power, 0, 0)
    for power in range(3):
        table[0xC4 + power], table[0xD9 + power] = (BINARY, 1 << power, 0, 0), (STRING, 1 << power, 0, 0)
        table[0xC7 + power] = (EXTENSION, 1 << power, 1, 0)
    for power in range(5):
        table[0xD4 + power] = (EXTENSION, 0, 1, 1 << power)
    for power in range(2):
        table[0xDC + power], table[0xDE + power] = (ARRAY, 2 << power, 0, 0), (MAP, 2 << power, 0, 0)
    return np.array([kind | width << 8 | ext << 16 | value << 32 for kind, width, ext, value in table])


_HEAD_BY_FIRST_BYTE = _head_table()
_CLASS_OF_EXTENSION = np.array(
    [EXTENSION, DECIMAL, UUID, ERROR, DATETIME, EXTENSION, INTERVAL] + [EXTENSION] * 249
)


@inner
def head(pos: Int, end: Int) -> Head:
    """Read the head of the value at `pos`; its class is BAD if `end` cuts it short or it is not MessagePack."""
    info = _HEAD_BY_FIRST_BYTE[load8(pos)]
    width = info >> 8 & 0xFF
    kind = info & 0xFF
    word = load64_big(pos + 1)
    unused = np.uint64(64 - 8 * width & 63)
    argument = word >> np.int64(unused) if kind == INTEGER else np.int64(np.uint64(word) >> unused)
    if width == 0:
        argument = info >> 32
    after = pos + 1 + width
    if kind >= STRING:
        if kind == EXTENSION:
            kind = _CLASS_OF_EXTENSION[load8(after)] if after < end else BAD
            after += 1
        if (kind < ARRAY or kind > MAP) and after + argument > end:
            return BAD, argument, after
    elif kind == UNSIGNED and argument < 0:
        kind = UNSIGNED_BIG
    elif kind == FLOAT:
        argument = np.float64(np.int32(argument).view(np.float32)).view(np.int64)
    if after > end:
        return BAD, argument, after
    return kind, argument, after


@inner
def skip(pos: Int, end: Int) -> Int:
    """Return where the value at `pos` ends, or -1 if it is cut short or not MessagePack."""
    left = np.int64(1)
    while left > 0:
        if pos >= end:
            return -1
        kind, argument, pos = head(pos, end)
        if kind == BAD:
            return -1
        left -= 1
        if kind == ARRAY:
            left += argument
        elif kind == MAP:
            left += 2 * argument
        elif kind >= STRING:
            pos += argument
    return pos


TIMESTAMP_MIN_SECONDS = -62135596800
TIMESTAMP_MAX_SECONDS = 253402300799
"""The first and the last second of the years 1 to 9999, which a Spark timestamp can have, since 1970 UTC."""


@inner
def read_datetime(pos: Int, size: Int) -> tuple[Int, Int, bool]:
    """Read the content of an MP_DATETIME; return seconds, nanoseconds, and whether it is valid.

    Format (`src/lib/core/mp_datetime.c`): seconds since 1970 UTC as int64, then, unless all are 0, nanoseconds
    as int32, offset in minutes and index of the time zone as int16; all little-endian. The zone is ignored.
    """
    if size not in (8, 16):
        return 0, 0, False
    nanoseconds = load32(pos + 8) if size == 16 else np.int64(0)
    return load64(pos), nanoseconds, bool(nanoseconds < 1000000000)


_NOT_ASCII_MASK = np.int64(-9187201950435737472)  # 0x80 in each of eight bytes


@inner
def is_utf8(pos: Int, size: Int) -> bool:
    """Return whether bytes are UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.

    Up to 7 bytes past the end are loaded.
    """
    end = pos + size
    while pos < end:
        word = load64(pos) & _NOT_ASCII_MASK
        if end - pos < 8:
            word &= (1 << 8 * (end - pos)) - 1
        if word == 0:
            pos += 8
            continue
        byte = load8(pos)
        if byte < 0x80:
            pos += 1
            continue
        more = 1 if 0xC2 <= byte < 0xE0 else (2 if 0xE0 <= byte < 0xF0 else (3 if 0xF0 <= byte < 0xF5 else 0))
        if more == 0 or pos + more >= end:
            return False
        low, high = 0x80, 0xBF
        if byte in (0xE0, 0xF0):
            low = 0xA0 if byte == 0xE0 else 0x90
        elif byte in (0xED, 0xF4):
            high = 0x9F if byte == 0xED else 0x8F
        second = load8(pos + 1)
        if second < low or second > high:
            return False
        for k in range(2, more + 1):
            if load8(pos + k) >> 6 != 2:
                return False
        pos += more + 1
    return True
