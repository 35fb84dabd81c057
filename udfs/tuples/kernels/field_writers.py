"""Writes one field of a tuple to its column, in any class and encoding that the field's type accepts.

`udfs.tuples.kernels.fast_path` is the fast path for the most frequent encoding of each type.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import inlined, inner
from udfs.kernels.decimals import read_decimal, rescale
from udfs.kernels.doubles import decimal_to_double, integer_to_double
from udfs.kernels.memory import copy, copy_over, set_word, store64, word
from udfs.kernels.scalars import (
    FITS,
    INEXACT,
    INVALID,
    MAX_SECONDS,
    MIN_SECONDS,
    NO_ROOM,
    NOT_UTF8,
    OUT_OF_RANGE,
    TOO_LARGE,
    TOO_MANY_DIGITS,
    UNDECIDED,
    WRONG_CLASS,
    read_datetime,
)
from udfs.kernels.texts import is_utf8
from udfs.kernels.values import DECIMAL, DOUBLE, FLOAT, INTEGER, NIL, STRING, UNSIGNED_BIG, Int, head, skip
from udfs.tuples.kernels.columns import (
    BOOK,
    DATA,
    END,
    LIMIT,
    META_END,
    META_LIMIT,
    SCALE,
    SHAPE,
    START,
    WANTED,
    close_text,
    close_variant,
    put_null,
    set_bit,
)
from udfs.tuples.kernels.fast_path import (
    quick_boolean,
    quick_decimal,
    quick_double,
    quick_integer,
    quick_string,
    quick_timestamp,
    quick_uuid,
)
from udfs.tuples.kernels.variant import GROWTH, SIZE_MAX, encode
from udfs.tuples.kernels.variant_keys import FRAMES, put_metadata, start_book
from udfs.tuples.kernels.variant_shape import (
    META,
    META_SIZE,
    MISSES,
    PATIENCE,
    PAUSE,
    SLACK,
    TOKENS,
    record_shape,
    replay,
)
from udfs.tuples.kernels.writers import (
    DECIMAL_TEXT_MAX,
    INTERVAL_TEXT_MAX,
    UUID_TEXT,
    read_interval,
    write_decimal,
    write_interval,
    write_uuid,
)

STORAGE_SHIFT = 24
"""Position of the storage (four bits) in a field's word; the bits below are the classes that the field accepts."""

COLUMN_SHIFT = 32
"""Position of the column's offset in a field's word, in bytes from the first column."""

LONG, WIDE, DOUBLES, DECIMALS, DECIMAL_TEXT, BOOLEANS, TEXT, BYTES, UUIDS, TIMESTAMPS, INTERVALS, VARIANTS = (
    range(12)
)
RAW_TEXT = 12
"""How a column is stored (`schemas.field_types.ColumnStorage`)."""


@inlined
def put_quickly(pos: Int, end: Int, field: Int, column: Int, row: Int) -> Int:
    """Put a field by the fast path; return where it ends, or 0 if its encoding is another one."""
    storage = field >> STORAGE_SHIFT & 15
    if storage == TEXT:
        return quick_string(pos, end, column, row, True, True)
    if storage == WIDE:
        return quick_integer(pos, field, column, row, 2)
    if storage == LONG:
        return quick_integer(pos, field, column, row, 1)
    if storage == DOUBLES:
        return quick_double(pos, column, row)
    if storage == BOOLEANS:
        return quick_boolean(pos, column, row)
    if storage == DECIMALS:
        return quick_decimal(pos, column, row)
    if storage == TIMESTAMPS:
        return quick_timestamp(pos, column, row)
    if storage == UUIDS:
        return quick_uuid(pos, end, column, row)
    if storage in (BYTES, RAW_TEXT):
        return quick_string(pos, end, column, row, storage == RAW_TEXT, False)
    return 0


@inner
def _put_double(kind: Int, argument: Int, pos: Int, column: Int, row: Int) -> Int:
    """Put any number; of a decimal that Python must convert, store position and size and return `UNDECIDED`."""
    target, status = word(column, START) + 8 * row, FITS
    if kind in (DOUBLE, FLOAT):
        store64(target, argument)
        return FITS
    if kind == DECIMAL:
        number = read_decimal(pos, argument)
        if not number[4]:
            return INVALID
        value, same, known = decimal_to_double(number)
        if not known:
            store64(target, (pos - word(column, DATA)) << 32 | argument)
            return UNDECIDED
    else:
        value, same = integer_to_double(kind, argument)
    store64(target, np.float64(value).view(np.int64))
    return status if same else INEXACT


@inner
def _put_fixed(storage: Int, kind: Int, argument: Int, pos: Int, column: Int, row: Int) -> Int:
    start = word(column, START)
    if storage == DOUBLES:
        return _put_double(kind, argument, pos, column, row)
    if storage == LONG:
        store64(start + 8 * row, argument)
        return OUT_OF_RANGE if kind == UNSIGNED_BIG else FITS
    if storage == WIDE:
        store64(start + 16 * row, argument)
        store64(start + 16 * row + 8, -1 if kind == INTEGER and argument < 0 else 0)
        return FITS
    if storage == BOOLEANS:
        if argument:
            set_bit(start, row)
        return FITS
    if storage == DECIMALS:
        number = read_decimal(pos, argument)
        upper, lower, fits = rescale(number, word(column, SCALE))
        store64(start + 16 * row, np.int64(lower))
        store64(start + 16 * row + 8, np.int64(upper))
        return FITS if fits else (TOO_MANY_DIGITS if number[4] else INVALID)
    seconds, nanoseconds, valid = read_datetime(pos, argument)
    if not valid:
        return INVALID
    if seconds < MIN_SECONDS or seconds > MAX_SECONDS:
        return OUT_OF_RANGE
    store64(start + 8 * row, seconds * 1000000 + nanoseconds // 1000)
    return FITS if nanoseconds % 1000 == 0 else INEXACT


@inner
def _text_room(storage: Int, size: Int) -> Int:
    """Return the greatest number of bytes of one row's text."""
    if storage == DECIMAL_TEXT:
        return DECIMAL_TEXT_MAX
    if storage == UUIDS:
        return UUID_TEXT
    return INTERVAL_TEXT_MAX if storage == INTERVALS else size


@inner
def _put_text(storage: Int, size: Int, pos: Int, column: Int, row: Int) -> Int:
    target, status = word(column, END), FITS
    if target + _text_room(storage, size) > word(column, LIMIT):
        return NO_ROOM
    if storage in (TEXT, BYTES, RAW_TEXT):
        if storage != TEXT or is_utf8(pos, size):
            copy(target, pos, size)
            target += size
        else:
            status = NOT_UTF8
    elif storage == DECIMAL_TEXT:
        number = read_decimal(pos, size)
        if number[4]:
            target = write_decimal(target, number)
        else:
            status = INVALID
    elif storage == UUIDS:
        if size == 16:
            target = write_uuid(target, pos)
        else:
            status = INVALID
    else:
        amounts = np.zeros(9, np.int64)
        if read_interval(pos, size, amounts):
            target = write_interval(target, amounts)
        else:
            status = INVALID
    close_text(column, row, target)
    return status


@inner
def put_variant(pos: Int, end: Int, extras: Int, column: Int, row: Int) -> tuple[Int, Int]:
    """Put the value at `pos`, or `extras` values as one array; return where it ends (-1: broken) and a status."""
    target, meta, most = word(column, END), word(column, META_END), GROWTH * (end - pos) + 32 + SLACK
    if target + most > word(column, LIMIT) or meta + most > word(column, META_LIMIT):
        set_word(column, WANTED, most)
        return pos, NO_ROOM
    book, shape = word(column, BOOK), word(column, SHAPE)
    misses = word(shape, MISSES)
    is_tried = extras == 0 and (misses < PATIENCE or row & PAUSE == 0)
    if is_tried and word(shape, TOKENS) > 0:
        after, last = replay(pos, end, target, shape, word(book, FRAMES))
        if after >= 0 and last - target <= SIZE_MAX:
            size = word(shape, META_SIZE)
            copy_over(meta, shape + 8 * META, size)
            close_variant(column, row, last, meta + size)
            set_word(shape, MISSES, 0)
            return after, FITS
        set_word(shape, MISSES, misses + 1)
    start_book(book)
    after, last, status = encode(pos, end, extras, target, book)
    if after < 0:
        return after, FITS
    meta_end = put_metadata(meta, book)
    if max(last - target, meta_end - meta) > SIZE_MAX:
        return after, TOO_LARGE
    close_variant(column, row, last, meta_end)
    if is_tried and status == FITS:
        record_shape(pos, after, target, meta, meta_end - meta, shape, word(book, FRAMES))
    return after, status


@inner
def put_any(pos: Int, end: Int, field: Int, column: Int, row: Int) -> tuple[Int, Int]:
    """Put a field of any form.

    Returns
    -------
    pos : int
        Where it ends; -1 if it is not MessagePack.
    status : int
        Its status (`udfs.kernels.scalars`).

    """
    kind, argument, after = head(pos, end)
    if not field >> kind & 1:
        return skip(pos, end), WRONG_CLASS + kind
    if kind == NIL:
        put_null(column, row)
        return after, FITS
    storage = field >> STORAGE_SHIFT & 15
    if storage == VARIANTS:
        return put_variant(pos, end, 0, column, row)
    if storage in (DECIMAL_TEXT, TEXT, BYTES, RAW_TEXT, UUIDS, INTERVALS):
        status = _put_text(storage, argument, after, column, row)
    else:
        status = _put_fixed(storage, kind, argument, after, column, row)
    return after + (argument if kind >= STRING else 0), status
