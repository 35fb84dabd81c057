"""Encodes MessagePack values as variants, without recursion.

The children of an object or array are written first and then moved to make room for the header, because the header's
width depends on their size (Parquet's VariantEncoding; `VariantBuilder.finishWritingObject` of Spark). A map becomes an
object: integer keys become their digits; of equal keys the last one wins, as in Tarantool's Lua decoder, and the row is
INEXACT. A map with other keys, a value nested deeper than `MAX_DEPTH`, and a value that
`udfs.tuples.kernels.variant_scalars` cannot represent become binary: their MessagePack. An MP_ERROR becomes the map
that it contains (`src/box/mp_error.cc`).
"""

from __future__ import annotations

from schemas.compiled import inner
from udfs.kernels.memory import move, set_word, store8, word
from udfs.kernels.values import ARRAY, BAD, ERROR, MAP, STRING, Int, head, skip
from udfs.tuples.kernels.columns import FITS, INEXACT
from udfs.tuples.kernels.variant_keys import (
    ENTRIES,
    FRAMES,
    KEYS,
    NO_KEY,
    byte_width,
    is_key_before,
    key_id,
    key_text,
)
from udfs.tuples.kernels.variant_scalars import put_binary, put_scalar, store_little

MAX_DEPTH = 100
VARIANT_GROWTH = 12
"""A variant's value, and its metadata, take at most this many bytes per byte of MessagePack, and 32 more."""

VARIANT_BYTES_MAX = 128 << 20
"""The largest value, and the largest metadata, that Spark reads (`VariantUtil.SIZE_LIMIT`)."""

_KIND, _LEFT, _START, _FIRST, _SOURCE, _FRAME = 0, 1, 2, 3, 4, 5
FRAME_STACK_WORDS = (MAX_DEPTH + 2) * _FRAME
"""Words of all frames. A frame is an open object or array: its class, the number of children to come, the start of its
data, its first entry, the start of its MessagePack. An entry is a child: key id and offset."""

BROKEN_END = -1
"""Returned as the end of a value that is not MessagePack."""


_INSERTION_SORT_MAX = 24
"""Up to this many fields are sorted by insertion, which is faster then; more by a heap, in at most n log n steps."""


@inner
def _is_before(entries: Int, one: Int, other: Int, keys: Int) -> bool:
    """Return whether one field of an object comes before another: by key, then by position."""
    a, b = word(entries, 2 * one), word(entries, 2 * other)
    if a == b:
        return bool(word(entries, 2 * one + 1) < word(entries, 2 * other + 1))
    return bool(is_key_before(a, b, keys))


@inner
def _swap(entries: Int, one: Int, other: Int) -> None:
    for part in range(2):
        kept = word(entries, 2 * one + part)
        set_word(entries, 2 * one + part, word(entries, 2 * other + part))
        set_word(entries, 2 * other + part, kept)


@inner
def _sift_down(entries: Int, first: Int, index: Int, count: Int, keys: Int) -> None:
    """Sift a field down in a heap of `count` fields, until no child is greater."""
    while 2 * index + 1 < count:
        child = 2 * index + 1
        if child + 1 < count and _is_before(entries, first + child, first + child + 1, keys):
            child += 1
        if not _is_before(entries, first + index, first + child, keys):
            return
        _swap(entries, first + index, first + child)
        index = child


@inner
def _insertion_sort(entries: Int, first: Int, last: Int, keys: Int) -> None:
    for k in range(first + 1, last):
        one, offset = word(entries, 2 * k), word(entries, 2 * k + 1)
        j = k
        while j > first:
            other, index = word(entries, 2 * j - 2), word(entries, 2 * j - 1)
            if (offset > index) if one == other else is_key_before(other, one, keys):
                break
            set_word(entries, 2 * j, other)
            set_word(entries, 2 * j + 1, index)
            j -= 1
        set_word(entries, 2 * j, one)
        set_word(entries, 2 * j + 1, offset)


@inner
def _sort_fields(entries: Int, first: Int, last: Int, keys: Int) -> None:
    """Sort the fields first..last of an object by key, then by position."""
    count = last - first
    if count <= _INSERTION_SORT_MAX:
        _insertion_sort(entries, first, last, keys)
        return
    position = first + 1
    while position < last and _is_before(entries, position - 1, position, keys):
        position += 1
    if position == last:  # already in order, as in most objects
        return
    for k in range(count // 2 - 1, -1, -1):
        _sift_down(entries, first, k, count, keys)
    for k in range(count - 1, 0, -1):
        _swap(entries, first, first + k)
        _sift_down(entries, first, 0, k, keys)


@inner
def _drop_repeated_keys(entries: Int, first: Int, last: Int) -> Int:
    """Keep only the last field of each key in a sorted object; return where the fields end."""
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
    width, id_width = byte_width(size), 0
    header = 3 | (width - 1) << 2 | (0x10 if wide == 4 else 0)
    if is_map:
        largest = 0
        for k in range(first, last):
            largest = max(largest, word(entries, 2 * k))
        id_width = byte_width(largest)
        header = 2 | (width - 1) << 2 | (id_width - 1) << 4 | (0x40 if wide == 4 else 0)
    body = start + 1 + wide + count * id_width + (count + 1) * width
    move(body, start, size)
    store8(start, header)
    store_little(start + 1, count, wide)
    position = start + 1 + wide
    offsets = position + count * id_width
    for k in range(first, last):
        store_little(position, word(entries, 2 * k), id_width)
        store_little(offsets, word(entries, 2 * k + 1), width)
        position += id_width
        offsets += width
    store_little(offsets, size, width)
    return body + size


@inner
def _close_frame(target: Int, frame: Int, entries: Int, last: Int, dictionary: Int) -> tuple[Int, Int]:
    """Finish the object or array of a frame; return where it ends, and whether keys were repeated."""
    first, status = word(frame, _FIRST), FITS
    is_map = word(frame, _KIND) == MAP
    if is_map and last - first > 1:
        _sort_fields(entries, first, last, word(dictionary, KEYS))
        kept = _drop_repeated_keys(entries, first, last)
        status = INEXACT if kept < last else FITS
        last = kept
    return _put_header(target, is_map, word(frame, _START), entries, first, last), status


@inner
def _open_frame(frame: Int, kind: Int, count: Int, target: Int, entry: Int, source: Int) -> None:
    set_word(frame, _KIND, kind)
    set_word(frame, _LEFT, count)
    set_word(frame, _START, target)
    set_word(frame, _FIRST, entry)
    set_word(frame, _SOURCE, source)


@inner
def _read_key(pos: Int, end: Int, entry: Int, dictionary: Int) -> tuple[Int, bool]:
    """Read the key at `pos` into an entry; return where its value starts, or NO_KEY if the key has no text form.

    The second result is whether the text is exact.
    """
    kind, argument, pos = head(pos, end)
    position, size, exact = key_text(kind, argument, pos, dictionary)
    if size == NO_KEY:
        return NO_KEY, True
    set_word(entry, 0, key_id(position, size, dictionary))
    return pos + (argument if kind >= STRING else 0), exact


@inner
def _put_value(
    pos: Int, end: Int, target: Int, depth: Int, frame: Int, entry: Int
) -> tuple[Int, Int, Int, bool]:
    """Write a value, or open a frame for it.

    Return (position of what to read next, end of what was written, status, whether a frame was opened).
    """
    start = pos
    kind, argument, pos = head(pos, end)
    if kind == BAD:
        return BROKEN_END, target, FITS, False
    if kind == ERROR and skip(pos, pos + argument) == pos + argument:
        start = pos
        kind, argument, pos = head(pos, end)
    if kind in (ARRAY, MAP):
        if depth < MAX_DEPTH:
            _open_frame(frame, kind, argument, target, entry, start)
            return pos, target, FITS, True
        pos = skip(start, end)
        return pos, (put_binary(target, start, pos - start) if pos >= 0 else target), FITS, False
    target, status = put_scalar(target, kind, argument, start, pos)
    return pos + (argument if kind >= STRING else 0), target, status, False


@inner
def _put_map_as_binary(frame: Int, end: Int) -> tuple[Int, Int]:
    """Write the map of a frame, which has a key without a text form, as a binary: its MessagePack.

    Return (end of the map, end of the binary).
    """
    source, target = word(frame, _SOURCE), word(frame, _START)
    pos = skip(source, end)
    return pos, (put_binary(target, source, pos - source) if pos >= 0 else target)


@inner
def encode(pos: Int, end: Int, extra_count: Int, target: Int, dictionary: Int) -> tuple[Int, Int, Int]:
    """Write the value at `pos`, or an array of the `extra_count` values from there on.

    Args:
        pos, end: Addresses; a value may be cut short by `end`, or not be MessagePack.
        extra_count: Number of values to write as one array; 0 for a single value.
        target: Address of the result; `VARIANT_GROWTH` says how much room it needs.
        dictionary: Address of the words of the dictionary.

    Returns:
        pos, target, status: Where the value and the result end, FITS or INEXACT; `pos` is BROKEN_END if it is not
            MessagePack.
    """
    frames, entries = word(dictionary, FRAMES), word(dictionary, ENTRIES)
    depth, count, status = 0, 0, FITS
    if extra_count > 0:
        _open_frame(frames, ARRAY, extra_count, target, 0, pos)
        depth = 1
    while True:
        frame = frames + 8 * _FRAME * (depth - 1)
        if depth > 0 and word(frame, _LEFT) == 0:
            target, loss = _close_frame(target, frame, entries, count, dictionary)
            status = max(status, loss)
            count = word(frame, _FIRST)
            depth -= 1
        else:
            if pos >= end:
                return BROKEN_END, target, status
            if depth > 0:
                entry = entries + 16 * count
                set_word(entry, 1, target - word(frame, _START))
                set_word(frame, _LEFT, word(frame, _LEFT) - 1)
                count += 1
            exact = True
            if depth > 0 and word(frame, _KIND) == MAP:
                pos, exact = _read_key(pos, end, entry, dictionary)
                status = status if exact else INEXACT
            if pos == NO_KEY:
                pos, target = _put_map_as_binary(frame, end)
                count = word(frame, _FIRST)
                depth -= 1
            elif pos >= end:
                return BROKEN_END, target, status
            else:
                pos, target, loss, opened = _put_value(pos, end, target, depth, frame + 8 * _FRAME, count)
                status = max(status, loss)
                depth += 1 if opened else 0
            if pos == BROKEN_END:
                return BROKEN_END, target, status
        if depth == 0:
            return pos, target, status
