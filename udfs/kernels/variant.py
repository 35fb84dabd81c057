"""MessagePack values → variants, without recursion.

Objects and arrays are written children first, then moved to make room for their header, as their header's
width depends on their size (Parquet's VariantEncoding; `VariantBuilder.finishWritingObject` of Spark). A map
becomes an object: integer keys become their digits; of equal keys the last counts, as for Tarantool's own Lua
decoder, and the row is INEXACT. A map with other keys, anything nested deeper than `MAX_DEPTH`, and what
`udfs.kernels.variant_scalars` cannot say is kept as binary, namely its MessagePack. An MP_ERROR is the map that
it holds (`src/box/mp_error.cc`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from udfs.kernels.compiled import entry, inner
from udfs.kernels.memory import address, move, set_word, store8, word
from udfs.kernels.scalars import FITS, INEXACT, TOO_LARGE
from udfs.kernels.values import ARRAY, ERROR, MAP, NIL, STRING, Int, head, skip
from udfs.kernels.variant_keys import (
    KEY_COUNT,
    KEYS,
    NO_KEY,
    SLOT_MASK,
    SLOTS,
    STAMP,
    TEXT_END,
    key_before,
    key_id,
    key_text,
    put_metadata,
    width_of,
)
from udfs.kernels.variant_scalars import put_binary, put_scalar, store

MAX_DEPTH = 100
GROWTH = 12
"""A variant's value, and its metadata, take at most so many bytes for each byte of MessagePack, and 32 more."""

SIZE_MAX = 128 << 20
"""The largest value, and the largest metadata, that Spark reads (`VariantUtil.SIZE_LIMIT`)."""

_KIND, _LEFT, _START, _FIRST, _SOURCE, _FRAME = 0, 1, 2, 3, 4, 5
"""Words of a frame, which is an open object or array: its class, children to come, where its data start, its first
entry, where its MessagePack starts; and how many words a frame has. An entry is a child: key id and offset."""

_UNTIL_END = 1 << 62


@inner
def _sort_fields(entries: Int, first: Int, last: Int, keys: Int) -> None:
    """Shell sort the fields first..last of an object by key, then by place."""
    gap = (last - first) // 2
    while gap > 0:
        for k in range(first + gap, last):
            one, offset = word(entries, 2 * k), word(entries, 2 * k + 1)
            j = k
            while j >= first + gap:
                other, place = word(entries, 2 * (j - gap)), word(entries, 2 * (j - gap) + 1)
                if (offset > place) if one == other else key_before(other, one, keys):
                    break
                set_word(entries, 2 * j, other)
                set_word(entries, 2 * j + 1, place)
                j -= gap
            set_word(entries, 2 * j, one)
            set_word(entries, 2 * j + 1, offset)
        gap = gap // 2


@inner
def _drop_repeated(entries: Int, first: Int, last: Int) -> Int:
    """Keep the last field of each key of a sorted object; return where the kept ones end."""
    kept = first
    for k in range(first, last):
        if k + 1 < last and word(entries, 2 * k) == word(entries, 2 * k + 2):
            continue
        set_word(entries, 2 * kept, word(entries, 2 * k))
        set_word(entries, 2 * kept + 1, word(entries, 2 * k + 1))
        kept += 1
    return kept


@inner
def _put_header(target: Int, is_map: bool, start: Int, entries: Int, first: Int, last: Int) -> Int:
    """Put the header of an object or array before its children, which lie from `start` to `target`."""
    count, size = last - first, target - start
    wide = 4 if count > 255 else 1
    width, id_width = width_of(size), 0
    header = 3 | (width - 1) << 2 | (0x10 if wide == 4 else 0)
    if is_map:
        largest = 0
        for k in range(first, last):
            largest = max(largest, word(entries, 2 * k))
        id_width = width_of(largest)
        header = 2 | (width - 1) << 2 | (id_width - 1) << 4 | (0x40 if wide == 4 else 0)
    body = start + 1 + wide + count * id_width + (count + 1) * width
    move(body, start, size)
    store8(start, header)
    store(start + 1, count, wide)
    place = start + 1 + wide
    offsets = place + count * id_width
    for k in range(first, last):
        store(place, word(entries, 2 * k), id_width)
        store(offsets, word(entries, 2 * k + 1), width)
        place += id_width
        offsets += width
    store(offsets, size, width)
    return body + size


@inner
def _close(target: Int, frame: Int, entries: Int, last: Int, book: Int) -> tuple[Int, Int]:
    """Finish the object or array of a frame; return where it ends, and whether keys were repeated."""
    first, status = word(frame, _FIRST), FITS
    is_map = word(frame, _KIND) == MAP
    if is_map and last - first > 1:
        _sort_fields(entries, first, last, word(book, KEYS))
        kept = _drop_repeated(entries, first, last)
        status = INEXACT if kept < last else FITS
        last = kept
    return _put_header(target, is_map, word(frame, _START), entries, first, last), status


@inner
def _open(frame: Int, kind: Int, count: Int, target: Int, entry: Int, source: Int) -> None:
    set_word(frame, _KIND, kind)
    set_word(frame, _LEFT, count)
    set_word(frame, _START, target)
    set_word(frame, _FIRST, entry)
    set_word(frame, _SOURCE, source)


@inner
def _take_key(pos: Int, end: Int, entry: Int, book: Int) -> tuple[Int, bool]:
    """Take the key at `pos` for an entry; return where its value starts (NO_KEY: no key), whether it is exact."""
    kind, argument, pos = head(pos, end)
    place, size, exact = key_text(kind, argument, pos, book)
    if size == NO_KEY:
        return NO_KEY, True
    set_word(entry, 0, key_id(place, size, book))
    return pos + (argument if kind >= STRING else 0), exact


@inner
def _put_value(
    pos: Int, end: Int, target: Int, depth: Int, frame: Int, entry: Int
) -> tuple[Int, Int, Int, bool]:
    """Write a value, or open a frame for it; return (pos, target, status, whether a frame was opened)."""
    start = pos
    kind, argument, pos = head(pos, end)
    if kind == ERROR and skip(pos, pos + argument) == pos + argument:
        start = pos
        kind, argument, pos = head(pos, end)
    if kind in (ARRAY, MAP):
        if depth < MAX_DEPTH:
            _open(frame, kind, argument, target, entry, start)
            return pos, target, FITS, True
        pos = skip(start, end)
        return pos, put_binary(target, start, pos - start), FITS, False
    target, status = put_scalar(target, kind, argument, start, pos)
    return pos + (argument if kind >= STRING else 0), target, status, False


@inner
def encode(
    pos: Int, end: Int, is_extra: bool, target: Int, frames: Int, entries: Int, book: Int
) -> tuple[Int, Int]:
    """Write the value at `pos`, or the array of all values up to `end`; the MessagePack is known to be valid.

    Parameters
    ----------
    pos, end : int
        Addresses.
    is_extra : bool
        Whether all values up to `end` are written as one array.
    target : int
        Address of the result.
    frames, entries, book : int
        Addresses of the words of the open frames, of their children, of the dictionary.

    Returns
    -------
    target, status : int
        Where the value ends; FITS or INEXACT.

    """
    depth, count, status = 0, 0, FITS
    if is_extra:
        _open(frames, ARRAY, _UNTIL_END, target, 0, pos)
        depth = 1
    while True:
        frame = frames + 8 * _FRAME * (depth - 1)
        if depth > 0 and (word(frame, _LEFT) == 0 or pos >= end):
            target, loss = _close(target, frame, entries, count, book)
            status = max(status, loss)
            count = word(frame, _FIRST)
            depth -= 1
        else:
            if depth > 0:
                entry = entries + 16 * count
                set_word(entry, 1, target - word(frame, _START))
                set_word(frame, _LEFT, word(frame, _LEFT) - 1)
                count += 1
            exact = True
            if depth > 0 and word(frame, _KIND) == MAP:
                pos, exact = _take_key(pos, end, entry, book)
                status = status if exact else INEXACT
            if pos == NO_KEY:
                source = word(frame, _SOURCE)
                pos = skip(source, end)
                target = put_binary(word(frame, _START), source, pos - source)
                count = word(frame, _FIRST)
                depth -= 1
            else:
                pos, target, loss, opened = _put_value(pos, end, target, depth, frame + 8 * _FRAME, count)
                status = max(status, loss)
                depth += 1 if opened else 0
        if depth == 0:
            return target, status


@entry
def variants(
    data: Any,
    classes: Any,
    arguments: Any,
    is_extra: bool,
    largest: int,
    values: Any,
    value_ends: Any,
    metadata: Any,
    metadata_ends: Any,
    statuses: Any,
) -> None:
    """Write a column of variants.

    Parameters
    ----------
    data : uint8 array
        The tuples' bytes.
    classes, arguments : arrays, (rows,)
        What the walk left.
    is_extra : bool
        Whether a row's span is an array's elements.
    largest : int
        Size of the largest span.
    values, metadata : uint8 arrays
        Large enough (`GROWTH`).
    value_ends, metadata_ends : int64 arrays, (rows + 1,)
    statuses : uint8 array, (rows,)

    """
    base, target, meta = address(data), address(values), address(metadata)
    slot_count = 4
    while slot_count < largest:
        slot_count *= 2
    frames, entries = np.zeros((MAX_DEPTH + 1) * _FRAME, np.int64), np.zeros(2 * largest + 2, np.int64)
    keys, slots = np.zeros(2 * largest + 2, np.int64), np.zeros(slot_count, np.int64)
    texts, book = np.zeros(8 * largest + 32, np.uint8), np.zeros(6, np.int64)
    book[SLOT_MASK], book[KEYS], book[SLOTS] = slot_count - 1, address(keys), address(slots)
    for row in range(len(classes)):
        if classes[row] > NIL:
            start, meta_start = target, meta
            pos, size = base + (arguments[row] >> 32), arguments[row] & 0xFFFFFFFF
            book[KEY_COUNT], book[TEXT_END], book[STAMP] = 0, address(texts), row + 1
            target, status = encode(
                pos, pos + size, is_extra, target, address(frames), address(entries), address(book)
            )
            meta = put_metadata(meta, address(book))
            largest_part = max(target - start, meta - meta_start)
            statuses[row] = TOO_LARGE if largest_part > SIZE_MAX else status
        value_ends[row + 1] = target - address(values)
        metadata_ends[row + 1] = meta - address(metadata)
