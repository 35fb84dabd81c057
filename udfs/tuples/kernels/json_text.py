"""Writes MessagePack values as JSON text, without recursion.

Values without a JSON type are text, as in `observe.log_rows.row_format`: decimals (all digits), uuids, datetimes (ISO
8601, with nanoseconds), intervals, numbers that are not finite. Bytes, and strings that are not UTF-8, are
`{"base64": …}`; any other extension, and one whose content is not valid, is `{"ext": code, "base64": …}`. A value
nested deeper than `MAX_DEPTH` is `{"base64": …}` with its MessagePack. A key that is no string is the text of its JSON.
A repeated key is repeated. An MP_ERROR is the map that it contains (`src/box/mp_error.cc`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from schemas.compiled import inner
from udfs.kernels.memory import copy, load8, set_word, store8, word
from udfs.kernels.packed_decimals import read_packed
from udfs.kernels.values import (
    ARRAY,
    BAD,
    BINARY,
    BOOLEAN,
    DATETIME,
    DECIMAL,
    DOUBLE,
    ERROR,
    FLOAT,
    INTEGER,
    INTERVAL,
    MAP,
    NIL,
    STRING,
    TIMESTAMP_MAX_SECONDS,
    TIMESTAMP_MIN_SECONDS,
    UNSIGNED,
    UNSIGNED_BIG,
    UUID,
    Int,
    head,
    is_utf8,
    read_datetime,
    skip,
)
from udfs.tuples.kernels.variant import MAX_DEPTH
from udfs.tuples.kernels.writers import (
    read_interval,
    write_decimal,
    write_digits,
    write_integer,
    write_interval,
    write_uuid,
)

JSON_GROWTH = 24
"""A text takes at most this many bytes per byte of MessagePack, and `JSON_MORE_BYTES` more."""

JSON_MORE_BYTES = 128

_KIND, _LEFT, _FIRST, _FRAME = 0, 1, 2, 3
"""A frame is an open object or array: its class, the number of values to come, and whether the next one is the first.
All of them have room in those of a variant (`FRAME_STACK_WORDS`), which are larger."""

_gcvt = types.ExternalFunction("gcvt", types.intp(types.float64, types.int32, types.intp))
_strtod = types.ExternalFunction("strtod", types.float64(types.intp, types.intp))
"""Functions of the C library: a double as text of so many digits, and back."""

_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_SHORT_ESCAPES = np.frombuffer(b"\0\0\0\0\0\0\0\0btn\0fr" + bytes(18), np.uint8)
"""The letters of control characters that have an escape of two characters."""

_BASE64_HEAD = np.frombuffer(b'{"base64":"', np.uint8)
_EXT_HEAD = np.frombuffer(b'{"ext":', np.uint8)
_EXT_TAIL = np.frombuffer(b',"base64":"', np.uint8)
_UTC = np.frombuffer(b"+00:00", np.uint8)
_NULL = np.frombuffer(b"null", np.uint8)
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_NAN = np.frombuffer(b'"nan"', np.uint8)
_INFINITY = np.frombuffer(b'"inf"', np.uint8)
_MINUS_INFINITY = np.frombuffer(b'"-inf"', np.uint8)
_QUOTE, _BACKSLASH, _COMMA, _COLON = 0x22, 0x5C, 0x2C, 0x3A


@inner
def _put_text(target: Int, text: Any) -> Int:
    for k in range(len(text)):
        store8(target + k, np.int64(text[k]))
    return target + len(text)


@inner
def _put_string(target: Int, pos: Int, size: Int) -> Int:
    """Write a UTF-8 string in quotes."""
    store8(target, _QUOTE)
    target += 1
    for k in range(size):
        byte = load8(pos + k)
        if byte >= 0x20 and byte not in (_QUOTE, _BACKSLASH):
            store8(target, byte)
            target += 1
        elif byte >= 0x20 or _SHORT_ESCAPES[byte] != 0:
            store8(target, _BACKSLASH)
            store8(target + 1, byte if byte >= 0x20 else np.int64(_SHORT_ESCAPES[byte]))
            target += 2
        else:
            store8(target, _BACKSLASH)
            store8(target + 1, 0x75)
            store8(target + 2, 0x30)
            store8(target + 3, 0x30)
            store8(target + 4, np.int64(_HEX[byte >> 4]))
            store8(target + 5, np.int64(_HEX[byte & 15]))
            target += 6
    store8(target, _QUOTE)
    return target + 1


@inner
def _put_base64(target: Int, pos: Int, size: Int) -> Int:
    """Write bytes as base64, the closing quote and the closing brace."""
    for first in range(0, size, 3):
        group, count = np.int64(0), min(size - first, 3)
        for k in range(3):
            group = group << 8 | (load8(pos + first + k) if k < count else 0)
        for k in range(4):
            store8(target + k, np.int64(_BASE64[group >> (18 - 6 * k) & 63]) if k <= count else 0x3D)
        target += 4
    store8(target, _QUOTE)
    store8(target + 1, 0x7D)
    return target + 2


@inner
def _put_bytes(target: Int, pos: Int, size: Int) -> Int:
    return _put_base64(_put_text(target, _BASE64_HEAD), pos, size)


@inner
def _put_extension(target: Int, code: Int, pos: Int, size: Int) -> Int:
    target = write_integer(_put_text(target, _EXT_HEAD), code - 256 if code >= 128 else code)
    return _put_base64(_put_text(target, _EXT_TAIL), pos, size)


@inner
def _put_double(target: Int, bits: Int) -> Int:
    """Write a double with as few of 15 to 17 digits as give the same double."""
    value = np.int64(bits).view(np.float64)
    if np.isnan(value):
        return _put_text(target, _NAN)
    if np.isinf(value):
        return _put_text(target, _INFINITY if value > 0 else _MINUS_INFINITY)
    for digits in range(15, 18):
        _gcvt(value, np.int32(digits), target)
        if _strtod(target, 0) == value:
            break
    is_whole = True
    while load8(target) != 0:
        is_whole &= load8(target) not in (0x2E, 0x65)
        target += 1
    if is_whole:
        store8(target, 0x2E)
        store8(target + 1, 0x30)
        target += 2
    return target


@inner
def _put_date(target: Int, days: Int) -> Int:
    """Write the date that is so many days after 1970-01-01 (Hinnant's `civil_from_days`)."""
    days += 719468
    era = days // 146097
    day_of_era = days - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    target = write_digits(target, np.uint64(year), 4)
    store8(target, 0x2D)
    target = write_digits(target + 1, np.uint64(month), 2)
    store8(target, 0x2D)
    return write_digits(target + 1, np.uint64(day_of_year - (153 * shifted + 2) // 5 + 1), 2)


@inner
def _put_datetime(target: Int, pos: Int, size: Int) -> Int:
    """Write a datetime in UTC: its fraction has 0, 6 or 9 digits. Return -1 if it is outside of the years 1 to 9999."""
    seconds, nanoseconds, valid = read_datetime(pos, size)
    if not valid or seconds < TIMESTAMP_MIN_SECONDS or seconds > TIMESTAMP_MAX_SECONDS:
        return -1
    store8(target, _QUOTE)
    target = _put_date(target + 1, seconds // 86400)
    rest = seconds % 86400
    for part in range(3):
        store8(target, 0x54 if part == 0 else _COLON)
        target = write_digits(target + 1, np.uint64(rest // (3600, 60, 1)[part] % (24, 60, 60)[part]), 2)
    if nanoseconds > 0:
        store8(target, 0x2E)
        if nanoseconds % 1000 == 0:
            target = write_digits(target + 1, np.uint64(nanoseconds // 1000), 6)
        else:
            target = write_digits(target + 1, np.uint64(nanoseconds), 9)
    target = _put_text(target, _UTC)
    store8(target, _QUOTE)
    return target + 1


@inner
def _put_quoted(target: Int, kind: Int, pos: Int, size: Int) -> Int:
    """Write a decimal, uuid, datetime or interval as a string; return -1 for any other extension."""
    if kind == DATETIME:
        return _put_datetime(target, pos, size)
    store8(target, _QUOTE)
    after = np.int64(-1)
    if kind == DECIMAL:
        packed = read_packed(pos, size)
        if packed[4]:
            after = write_decimal(target + 1, packed)
    elif kind == UUID and size == 16:
        after = write_uuid(target + 1, pos)
    elif kind == INTERVAL:
        amounts = np.zeros(9, np.int64)
        if read_interval(pos, size, amounts):
            after = write_interval(target + 1, amounts)
    if after < 0:
        return -1
    store8(after, _QUOTE)
    return after + 1


@inner
def _put_scalar(target: Int, kind: Int, argument: Int, pos: Int) -> Int:
    """Write a value that is neither map nor array."""
    if kind in (UNSIGNED, INTEGER):
        return write_integer(target, argument)
    if kind == STRING:
        return (
            _put_string(target, pos, argument)
            if is_utf8(pos, argument)
            else _put_bytes(target, pos, argument)
        )
    if kind == NIL:
        return _put_text(target, _NULL)
    if kind == BOOLEAN:
        return _put_text(target, _TRUE if argument else _FALSE)
    if kind in (DOUBLE, FLOAT):
        return _put_double(target, argument)
    if kind == UNSIGNED_BIG:
        return write_digits(
            target, np.uint64(argument), 19 if np.uint64(argument) < np.uint64(10**19) else 20
        )
    if kind == BINARY:
        return _put_bytes(target, pos, argument)
    after = _put_quoted(target, kind, pos, argument)
    return _put_extension(target, load8(pos - 1), pos, argument) if after < 0 else after


@inner
def _put_key(target: Int, kind: Int, argument: Int, pos: Int) -> Int:
    """Write a map's key, as a string, and the colon; there is as much room behind it as the key's text takes."""
    if kind == STRING and is_utf8(pos, argument):
        after = _put_string(target, pos, argument)
    else:
        after = _put_scalar(target, kind, argument, pos)
        if load8(target) != _QUOTE:
            size = after - target
            copy(after + 64, target, size)
            after = _put_string(target, after + 64, size)
    store8(after, _COLON)
    return after + 1


@inner
def _open_frame(target: Int, frame: Int, kind: Int, count: Int) -> Int:
    set_word(frame, _KIND, kind)
    set_word(frame, _LEFT, count)
    set_word(frame, _FIRST, 1)
    store8(target, 0x7B if kind == MAP else 0x5B)
    return target + 1


@inner
def _begin_child(pos: Int, end: Int, target: Int, frame: Int) -> tuple[Int, Int]:
    """Write what stands before a value in the container of a frame: a comma, and the key of a map.

    Return (where the value starts, or -1 if the key is not MessagePack; where the text ends).
    """
    set_word(frame, _LEFT, word(frame, _LEFT) - 1)
    if word(frame, _FIRST) == 0:
        store8(target, _COMMA)
        target += 1
    set_word(frame, _FIRST, 0)
    if word(frame, _KIND) != MAP:
        return pos, target
    kind, argument, after = head(pos, end) if pos < end else (BAD, np.int64(0), pos)
    if kind in (ARRAY, MAP, ERROR):
        after = skip(pos, end)
        return after, _put_key(target, BINARY, after - pos, pos) if after >= 0 else target
    if kind == BAD:
        return np.int64(-1), target
    return after + (argument if kind >= STRING else 0), _put_key(target, kind, argument, after)


@inner
def put_json(pos: Int, end: Int, extra_count: Int, target: Int, frames: Int) -> tuple[Int, Int]:
    """Write the value at `pos`, or an array of the `extra_count` values from there on, if that is not 0.

    Return (where the value ends, or -1 if it is not MessagePack; where the text ends).
    """
    depth = 0
    if extra_count > 0:
        target = _open_frame(target, frames, np.int64(ARRAY), extra_count)
        depth = 1
    while True:
        frame = frames + 8 * _FRAME * (depth - 1)
        if depth > 0 and word(frame, _LEFT) == 0:
            store8(target, 0x7D if word(frame, _KIND) == MAP else 0x5D)
            target += 1
            depth -= 1
        else:
            if depth > 0:
                pos, target = _begin_child(pos, end, target, frame)
            if pos < 0 or pos >= end:
                return np.int64(-1), target
            start = pos
            kind, argument, pos = head(pos, end)
            if kind == ERROR and skip(pos, pos + argument) == pos + argument:
                start = pos
                kind, argument, pos = head(pos, end)
            if kind == BAD:
                return np.int64(-1), target
            if kind not in (ARRAY, MAP):
                target = _put_scalar(target, kind, argument, pos)
                pos += argument if kind >= STRING else 0
            elif depth < MAX_DEPTH:
                target = _open_frame(target, frame + 8 * _FRAME, kind, argument)
                depth += 1
            else:
                pos = skip(start, end)
                target = _put_bytes(target, start, pos - start) if pos >= 0 else target
                if pos < 0:
                    return np.int64(-1), target
        if depth == 0:
            return pos, target
