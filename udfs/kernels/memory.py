"""Unaligned loads, stores and copies at an address, for compiled loops.

An address is an int64 from `address`. Passing one costs nothing, while passing an array to another compiled function
changes its reference count each time. The caller of a kernel keeps the memory alive and checks bounds before a load;
`udfs.buffers` says how many bytes past the end may be read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from schemas.compiled import inlined, inner

MEMCPY_MIN_BYTES = 64
"""Above this many bytes, memcpy is faster than a loop over words."""

WRITE_SLACK_BYTES = 64
"""Number of bytes past the end that a kernel may overwrite."""

CHUNK_BYTES = 32
"""Number of bytes that `copy_chunk` copies."""


@inner
def address(array: Any) -> Any:
    """Return the address of an array's elements."""
    return np.int64(array.ctypes.data)


def _make_load(bits: int, swap: bool) -> Any:
    @intrinsic
    def load(typing_context: Any, pos: Any) -> Any:  # noqa: ARG001 (numba's protocol)
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            value = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            value.align = 1
            if swap:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), generate

    return load


load8 = _make_load(8, swap=False)
"""Load one byte, 0 to 255."""

load16 = _make_load(16, swap=False)
"""Load two bytes, little-endian, unsigned."""

load32 = _make_load(32, swap=False)
"""Load four bytes, little-endian, unsigned."""

load64 = _make_load(64, swap=False)
"""Load eight bytes, little-endian; a pattern above 2^63 - 1 reads negative."""

load64_big = _make_load(64, swap=True)
"""Load eight bytes, big-endian; a pattern above 2^63 - 1 reads negative."""


def _make_store(bits: int) -> Any:
    @intrinsic
    def store(typing_context: Any, pos: Any, value: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            whole = ir.IntType(bits)
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], whole)
            builder.store(value, builder.inttoptr(arguments[0], whole.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


store8 = _make_store(8)
"""Store the low byte of `value` at `pos`."""

store32 = _make_store(32)
"""Store the low four bytes of `value`, little-endian."""

store64 = _make_store(64)
"""Store eight bytes, little-endian."""


def _make_copy(write: Any) -> Any:
    @intrinsic
    def copier(typing_context: Any, target: Any, source: Any, size: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            to, origin, count = arguments
            byte = ir.IntType(8).as_pointer()
            write(builder, builder.inttoptr(to, byte), builder.inttoptr(origin, byte), count, 1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return copier


copy = _make_copy(cgutils.raw_memcpy)
"""Copy `size` bytes from address `source` to address `target`; they do not overlap."""

move = _make_copy(cgutils.raw_memmove)
"""Copy `size` bytes from address `source` to address `target`; they may overlap."""


@intrinsic
def copy_chunk(typing_context: Any, target: Any, source: Any) -> Any:  # noqa: ARG001
    """Copy `CHUNK_BYTES` bytes; return a bit for each of them, set where the byte is above 0x7f."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        chunk = ir.VectorType(ir.IntType(8), CHUNK_BYTES)
        value = builder.load(builder.inttoptr(arguments[1], chunk.as_pointer()))
        value.align = 1
        stored = builder.store(value, builder.inttoptr(arguments[0], chunk.as_pointer()))
        stored.align = 1
        zeros = ir.Constant(chunk, [ir.Constant(ir.IntType(8), 0)] * CHUNK_BYTES)
        high = builder.bitcast(builder.icmp_signed("<", value, zeros), ir.IntType(CHUNK_BYTES))
        return builder.zext(high, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@inlined
def store_big(target: Any, value: Any, size: int) -> Any:
    """Store the low `size` bytes of a value, big-endian; return where they end."""
    for k in range(size):
        store8(target + k, value >> (8 * (size - 1 - k)))
    return target + size


@inner
def word(base: int, index: int) -> int:
    """Return the int64 word with an index from address `base`."""
    return int(load64(base + 8 * index))


@inner
def set_word(base: int, index: int, value: int) -> None:
    """Set the int64 word with an index from address `base`."""
    store64(base + 8 * index, value)


@inner
def copy_over(target: Any, source: Any, size: Any) -> None:
    """Copy `size` bytes in words: up to 7 more are read after the source and written after the target."""
    if size > MEMCPY_MIN_BYTES:
        copy(target, source, size)
        return
    for k in range(0, size, 8):
        store64(target + k, load64(source + k))


@inner
def are_bytes_equal(one: Any, other: Any, size: Any) -> Any:
    """Return whether `size` bytes at two addresses are equal."""
    at = np.int64(0)
    while at + 8 <= size:
        if load64(one + at) != load64(other + at):
            return False
        at += 8
    while at < size:
        if load8(one + at) != load8(other + at):
            return False
        at += 1
    return True
