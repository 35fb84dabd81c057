"""Machine operations that numba has no name for: an unaligned load, a copy, one step of CRC-32C.

None of them checks bounds: the kernels that call them do. Little-endian machines only, which all that Spark
and pyarrow run on are. `HAS_CRC32C` says whether this processor has the instruction; where it has not,
`chain` computes the same from tables.
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


@intrinsic
def load_u64(_context: Any, buffer: Any, _position: Any) -> Lowering:
    """Return the 8 bytes at `buffer[position]` as a little-endian uint64."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.gep(array.data, [args[1]])
        value = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return types.uint64(buffer, types.int64), lower


@intrinsic
def copy_bytes(_context: Any, to: Any, _at: Any, source: Any, _begin: Any, _size: Any) -> Lowering:
    """Copy `size` bytes from `source[begin]` to `to[at]`; the two do not overlap."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0])
        origin = context.make_array(signature.args[2])(context, builder, args[2])
        to_address = builder.gep(target.data, [args[1]])
        from_address = builder.gep(origin.data, [args[3]])
        cgutils.raw_memcpy(builder, to_address, from_address, args[4], 1)
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), lower


@intrinsic
def crc32c_u64(_context: Any, _crc: Any, _value: Any) -> Lowering:
    """Return CRC-32C after 8 more bytes, by the processor's instruction (x86 SSE 4.2)."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        step = builder.module.declare_intrinsic(
            "llvm.x86.sse42.crc32.64.64", (), ir.FunctionType(i64, [i64, i64])
        )
        return builder.call(step, args)

    return types.uint64(types.uint64, types.uint64), lower
