"""The dictionary of one variant: its keys, each once, found by hash.

A key is a span of memory; keys that have to be written first (integers, strings that are not UTF-8) lie in
`texts`. Keys of an object are sorted as Spark's reader searches them, by UTF-16 units
(`VariantUtil.getFieldByKey` uses `String.compareTo`), which differs from the order of bytes only above U+D7FF.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from udfs.kernels.compiled import inner
from udfs.kernels.memory import copy, load8, store8
from udfs.kernels.texts import is_utf8
from udfs.kernels.values import INTEGER, STRING, UNSIGNED, UNSIGNED_BIG, Int
from udfs.kernels.variant_scalars import store
from udfs.kernels.writers import write_digits, write_hex, write_integer

NO_KEY = -1
KEY_COUNT, TEXT_END, STAMP = 0, 1, 2
"""What `state` holds: keys so far, where the next text goes, the number of the row (marks live hash slots)."""


@inner
def _same(one: Int, other: Int, size: Int) -> bool:
    for k in range(size):
        if load8(one + k) != load8(other + k):
            return False
    return True


@inner
def key_id(pos: Int, size: Int, places: Any, sizes: Any, slots: Any, state: Any) -> Int:
    """Return the id of a key, a new one where it was not seen in this row."""
    code = np.uint64(14695981039346656037)
    for k in range(size):
        code = (code ^ np.uint64(load8(pos + k))) * np.uint64(1099511628211)
    mask = len(slots) - 1
    slot = np.int64(code ^ code >> np.uint64(32)) & mask
    while slots[slot] >> 32 == state[STAMP]:
        known = slots[slot] & 0xFFFFFFFF
        if sizes[known] == size and _same(places[known], pos, size):
            return known
        slot = slot + 1 & mask
    known = state[KEY_COUNT]
    slots[slot] = state[STAMP] << 32 | known
    places[known], sizes[known] = pos, size
    state[KEY_COUNT] = known + 1
    return known


@inner
def key_text(kind: Int, argument: Int, pos: Int, state: Any) -> tuple[Int, Int, bool]:
    """Return a map's key as text: its place, its size (NO_KEY where it has none), whether it is exact.

    A string is its own text; one that is not UTF-8 has its bytes above 0x7f as `\\xhh`. An integer is its digits.
    """
    if kind == STRING and is_utf8(pos, argument):
        return pos, argument, True
    start = state[TEXT_END]
    end = start
    if kind == STRING:
        for k in range(argument):
            byte = load8(pos + k)
            if byte < 0x80:
                store8(end, byte)
                end += 1
            else:
                store8(end, 92)
                store8(end + 1, 120)
                end = write_hex(end + 2, pos + k, 1)
    elif kind in (UNSIGNED, INTEGER):
        end = write_integer(start, argument)
    elif kind == UNSIGNED_BIG:
        end = write_digits(start, np.uint64(argument), 20 if np.uint64(argument) >= np.uint64(10**19) else 19)
    else:
        return pos, NO_KEY, False
    state[TEXT_END] = end
    return start, end - start, kind != STRING


@inner
def _unit(byte: Int) -> Int:
    return byte + 16 if byte in (0xEE, 0xEF) else byte


@inner
def key_before(one: Int, other: Int, places: Any, sizes: Any) -> bool:
    """Return whether one key comes before another in an object."""
    shared = min(sizes[one], sizes[other])
    for k in range(shared):
        a, b = load8(places[one] + k), load8(places[other] + k)
        if a != b:
            return _unit(a) < _unit(b)
    return sizes[one] < sizes[other]


@inner
def width_of(value: Int) -> Int:
    """Return how many bytes a size or an offset needs, 1 to 4."""
    return 1 if value < 1 << 8 else (2 if value < 1 << 16 else (3 if value < 1 << 24 else 4))


@inner
def put_metadata(target: Int, places: Any, sizes: Any, count: Int) -> Int:
    """Write a variant's metadata: version 1, the keys in the order of their ids."""
    total = np.int64(0)
    for k in range(count):
        total += sizes[k]
    width = width_of(max(total, count))
    store8(target, 1 | (width - 1) << 6)
    store(target + 1, count, width)
    offset = np.int64(0)
    text = target + 1 + (count + 2) * width
    for k in range(count):
        store(target + 1 + (k + 1) * width, offset, width)
        copy(text + offset, places[k], sizes[k])
        offset += sizes[k]
    store(target + 1 + (count + 1) * width, offset, width)
    return text + offset
