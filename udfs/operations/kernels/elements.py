"""Compiled search in large containers: the start of the n-th element, and a map's pair by its key.

The results equal those of the loops in `udfs.operations.msgpack_walk`, a hundred times faster, so that an operation in
a large container is as fast as on a server. A result of -1 means that the bytes are not MessagePack; then those loops
find the error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.compiled import entry, inner
from udfs.operations.msgpack_kinds import KIND, MAP, SIZE, STR

_FIXED_SIZES = np.array(SIZE, np.int64)
_IS_TEXT = np.array([kind == STR for kind in KIND])
_VALUES_PER_ELEMENT = np.array([2 if kind == MAP else 1 for kind in KIND], np.int64)
_LENGTH_WIDTHS = np.zeros(256, np.int64)
"""Number of length bytes that follow each first byte."""
for _code, _width in ((0xC4, 1), (0xC7, 1), (0xD9, 1), (0xDC, 2), (0xDE, 2)):
    for _power in range(2 if _code >= 0xDC else 3):
        _LENGTH_WIDTHS[_code + _power] = _width << _power
_IS_EXTENSION = np.array([0xC7 <= code <= 0xC9 for code in range(256)])
_IS_CONTAINER = np.array([0x80 <= code < 0xA0 or 0xDC <= code <= 0xDF for code in range(256)])


@inner
def _read_length(data: Any, pos: Any) -> Any:
    """Return the length in the head of the value at `pos` (-1 if the data end inside the head), and the head's end."""
    code = np.int64(data[pos])
    width = _LENGTH_WIDTHS[code]
    if pos + 1 + width > data.size:
        return np.int64(-1), pos
    size = np.int64(0) if width else code & 0x0F
    for k in range(width):
        size = size << 8 | np.int64(data[pos + 1 + k])
    return size, pos + 1 + width


@inner
def skip_value(data: Any, pos: Any) -> Any:
    """Return where the value at `pos` ends, or -1."""
    left = np.int64(1)
    while left > 0:
        if pos >= data.size or data[pos] == 0xC1:
            return np.int64(-1)
        code = np.int64(data[pos])
        left -= 1
        if _FIXED_SIZES[code]:
            pos += _FIXED_SIZES[code]
            continue
        size, pos = _read_length(data, pos)
        if size < 0:
            return np.int64(-1)
        if _IS_CONTAINER[code]:
            left += size * _VALUES_PER_ELEMENT[code]
        else:
            pos += size + np.int64(_IS_EXTENSION[code])
    return pos if pos <= data.size else np.int64(-1)


@entry
def skip_elements(data: NDArray[np.uint8], pos: int, count: int) -> int:
    """Return the position after the `count` values that begin at `pos`, or -1."""
    for _ in range(count):
        pos = skip_value(data, pos)
        if pos < 0:
            return -1
    return pos


@entry
def find_string_key(
    data: NDArray[np.uint8], pos: int, end: int, count: int, key: NDArray[np.uint8]
) -> tuple[int, int]:
    """Return where a string key of a map and its value begin.

    Args:
        pos, end, count: Start of the first pair; the search ends at `end` or after `count` pairs.
        key: The content of the string.

    Returns:
        Where the key and its value begin; (-2, -2) if there is no such pair, (-1, -1) if the bytes are not MessagePack.
    """
    while count > 0 and pos < end:
        value = skip_value(data, pos)
        if value < 0:
            return -1, -1
        if _IS_TEXT[data[pos]] and value - key.size > pos:
            begin = value - key.size
            code = np.int64(data[pos])
            if begin == pos + 1 + _LENGTH_WIDTHS[code] and np.all(data[begin:value] == key):
                return pos, value
        pos = skip_value(data, value)
        if pos < 0:
            return -1, -1
        count -= 1
    return -2, -2
