"""Writes a variant in one pass if it has the same shape as the previous one.

Documents of one field mostly have the same keys in the same order, and the same nesting. The shape of one document is
cached, so the next needs no dictionary, no sorting and no moving of children: headers, metadata and the slot of each
child's offset are known. If a value has another shape, or might differ from the result of
`udfs.tuples.kernels.variant`, `write_by_shape` gives up, and what it has written is overwritten; so a shape affects
only the speed. Only shapes of containers with up to 15 children and string keys are cached.
"""

from __future__ import annotations

from schemas.compiled import inlined, inner
from udfs.kernels.memory import (
    copy_chunk,
    copy_over,
    load8,
    load64,
    load64_big,
    set_word,
    store8,
    store64,
    word,
)
from udfs.kernels.values import ARRAY, BAD, ERROR, MAP, STRING, Int, head, is_utf8
from udfs.tuples.kernels.columns import FITS
from udfs.tuples.kernels.variant_scalars import (
    V_DOUBLE,
    V_FALSE,
    V_INT1,
    V_NULL,
    V_SHORT_STRING,
    V_TRUE,
    put_scalar,
    store_little,
)

TOKENS, MISSES, META_SIZE, META, FIRST = 0, 1, 2, 3, 67
"""Words of a shape: number of tokens (0: no shape); number of consecutive misses; size of the metadata, the metadata,
the first token."""

TOKEN_WORDS = 12
TOKENS_MAX, META_MAX = 200, 8 * (FIRST - META) - 32
SHAPE_WORDS = FIRST + TOKEN_WORDS * TOKENS_MAX + 8

_WHAT, _KEY, _KEY_SIZE, _SLOT, _COUNT, _WIDTH, _HEAD, _HEADER = 0, 1, 2, 3, 4, 5, 6, 8
"""Words of a token: leaf, container or end of one; position and size of its key's MessagePack; slot of its offset in
its container, -1 outside of one; for a container: children, width of an offset, first byte, and then the variant's
first bytes, up to its offsets."""

_LEAF, _OPEN, _CLOSE = 0, 1, 2

DEPTH_MAX = 12
FRAME_WORDS = 6
_DATA, _OFFSETS, _OFFSET_WIDTH, _CHILDREN, _LEFT, _LAST = 0, 1, 2, 3, 4, 5
"""Words of an open container: start of its children's data, of its offsets, their width; number of children; and, while
a shape is recorded, the number of children to come and the offset of the last one, negative in a map."""

SLACK_BYTES = 96 * DEPTH_MAX
"""Number of bytes that `write_by_shape` may write past the room for a value before it gives up."""

PATIENCE, PAUSE = 8, 15
"""After `PATIENCE` consecutive misses, a shape is tried only on rows whose number has no bit of `PAUSE`: one of 16."""


@inlined
def _put_leaf(pos: Int, end: Int, target: Int) -> tuple[Int, Int]:
    """Write a value that is not a container; return (where it ends, where the written value ends).

    The first result is -1 for a container, and for a value that would not be exact.
    """
    byte = load8(pos)
    if byte < 0x80:
        store8(target, V_INT1)
        store8(target + 1, byte)
        return pos + 1, target + 2
    if byte & 0xE0 == 0xA0:
        size = byte & 0x1F
        high = copy_chunk(target + 1, pos + 1) & ((1 << size) - 1)
        if high == 0 or is_utf8(pos + 1, size):
            store8(target, size << 2 | V_SHORT_STRING)
            return pos + 1 + size, target + 1 + size
    elif byte == 0xCB:
        store8(target, V_DOUBLE)
        store64(target + 1, load64_big(pos + 1))
        return pos + 9, target + 9
    elif byte in (0xC0, 0xC2, 0xC3):
        store8(target, V_NULL if byte == 0xC0 else (V_TRUE if byte == 0xC3 else V_FALSE))
        return pos + 1, target + 1
    return _put_rare_leaf(pos, end, target)


@inner
def _put_rare_leaf(pos: Int, end: Int, target: Int) -> tuple[Int, Int]:
    """Do what `_put_leaf` does, for values of all classes."""
    kind, argument, after = head(pos, end)
    if kind in (ARRAY, MAP, ERROR, BAD):
        return -1, target
    target, status = put_scalar(target, kind, argument, pos, after)
    return (after + (argument if kind >= STRING else 0) if status == FITS else -1), target


@inlined
def _are_bytes_equal(one: Int, other: Int, size: Int) -> bool:
    differences = 0
    while size > 8:
        differences |= load64(one) ^ load64(other)
        one += 8
        other += 8
        size -= 8
    return bool(differences == 0 and (load64(one) ^ load64(other)) << (64 - 8 * size) == 0)


@inner
def write_by_shape(pos: Int, end: Int, target: Int, shape: Int, frames: Int) -> tuple[Int, Int]:
    """Write the value at `pos` if it has the shape; return (where it ends, where the written value ends).

    The first result is -1 if the value has another shape.
    """
    token, depth = shape + 8 * FIRST, 0
    last = token + 8 * TOKEN_WORDS * word(shape, TOKENS)
    frame = frames
    while token < last:
        what = word(token, _WHAT)
        if what == _CLOSE:
            size, width = target - word(frame, _DATA), word(frame, _OFFSET_WIDTH)
            if size >> (8 * width) != 0 or (width > 1 and size >> (8 * width - 8) == 0):
                return -1, target
            store_little(word(frame, _OFFSETS) + width * word(frame, _CHILDREN), size, width)
            depth -= 1
            frame = frames + 8 * FRAME_WORDS * (depth - 1)
            token += 8 * TOKEN_WORDS
            continue
        size = word(token, _KEY_SIZE)
        if size > 0:
            if pos + size > end or not _are_bytes_equal(pos, word(token, _KEY), size):
                return -1, target
            pos += size
        if pos >= end:
            return -1, target
        if depth > 0:
            width = word(frame, _OFFSET_WIDTH)
            store_little(
                word(frame, _OFFSETS) + width * word(token, _SLOT), target - word(frame, _DATA), width
            )
        if what == _OPEN:
            if load8(pos) != word(token, _HEAD):
                return -1, target
            pos += 1
            copy_chunk(target, token + 8 * _HEADER)
            width, count = word(token, _WIDTH), word(token, _COUNT)
            frame = frames + 8 * FRAME_WORDS * depth
            depth += 1
            offsets = target + (2 if word(token, _HEAD) >= 0x90 else 2 + count)
            target = offsets + (count + 1) * width
            set_word(frame, _DATA, target)
            set_word(frame, _OFFSETS, offsets)
            set_word(frame, _OFFSET_WIDTH, width)
            set_word(frame, _CHILDREN, count)
        else:
            pos, target = _put_leaf(pos, end, target)
            if pos < 0 or pos > end:
                return -1, target
        token += 8 * TOKEN_WORDS
    return pos, target


@inner
def _index_of_next_child(frame: Int) -> Int:
    """Return the index, among the offsets of a container's variant, of the child that comes next in its MessagePack.

    Each call returns another child: the one with the next higher offset.
    """
    offsets, width = word(frame, _OFFSETS), word(frame, _OFFSET_WIDTH)
    before, best, slot = word(frame, _LAST), 1 << 40, 0
    for k in range(word(frame, _CHILDREN)):
        offset = _read_offset(offsets + k * width, width)
        if before < offset < best:
            best, slot = offset, k
    set_word(frame, _LAST, best)
    return slot


@inner
def _read_offset(position: Int, width: Int) -> Int:
    return load64(position) & ((1 << 8 * width) - 1)


@inner
def _record_container(token: Int, frame: Int, pos: Int, value: Int) -> bool:
    """Record the map or array that begins at `pos`, and whose variant is at the address `value`.

    Its token is written at `token`, and the positions of its children at `frame`. Return whether later rows can reuse
    its shape.
    """
    byte, header = load8(pos), load8(value)
    count = byte & 0x0F
    is_map = byte < 0x90
    if byte >= 0xA0 or load8(value + 1) != count or header & 3 != (2 if is_map else 3):
        return False
    if header >> 4 != 0:
        return False
    width = (header >> 2 & 3) + 1
    offsets = value + 2 + (count if is_map else 0)
    set_word(token, _WHAT, _OPEN)
    set_word(token, _COUNT, count)
    set_word(token, _WIDTH, width)
    set_word(token, _HEAD, byte)
    copy_chunk(token + 8 * _HEADER, value)
    set_word(frame, _DATA, offsets + (count + 1) * width)
    set_word(frame, _OFFSETS, offsets)
    set_word(frame, _OFFSET_WIDTH, width)
    set_word(frame, _CHILDREN, count)
    set_word(frame, _LEFT, count if not is_map else count | 1 << 32)
    set_word(frame, _LAST, -1)
    return True


@inner
def record_shape(pos: Int, end: Int, value: Int, meta: Int, meta_size: Int, shape: Int, frames: Int) -> None:
    """Cache the shape of the value at `pos`, whose variant was written exactly at `value`, if it can be cached."""
    set_word(shape, TOKENS, 0)
    number, depth, position = 0, 0, value
    token, frame = shape + 8 * FIRST, frames
    if meta_size > META_MAX:
        return
    while depth > 0 or number == 0:
        if number == TOKENS_MAX:
            return
        if depth > 0 and word(frame, _LEFT) & 0xFF == 0:
            set_word(token, _WHAT, _CLOSE)
            depth -= 1
            frame = frames + 8 * FRAME_WORDS * (depth - 1)
        else:
            set_word(token, _KEY_SIZE, 0)
            if depth > 0:
                if word(frame, _LEFT) >> 32 == 1:
                    kind, argument, after = head(pos, end)
                    if kind != STRING:
                        return
                    set_word(token, _KEY, pos)
                    set_word(token, _KEY_SIZE, after + argument - pos)
                    pos = after + argument
                set_word(token, _SLOT, _index_of_next_child(frame))
                set_word(frame, _LEFT, word(frame, _LEFT) - 1)
                position = word(frame, _DATA) + word(frame, _LAST)
            kind, argument, after = head(pos, end)
            if kind in (ARRAY, MAP):
                frame = frames + 8 * FRAME_WORDS * depth
                depth += 1
                if depth > DEPTH_MAX or not _record_container(token, frame, pos, position):
                    return
                pos = after
            elif kind in (ERROR, BAD):
                return
            else:
                set_word(token, _WHAT, _LEAF)
                pos = after + (argument if kind >= STRING else 0)
        number += 1
        token += 8 * TOKEN_WORDS
    set_word(shape, META_SIZE, meta_size)
    copy_over(shape + 8 * META, meta, meta_size)
    set_word(shape, TOKENS, number)
