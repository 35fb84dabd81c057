"""The columns that the decoding loop fills, as words in memory.

The loop is `udfs.tuples.kernels.walk`; `udfs.tuples.columns` allocates the columns.

A column is described by `COLUMN_WORDS` int64 words. A column of fixed width has its values at `START`. A text or bytes
column has a content that grows from `START` to `END`, at most to `LIMIT`, and four-byte offsets; a variant has two
contents with offsets, for values and for metadata. A row is null if its bit in `VALID` is clear. Columns start with all
bits set; variants start with none, and their offsets are filled up to a row only when it has a value, so a variant
without values costs nothing.

Each field of a row has a status: `FITS`, `INEXACT`, or why it does not fit. A field that does not fit leaves its column
null; the other fields of its tuple are written (`udfs.tuples.kernels.field_writers`).
"""

from __future__ import annotations

from schemas.compiled import inlined, inner
from udfs.kernels.memory import load8, load32, set_word, store8, store32, store64, word
from udfs.kernels.values import Int

COLUMN_WORDS = 24
"""Words of a column."""

COLUMN_BYTES = 8 * COLUMN_WORDS

KIND, SCALE, START, END, LIMIT, OFFSETS, VALID, NULLS, STATUSES = 0, 1, 2, 3, 4, 5, 6, 7, 8
"""Kind of column (below); scale of its decimals; addresses of its values or content, of the content's end, of the
buffer's end, of the offsets and of the validity bits; number of null rows; address of the rows' statuses."""

META_START, META_END, META_LIMIT, META_OFFSETS, FILLED, DICTIONARY, SHAPE = 9, 10, 11, 12, 13, 14, 15
"""The same for a variant's metadata; the row up to which both offsets are filled; addresses of the dictionary and of
the cached shape."""

DATA, WANTED, JSON = 16, 17, 18
"""Address of the bytes of all tuples; number of bytes for which a variant's buffers have no room; 1 if the values are
JSON text instead, without metadata."""

IS_TEXT, IS_VARIANT, IS_BITS = 16, 32, 64
"""`KIND` of a column is the width of its values in words of eight bytes, or one of these constants."""

FITS, INEXACT, OUT_OF_RANGE, NOT_EXACT, INVALID, NOT_UTF8, TOO_LARGE, UNDECIDED = range(8)
"""Statuses of a field. `NOT_EXACT`: it is inexact where only exact values fit (`schemas.layout.TypeOptions`), which the
loop does not decide. `UNDECIDED`: Python computes the nearest double of the decimal."""

NO_ROOM = 8
"""Not a status of the field: the column's buffer must grow, and then the tuple is walked again."""

WRONG_CLASS = 16
"""The field does not accept values of this class; the status is this number plus the class (`udfs.kernels.values`)."""

MISFIT_STATUSES = ~(1 << FITS | 1 << INEXACT | 1 << UNDECIDED | 1 << NO_ROOM)
"""The statuses of a field that does not fit, as bits."""


@inlined
def clear_bit(bits: Int, row: Int) -> Int:
    """Clear a row's bit; return 1 if it was set, else 0."""
    position = bits + (row >> 3)
    byte, bit = load8(position), 1 << (row & 7)
    store8(position, byte & ~bit)
    return byte >> (row & 7) & 1


@inlined
def set_bit(bits: Int, row: Int) -> None:
    """Set a row's bit."""
    position = bits + (row >> 3)
    store8(position, load8(position) | 1 << (row & 7))


@inlined
def close_text(column: Int, row: Int, end: Int) -> None:
    """Set the end of a row's content in a text column."""
    set_word(column, END, end)
    store32(word(column, OFFSETS) + 4 * row + 4, end - word(column, START))


@inner
def discard_row(column: Int, row: Int) -> None:
    """Discard the content of a row, the last one written, so that it can be written again."""
    kind = word(column, KIND)
    if kind == IS_TEXT:
        set_word(column, END, word(column, START) + load32(word(column, OFFSETS) + 4 * row))
    elif kind == IS_VARIANT and word(column, FILLED) > row:
        set_word(column, FILLED, row)
        set_word(column, END, word(column, START) + load32(word(column, OFFSETS) + 4 * row))
        set_word(column, META_END, word(column, META_START) + load32(word(column, META_OFFSETS) + 4 * row))
        set_word(column, NULLS, word(column, NULLS) + clear_bit(word(column, VALID), row))


@inner
def put_null(column: Int, row: Int) -> None:
    """Make a row null, even if it was written before."""
    kind = word(column, KIND)
    discard_row(column, row)
    if kind == IS_VARIANT:
        return
    if kind == IS_TEXT:
        close_text(column, row, word(column, END))
    elif kind == IS_BITS:
        clear_bit(word(column, START), row)
    else:
        for k in range(kind):
            store64(word(column, START) + 8 * (kind * row + k), 0)
    set_word(column, NULLS, word(column, NULLS) + clear_bit(word(column, VALID), row))


@inner
def fill_offsets(column: Int, row: Int) -> None:
    """Fill a variant's offsets up to the start of a row: earlier rows without a value are null."""
    end, meta_end = word(column, END) - word(column, START), word(column, META_END) - word(column, META_START)
    for before in range(word(column, FILLED), row):
        store32(word(column, OFFSETS) + 4 * before + 4, end)
        store32(word(column, META_OFFSETS) + 4 * before + 4, meta_end)
    set_word(column, FILLED, row)


@inner
def close_variant(column: Int, row: Int, end: Int, meta_end: Int) -> None:
    """Set the ends of a row's value and metadata."""
    if word(column, FILLED) != row:
        fill_offsets(column, row)
    set_word(column, END, end)
    set_word(column, META_END, meta_end)
    store32(word(column, OFFSETS) + 4 * row + 4, end - word(column, START))
    store32(word(column, META_OFFSETS) + 4 * row + 4, meta_end - word(column, META_START))
    set_word(column, FILLED, row + 1)
    set_bit(word(column, VALID), row)
    set_word(column, NULLS, word(column, NULLS) - 1)
