"""The dictionary of one variant: each of its keys once, in a hash table.

A key is a span of memory; keys that must be formatted (integers, strings that are not UTF-8) are written to
`texts`. Keys of an object are sorted in the order that Spark's reader searches, by UTF-16 units
(`VariantUtil.getFieldByKey` uses `String.compareTo`), which differs from the order of bytes only above U+D7FF.
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import inner
from udfs.kernels.keyed_hash import keyed_hash
from udfs.kernels.memory import copy_over, load8, load64, set_word, store8, word
from udfs.kernels.values import INTEGER, STRING, UNSIGNED, UNSIGNED_BIG, Int, is_utf8
from udfs.tuples.kernels.variant_scalars import store_little
from udfs.tuples.kernels.writers import write_digits, write_hex, write_integer

NO_KEY = -1
KEY_COUNT, TEXT_END, STAMP, SLOT_MASK = 0, 1, 2, 3
KEYS, SLOTS, TEXTS, FRAMES, ENTRIES, HASH_SEEDS = 4, 5, 6, 7, 8, 9
DICTIONARY_WORDS = 10
"""Words of a dictionary: number of keys; address of the next text; number of the variant (a slot is in
use only if it has this number); number of slots minus one; addresses of the keys (position and size each), the slots
and the first text; addresses of the open frames and their children (`udfs.tuples.kernels.variant`), and of the hash's
seeds."""


@inner
def _low_bytes_mask(size: Int) -> Int:
    """Return the bits of the first `size` bytes of a word."""
    return (np.int64(1) << 8 * size) - 1 if size < 8 else np.int64(-1)


@inner
def _are_bytes_equal(one: Int, other: Int, size: Int) -> bool:
    differences = np.int64(0)
    for k in range(0, size, 8):
        differences |= (load64(one + k) ^ load64(other + k)) & _low_bytes_mask(size - k)
    return bool(differences == 0)


@inner
def key_id(pos: Int, size: Int, dictionary: Int) -> Int:
    """Return the id of a key in a dictionary; a key that is new in this row gets a new id."""
    code = keyed_hash(pos, size, 0, word(dictionary, HASH_SEEDS))
    keys, slots = word(dictionary, KEYS), word(dictionary, SLOTS)
    stamp, mask = word(dictionary, STAMP), word(dictionary, SLOT_MASK)
    slot = code & mask
    while word(slots, slot) >> 32 == stamp:
        known = word(slots, slot) & 0xFFFFFFFF
        if word(keys, 2 * known + 1) == size and _are_bytes_equal(word(keys, 2 * known), pos, size):
            return known
        slot = slot + 1 & mask
    known = word(dictionary, KEY_COUNT)
    set_word(slots, slot, stamp << 32 | known)
    set_word(keys, 2 * known, pos)
    set_word(keys, 2 * known + 1, size)
    set_word(dictionary, KEY_COUNT, known + 1)
    return known


@inner
def clear_dictionary(dictionary: Int) -> None:
    """Remove all keys from the dictionary, before the next value."""
    set_word(dictionary, KEY_COUNT, 0)
    set_word(dictionary, TEXT_END, word(dictionary, TEXTS))
    set_word(dictionary, STAMP, word(dictionary, STAMP) + 1)


@inner
def key_text(kind: Int, argument: Int, pos: Int, dictionary: Int) -> tuple[Int, Int, bool]:
    """Return a map's key as text: (position of the text, its size or NO_KEY if there is no text, whether it is exact).

    A string is its own text; if it is not UTF-8, each byte above 0x7f becomes a backslash, `x` and two digits.
    An integer becomes its digits.
    """
    if kind == STRING and is_utf8(pos, argument):
        return pos, argument, True
    start = word(dictionary, TEXT_END)
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
    set_word(dictionary, TEXT_END, end)
    return start, end - start, kind != STRING


@inner
def _utf16_rank(byte: Int) -> Int:
    """Return a number that orders bytes of UTF-8 like the UTF-16 units of their characters."""
    return byte + 16 if byte in (0xEE, 0xEF) else byte


@inner
def is_key_before(one: Int, other: Int, keys: Int) -> bool:
    """Return whether the key with the id `one` comes before the key with the id `other` in an object."""
    first, second = word(keys, 2 * one), word(keys, 2 * other)
    size, other_size = word(keys, 2 * one + 1), word(keys, 2 * other + 1)
    for k in range(min(size, other_size)):
        a, b = load8(first + k), load8(second + k)
        if a != b:
            return bool(_utf16_rank(a) < _utf16_rank(b))
    return bool(size < other_size)


@inner
def byte_width(value: Int) -> Int:
    """Return how many bytes a size or an offset needs, 1 to 4."""
    return 1 if value < 1 << 8 else (2 if value < 1 << 16 else (3 if value < 1 << 24 else 4))


@inner
def put_metadata(target: Int, dictionary: Int) -> Int:
    """Write a variant's metadata: version 1, the keys in the order of their ids."""
    keys, count = word(dictionary, KEYS), word(dictionary, KEY_COUNT)
    total = np.int64(0)
    for k in range(count):
        total += word(keys, 2 * k + 1)
    width = byte_width(max(total, count))
    store8(target, 1 | (width - 1) << 6)
    store_little(target + 1, count, width)
    offset = np.int64(0)
    position = target + 1 + width
    text = position + (count + 1) * width
    for k in range(count):
        size = word(keys, 2 * k + 1)
        store_little(position, offset, width)
        copy_over(text + offset, word(keys, 2 * k), size)
        offset += size
        position += width
    store_little(position, offset, width)
    return text + offset
