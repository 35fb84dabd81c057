"""Writes one field of a tuple to its column, in any class and encoding that the field's type accepts.

`put_quickly` is the fast path: it writes a field that has the most frequent encoding of its type, and returns where the
field ends, or 0 for anything else: another class, a rarer encoding, an invalid or inexact value. Then `put_any` handles
the field; so the fast path affects only the speed. If the fast path has stored a value of a field that is cut short,
`put_any` overwrites it. The position of the next field is computed from as few loads as possible, because each load
waits for the one before.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import inlined, inner
from udfs.kernels.decimals import POWERS_OF_TEN, U64, multiply_int128, read_decimal
from udfs.kernels.doubles import decimal_to_double, integer_to_double
from udfs.kernels.memory import (
    CHUNK_BYTES,
    copy,
    copy_chunk,
    copy_over,
    load8,
    load16,
    load32,
    load64,
    load64_big,
    set_word,
    store64,
    word,
)
from udfs.kernels.packed_decimals import read_packed, round_packed
from udfs.kernels.values import (
    DECIMAL,
    DOUBLE,
    FLOAT,
    INTEGER,
    NIL,
    STRING,
    TIMESTAMP_MAX_SECONDS,
    TIMESTAMP_MIN_SECONDS,
    UNSIGNED_BIG,
    Int,
    head,
    is_utf8,
    read_datetime,
    skip,
)
from udfs.tuples.kernels.columns import (
    DATA,
    DICTIONARY,
    END,
    FITS,
    INEXACT,
    INVALID,
    JSON,
    LIMIT,
    META_END,
    META_LIMIT,
    NO_ROOM,
    NOT_UTF8,
    OUT_OF_RANGE,
    SCALE,
    SHAPE,
    START,
    TOO_LARGE,
    UNDECIDED,
    WANTED,
    WRONG_CLASS,
    close_text,
    close_variant,
    put_null,
    set_bit,
)
from udfs.tuples.kernels.json_text import JSON_GROWTH, JSON_MORE_BYTES, put_json
from udfs.tuples.kernels.variant import VARIANT_BYTES_MAX, VARIANT_GROWTH, encode
from udfs.tuples.kernels.variant_keys import FRAMES, clear_dictionary, put_metadata
from udfs.tuples.kernels.variant_shape import (
    META,
    META_SIZE,
    MISSES,
    PATIENCE,
    PAUSE,
    SLACK_BYTES,
    TOKENS,
    record_shape,
    write_by_shape,
)
from udfs.tuples.kernels.writers import (
    DECIMAL_TEXT_MAX,
    INTERVAL_TEXT_MAX,
    UUID_TEXT_BYTES,
    read_interval,
    write_decimal,
    write_interval,
    write_uuid,
)

STORAGE_SHIFT = 24
"""Position of the storage (four bits) in a field's word; the bits below are the classes that the field accepts."""

COLUMN_SHIFT = 32
"""Position of the column's offset in a field's word, in bytes from the first column."""

LONG, WIDE, DOUBLES, DECIMALS, DECIMAL_TEXT, BOOLEANS, TEXT = range(7)
BYTES, UUIDS, TIMESTAMPS, INTERVALS, VARIANTS, RAW_TEXT, JSONS = range(7, 14)
"""How a column is stored: the numbers of `schemas.field_types.ColumnStorage`."""


@inlined
def put_quickly(pos: Int, end: Int, field_word: Int, column: Int, row: Int) -> Int:
    """Put a field by the fast path; return where it ends, or 0 if the fast path does not handle its encoding."""
    storage = field_word >> STORAGE_SHIFT & 15
    if storage == TEXT:
        return quick_string(pos, end, column, row, True, True)
    if storage == WIDE:
        return quick_integer(pos, field_word, column, row, 2)
    if storage == LONG:
        return quick_integer(pos, field_word, column, row, 1)
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
        if not number[4] and not read_packed(pos, argument)[4]:
            return INVALID
        value, same, known = decimal_to_double(number)
        if not number[4] or not known:
            store64(target, (pos - word(column, DATA)) << 32 | argument)
            return UNDECIDED
    else:
        value, same = integer_to_double(kind, argument)
    store64(target, np.float64(value).view(np.int64))
    return status if same else INEXACT


@inner
def _put_fixed(storage: Int, kind: Int, argument: Int, pos: Int, column: Int, row: Int) -> Int:
    """Put a value into a column of fixed width; return the status."""
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
        packed = read_packed(pos, argument)
        if not packed[4]:
            return INVALID
        upper, lower, fits, exact = round_packed(packed, word(column, SCALE))
        store64(start + 16 * row, np.int64(lower))
        store64(start + 16 * row + 8, np.int64(upper))
        return (FITS if exact else INEXACT) if fits else OUT_OF_RANGE
    seconds, nanoseconds, valid = read_datetime(pos, argument)
    if not valid:
        return INVALID
    if seconds < TIMESTAMP_MIN_SECONDS or seconds > TIMESTAMP_MAX_SECONDS:
        return OUT_OF_RANGE
    store64(start + 8 * row, seconds * 1000000 + nanoseconds // 1000)
    return FITS if nanoseconds % 1000 == 0 else INEXACT


@inner
def _text_bytes_max(storage: Int, size: Int) -> Int:
    """Return the greatest number of bytes of one row's text."""
    if storage == DECIMAL_TEXT:
        return DECIMAL_TEXT_MAX
    if storage == UUIDS:
        return UUID_TEXT_BYTES
    return INTERVAL_TEXT_MAX if storage == INTERVALS else size


@inner
def _put_text(storage: Int, size: Int, pos: Int, column: Int, row: Int) -> Int:
    """Put a value into a column of text or bytes; return the status."""
    target, status = word(column, END), FITS
    if target + _text_bytes_max(storage, size) > word(column, LIMIT):
        return NO_ROOM
    if storage in (TEXT, BYTES, RAW_TEXT):
        if storage != TEXT or is_utf8(pos, size):
            copy(target, pos, size)
            target += size
        else:
            status = NOT_UTF8
    elif storage == DECIMAL_TEXT:
        packed = read_packed(pos, size)
        if packed[4]:
            target = write_decimal(target, packed)
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
def _put_json_text(pos: Int, end: Int, extra_count: Int, column: Int, row: Int) -> tuple[Int, Int]:
    """Do what `put_nested` does, for a column of JSON."""
    target, most = word(column, END), JSON_GROWTH * (end - pos) + JSON_MORE_BYTES
    if target + most > word(column, LIMIT):
        set_word(column, WANTED, most)
        return pos, NO_ROOM
    after, last = put_json(pos, end, extra_count, target, word(word(column, DICTIONARY), FRAMES))
    if after >= 0:
        close_variant(column, row, last, word(column, META_END))
    return after, FITS


@inner
def put_nested(pos: Int, end: Int, extra_count: Int, column: Int, row: Int) -> tuple[Int, Int]:
    """Put the value at `pos` into a column of variants or JSON; if `extra_count` is not 0, put that many as one array.

    Return (where the values end, or -1 if they are not MessagePack; the status).
    """
    if word(column, JSON) == 1:
        return _put_json_text(pos, end, extra_count, column, row)
    target, meta, most = (
        word(column, END),
        word(column, META_END),
        VARIANT_GROWTH * (end - pos) + 32 + SLACK_BYTES,
    )
    if target + most > word(column, LIMIT) or meta + most > word(column, META_LIMIT):
        set_word(column, WANTED, most)
        return pos, NO_ROOM
    dictionary, shape = word(column, DICTIONARY), word(column, SHAPE)
    misses = word(shape, MISSES)
    is_tried = extra_count == 0 and (misses < PATIENCE or row & PAUSE == 0)
    if is_tried and word(shape, TOKENS) > 0:
        after, last = write_by_shape(pos, end, target, shape, word(dictionary, FRAMES))
        if after >= 0 and last - target <= VARIANT_BYTES_MAX:
            size = word(shape, META_SIZE)
            copy_over(meta, shape + 8 * META, size)
            close_variant(column, row, last, meta + size)
            set_word(shape, MISSES, 0)
            return after, FITS
        set_word(shape, MISSES, misses + 1)
    clear_dictionary(dictionary)
    after, last, status = encode(pos, end, extra_count, target, dictionary)
    if after < 0:
        return after, FITS
    meta_end = put_metadata(meta, dictionary)
    if max(last - target, meta_end - meta) > VARIANT_BYTES_MAX:
        return after, TOO_LARGE
    close_variant(column, row, last, meta_end)
    if is_tried and status == FITS:
        record_shape(pos, after, target, meta, meta_end - meta, shape, word(dictionary, FRAMES))
    return after, status


@inner
def put_any(pos: Int, end: Int, field_word: Int, column: Int, row: Int) -> tuple[Int, Int]:
    """Write one field of a tuple into its column, whatever its value's class and encoding.

    Returns:
        pos: Where it ends; -1 if it is not MessagePack.
        status: Its status (`udfs.tuples.kernels.columns`).
    """
    kind, argument, after = head(pos, end)
    if not field_word >> kind & 1:
        return skip(pos, end), WRONG_CLASS + kind
    if kind == NIL:
        put_null(column, row)
        return after, FITS
    storage = field_word >> STORAGE_SHIFT & 15
    if storage in (VARIANTS, JSONS):
        return put_nested(pos, end, 0, column, row)
    if storage in (DECIMAL_TEXT, TEXT, BYTES, RAW_TEXT, UUIDS, INTERVALS):
        status = _put_text(storage, argument, after, column, row)
    else:
        status = _put_fixed(storage, kind, argument, after, column, row)
    return after + (argument if kind >= STRING else 0), status


_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@inlined
def quick_integer(pos: Int, field_word: Int, column: Int, row: Int, width: Int) -> Int:
    """Put an integer of 64 bits into a column of `width` words per value."""
    byte = load8(pos)
    value, after = byte, pos + 1
    if byte >= 0x80:
        if 0xCC <= byte < 0xD4:
            size = 1 << (byte & 3)
            after += size
            value = load64_big(pos + 1) >> (64 - 8 * size)
            if byte < 0xD0:
                if size == 8 and value < 0:
                    return 0
                value &= (1 << (8 * size & 63)) - 1 if size < 8 else -1
        elif byte >= 0xE0:
            value = byte - 256
        else:
            return 0
        if byte >= 0xD0 and not field_word >> INTEGER & 1:
            return 0
    if width == 1:
        store64(word(column, START) + 8 * row, value)
    else:
        store64(word(column, START) + 16 * row, value)
        store64(word(column, START) + 16 * row + 8, value >> 63)
    return after


@inlined
def quick_double(pos: Int, column: Int, row: Int) -> Int:
    """Put a double of eight bytes."""
    if load8(pos) != 0xCB:
        return 0
    store64(word(column, START) + 8 * row, load64_big(pos + 1))
    return pos + 9


@inlined
def quick_boolean(pos: Int, column: Int, row: Int) -> Int:
    """Put a boolean; rows start as false."""
    byte = load8(pos)
    if byte & 0xFE != 0xC2:
        return 0
    if byte == 0xC3:
        set_bit(word(column, START), row)
    return pos + 1


@inlined
def _copy_and_find_non_ascii(target: Int, pos: Int, size: Int) -> Int:
    """Copy bytes in chunks; return 0 if all of them are ASCII."""
    high = np.int64(0)
    while size > CHUNK_BYTES:
        high |= copy_chunk(target, pos)
        target += CHUNK_BYTES
        pos += CHUNK_BYTES
        size -= CHUNK_BYTES
    return high | copy_chunk(target, pos) & ((1 << size) - 1)


@inlined
def quick_string(pos: Int, end: Int, column: Int, row: Int, is_text: bool, must_be_utf8: bool) -> Int:
    """Put a string (if `is_text`) or varbinary of up to 255 bytes; if `must_be_utf8`, it must be UTF-8."""
    byte = load8(pos)
    if is_text and byte & 0xE0 == 0xA0:
        size = byte & 0x1F
        pos += 1
    elif byte == (0xD9 if is_text else 0xC4):
        size = load8(pos + 1)
        pos += 2
    else:
        return 0
    if pos + size > end:
        return 0
    target = word(column, END)
    if target + size > word(column, LIMIT):
        return 0
    if _copy_and_find_non_ascii(target, pos, size) != 0 and must_be_utf8 and not is_utf8(pos, size):
        return 0
    close_text(column, row, target + size)
    return pos + size


@inlined
def quick_uuid(pos: Int, end: Int, column: Int, row: Int) -> Int:
    """Put the text of a uuid."""
    target = word(column, END)
    if load16(pos) != 0x02D8 or pos + 18 > end or target + UUID_TEXT_BYTES > word(column, LIMIT):
        return 0
    close_text(column, row, write_uuid(target, pos + 2))
    return pos + 18


@inlined
def quick_timestamp(pos: Int, column: Int, row: Int) -> Int:
    """Put a datetime of the years 1 to 9999 without a part of a microsecond."""
    form = load16(pos)
    nanoseconds, after = np.int64(0), pos + 10
    if form == 0x04D8:
        nanoseconds, after = load32(pos + 10), pos + 18
    elif form != 0x04D7:
        return 0
    seconds = load64(pos + 2)
    microseconds = nanoseconds // 1000
    if microseconds * 1000 != nanoseconds or nanoseconds >= 1000000000:
        return 0
    if seconds < TIMESTAMP_MIN_SECONDS or seconds > TIMESTAMP_MAX_SECONDS:
        return 0
    store64(word(column, START) + 8 * row, seconds * 1000000 + microseconds)
    return after


@inlined
def _bcd_to_number(digits: U64) -> U64:
    """Convert up to 15 decimal digits of four bits each (BCD) to a number."""
    pairs = (digits & np.uint64(0x0F0F0F0F0F0F0F0F)) + (
        digits >> np.uint64(4) & np.uint64(0x0F0F0F0F0F0F0F0F)
    ) * np.uint64(10)
    fours = (pairs & np.uint64(0x00FF00FF00FF00FF)) + (
        pairs >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    ) * np.uint64(100)
    eights = (fours & np.uint64(0x0000FFFF0000FFFF)) + (
        fours >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    ) * np.uint64(10000)
    return (eights & np.uint64(0xFFFFFFFF)) + (eights >> np.uint64(32)) * np.uint64(100000000)


@inlined
def quick_decimal(pos: Int, column: Int, row: Int) -> Int:
    """Put a decimal of up to 15 digits with a scale of 0 to 127; the column's scale is 0 to 19 above it."""
    form = load16(pos)
    if 0x01D5 <= form <= 0x01D7:
        size, pos = 1 << (form - 0x01D4), pos + 2
    elif form & 0xFF == 0xC7 and load8(pos + 2) == 1:
        size, pos = form >> 8, pos + 3
    else:
        return 0
    power = word(column, SCALE) - load8(pos)
    if size < 2 or size > 9 or power < 0 or power > 19 or load8(pos) >= 0x80:
        return 0
    packed = np.uint64(load64_big(pos + 1)) >> np.uint64(8 * (9 - size))
    sign, digits = np.int64(packed & np.uint64(15)), packed >> np.uint64(4)
    sixes = np.uint64(0x0666666666666666)
    carries = (digits + sixes ^ digits ^ sixes) & np.uint64(0x1111111111111110)
    if sign <= 9 or carries != _ZERO:
        return 0
    upper, lower = multiply_int128(_ZERO, _bcd_to_number(digits), POWERS_OF_TEN[power])
    if sign in (0x0B, 0x0D):
        lower = ~lower + _ONE
        upper = ~upper + (_ONE if lower == _ZERO else _ZERO)
    store64(word(column, START) + 16 * row, np.int64(lower))
    store64(word(column, START) + 16 * row + 8, np.int64(upper))
    return pos + size
