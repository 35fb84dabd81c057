"""Machine operations that numba does not offer: memory access by address, byte order, one step of CRC-32C.

A kernel that walks bytes gets the *address* of its buffer, an int64: passing an array from function to function changes
an atomic reference counter each time, which is slow. None of these operations checks bounds: the kernels that call them
do, and their callers keep the arrays alive. They need a little-endian machine, as all machines of Spark and pyarrow
are.

`HAS_CRC32C` says whether this processor has the instruction; if not, `chain` computes the checksum from tables.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

HAS_CRC32C = platform.machine() in ("x86_64", "AMD64") and bool(
    llvmlite.binding.get_host_cpu_features().get("sse4.2")
)

Lowering = tuple[Any, Callable[..., Any]]
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _pointer(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


@intrinsic
def address_of(_context: Any, array: Any) -> Lowering:
    """Return the address of an array's first byte; the array must be contiguous and outlive its use."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _I64)

    return types.int64(array), lower


@intrinsic
def byte_at(_context: Any, _address: Any, _offset: Any) -> Lowering:
    """Return the byte at address + offset as an int64."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, args[0], args[1], _I8)), _I64)

    return types.int64(types.int64, types.int64), lower


@intrinsic
def word_at(_context: Any, _address: Any, _offset: Any) -> Lowering:
    """Return the 8 bytes at address + offset, little-endian, as a uint64."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = builder.load(_pointer(builder, args[0], args[1], _I64))
        value.align = 1
        return value

    return types.uint64(types.int64, types.int64), lower


@intrinsic
def put_word(_context: Any, _address: Any, _offset: Any, _value: Any) -> Lowering:
    """Store an int64 at address + offset."""

    def lower(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(builder, args[0], args[1], _I64)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), lower


@intrinsic
def copy_bytes(_context: Any, _to: Any, _source: Any, _size: Any) -> Lowering:
    """Copy `size` bytes from one address to another; the two do not overlap."""

    def lower(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        to, source = (builder.inttoptr(address, _I8.as_pointer()) for address in args[:2])
        cgutils.raw_memcpy(builder, to, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), lower


@intrinsic
def swap_bytes(_context: Any, _word: Any) -> Lowering:
    """Return a uint64 with its bytes in reverse order, as an int64."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.int64(types.uint64), lower


@intrinsic
def double_of(_context: Any, _bits: Any) -> Lowering:
    """Return the double with the bits of an int64."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), lower


@intrinsic
def crc32c_word(_context: Any, _crc: Any, _word: Any) -> Lowering:
    """Return CRC-32C after 8 more bytes, by the processor's instruction (x86 SSE 4.2)."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64, _I64])
        step = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind)
        return builder.call(step, args)

    return types.uint64(types.uint64, types.uint64), lower


@intrinsic
def crc32c_byte(_context: Any, _crc: Any, _byte: Any) -> Lowering:
    """Return CRC-32C after one more byte, by the processor's instruction (x86 SSE 4.2)."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32, _I8])
        step = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.32.8", (), kind)
        crc = builder.call(step, [builder.trunc(args[0], _I32), builder.trunc(args[1], _I8)])
        return builder.zext(crc, _I64)

    return types.uint64(types.uint64, types.int64), lower
