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
from udfs.kernels.memory import address, move, store8
from udfs.kernels.scalars import FITS, INEXACT, TOO_LARGE
from udfs.kernels.values import ARRAY, ERROR, MAP, NIL, STRING, Int, head, skip
from udfs.kernels.variant_keys import (
    KEY_COUNT,
    NO_KEY,
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

SIZE_MAX = 16 << 20
_KIND, _LEFT, _START, _FIRST, _SOURCE = 0, 1, 2, 3, 4
_UNTIL_END = 1 << 62


@inner
def _sort_fields(ids: Any, offsets: Any, first: Int, last: Int, places: Any, sizes: Any) -> None:
    """Shell sort the fields first..last of an object by key, then by place."""
    gap = (last - first) // 2
    while gap > 0:
        for k in range(first + gap, last):
            one, offset = ids[k], offsets[k]
            j = k
            while j >= first + gap and (
                key_before(one, ids[j - gap], places, sizes)
                or (one == ids[j - gap] and offset < offsets[j - gap])
            ):
                ids[j], offsets[j] = ids[j - gap], offsets[j - gap]
                j -= gap
            ids[j], offsets[j] = one, offset
        gap = gap // 2


@inner
def _drop_repeated(ids: Any, offsets: Any, first: Int, last: Int) -> Int:
    """Keep the last field of each key of a sorted object; return where the kept ones end."""
    kept = first
    for k in range(first, last):
        if k + 1 < last and ids[k] == ids[k + 1]:
            continue
        ids[kept], offsets[kept] = ids[k], offsets[k]
        kept += 1
    return kept


@inner
def _close(target: Int, frame: Any, ids: Any, offsets: Any, last: Int) -> Int:
    """Put the header of an object or array before its children, which end at `target`."""
    start, first = frame[_START], frame[_FIRST]
    count, size = last - first, target - start
    is_map = frame[_KIND] == MAP
    wide = 4 if count > 255 else 1
    width = width_of(size)
    id_width = 0
    if is_map:
        largest = np.int64(0)
        for k in range(first, last):
            largest = max(largest, ids[k])
        id_width = width_of(largest)
        store_header = 2 | (width - 1) << 2 | (id_width - 1) << 4 | (0x40 if wide == 4 else 0)
    else:
        store_header = 3 | (width - 1) << 2 | (0x10 if wide == 4 else 0)
    body = start + 1 + wide + count * id_width + (count + 1) * width
    move(body, start, size)
    store8(start, store_header)
    store(start + 1, count, wide)
    place = start + 1 + wide
    for k in range(first, last):
        store(place, ids[k], id_width)
        place += id_width
    for k in range(first, last):
        store(place, offsets[k], width)
        place += width
    store(place, size, width)
    return body + size


@inner
def _field_key(pos: Int, end: Int, frame: Any, entry: Int, ids: Any, keys: Any) -> tuple[Int, bool]:
    """Take the key at `pos` for field `entry`; return where its value starts (NO_KEY: no key), is it exact."""
    kind, argument, pos = head(pos, end)
    place, size, exact = key_text(kind, argument, pos, keys[3])
    if size == NO_KEY:
        return NO_KEY, False
    ids[entry] = key_id(place, size, keys[0], keys[1], keys[2], keys[3])
    return pos + (argument if kind >= STRING else 0), exact


@inner
def encode(
    pos: Int, end: Int, is_extra: bool, target: Int, frames: Any, fields: Any, keys: Any
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
    frames : int64 array, (MAX_DEPTH, 5)
        Scratch: the open objects and arrays.
    fields : tuple of int64 arrays
        Scratch: key id and offset of each child of the open ones.
    keys : tuple of int64 arrays
        The dictionary: places, sizes, hash slots, state.

    Returns
    -------
    target, status : int
        Where the value ends; FITS or INEXACT.

    """
    ids, offsets = fields
    depth, entries, status = 0, 0, FITS
    if is_extra:
        frames[0, _KIND], frames[0, _LEFT], frames[0, _START] = ARRAY, _UNTIL_END, target
        frames[0, _FIRST], depth = 0, 1
    while True:
        while depth > 0 and (frames[depth - 1, _LEFT] == 0 or pos >= end):
            frame = frames[depth - 1]
            last = entries
            if frame[_KIND] == MAP:
                _sort_fields(ids, offsets, frame[_FIRST], entries, keys[0], keys[1])
                last = _drop_repeated(ids, offsets, frame[_FIRST], entries)
                status = INEXACT if last < entries else status
            target = _close(target, frame, ids, offsets, last)
            entries = frame[_FIRST]
            depth -= 1
            if depth == 0:
                return target, status
        if depth > 0:
            frame = frames[depth - 1]
            if frame[_KIND] == MAP:
                source = pos
                pos, exact = _field_key(pos, end, frame, entries, ids, keys)
                if pos == NO_KEY:
                    pos = skip(frame[_SOURCE], end)
                    target = put_binary(frame[_START], frame[_SOURCE], pos - frame[_SOURCE])
                    entries = frame[_FIRST]
                    depth -= 1
                    if depth == 0:
                        return target, status
                    continue
                status = status if exact else INEXACT
            offsets[entries] = target - frame[_START]
            entries += 1
            frame[_LEFT] -= 1
        start = pos
        kind, argument, pos = head(pos, end)
        if kind == ERROR and skip(pos, pos + argument) == pos + argument:
            start = pos
            kind, argument, pos = head(pos, end)
        if (kind == ARRAY or kind == MAP) and depth < MAX_DEPTH:
            frames[depth, _KIND], frames[depth, _LEFT], frames[depth, _START] = kind, argument, target
            frames[depth, _FIRST], frames[depth, _SOURCE] = entries, start
            depth += 1
            continue
        if kind == ARRAY or kind == MAP:
            pos = skip(start, end)
            target = put_binary(target, start, pos - start)
        else:
            target, loss = put_scalar(target, kind, argument, start, pos)
            status = max(status, loss)
            pos += argument if kind >= STRING else 0
        if depth == 0:
            return target, status


@entry
def variants(
    data, classes, arguments, is_extra, largest, values, value_ends, metadata, metadata_ends, statuses
):  # type: ignore[no-untyped-def]
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
    frames = np.zeros((MAX_DEPTH, 5), np.int64)
    fields = (np.zeros(largest + 1, np.int64), np.zeros(largest + 1, np.int64))
    texts = np.zeros(8 * largest + 32, np.uint8)
    state = np.zeros(3, np.int64)
    keys = (
        np.zeros(largest + 1, np.int64),
        np.zeros(largest + 1, np.int64),
        np.zeros(slot_count, np.int64),
        state,
    )
    for row in range(len(classes)):
        if classes[row] > NIL:
            place, size = arguments[row] >> 32, arguments[row] & 0xFFFFFFFF
            state[KEY_COUNT], state[TEXT_END], state[STAMP] = 0, address(texts), row + 1
            start = target
            pos = base + place
            target, status = encode(pos, pos + size, is_extra, target, frames, fields, keys)
            meta = put_metadata(meta, keys[0], keys[1], state[KEY_COUNT])
            statuses[row] = TOO_LARGE if target - start > SIZE_MAX else status
        value_ends[row + 1] = target - address(values)
        metadata_ends[row + 1] = meta - address(metadata)
