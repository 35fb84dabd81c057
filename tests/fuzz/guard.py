"""Arrays whose last byte is the last one before a page that cannot be touched, and whose first follows such a page.

A kernel that reads or writes one byte outside ends its process by SIGSEGV instead of damaging what lies beside. So this
is for processes of their own (`tests.fuzz.worker`).
"""

import ctypes
import importlib
import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import DTypeLike, NDArray

PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_FILLED = 1 << 20
"""Up to so many bytes what is empty is filled; more would cost more than the case."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

GUARDED = (
    *(
        "udfs.buffers",
        "udfs.tuples.columns",
        "udfs.keys.grouping",
        "udfs.keys.key_order",
        "udfs.keys.keys",
        "udfs.tuples.row_body",
    ),
    *("udfs.keys.row_hash", "udfs.keys.sequence", "udfs.tuples.tuples"),
    *(
        "sources.xlog.format.decoder",
        "sources.xlog.format.rows",
        "sources.xlog.reader.scan",
        "sources.xlog.reader.file_buffer",
    ),
    *("sources.iproto.row_stream",),
)
"""The modules that allocate what kernels read and write."""


def _protect(address: int) -> None:
    if _libc.mprotect(address, PAGE, _NO_ACCESS) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def guarded(size: int) -> NDArray[np.uint8]:
    """Return zeroed bytes between two pages that cannot be touched; the end is exact, the start within a page."""
    pages = -(-size // PAGE)
    block = mmap.mmap(-1, (pages + 2) * PAGE)
    whole = np.frombuffer(block, np.uint8)
    _protect(whole.ctypes.data)
    _protect(whole.ctypes.data + (pages + 1) * PAGE)
    end = (pages + 1) * PAGE
    return whole[end - size : end]


def guarded_array(shape: int | Sequence[int], dtype: DTypeLike = float, fill: Any = None) -> NDArray[Any]:
    """Return an array between guard pages, of zeros unless something else fills it."""
    kind = np.dtype(dtype)
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    count = int(np.prod(sizes, dtype=np.int64))
    found = guarded(count * kind.itemsize).view(kind).reshape(sizes)
    if fill is not None:
        found[...] = fill
    return found


class _GuardedNumpy(ModuleType):
    """NumPy, with arrays between guard pages."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def empty(shape: Any, dtype: DTypeLike = float) -> NDArray[Any]:
        # What a kernel does not write must not look as if it were sound.
        found = guarded_array(shape, dtype)
        if found.nbytes <= _FILLED:
            found.view(np.uint8)[...] = 0xA5
        return found

    @staticmethod
    def zeros(shape: Any, dtype: DTypeLike = float) -> NDArray[Any]:
        return guarded_array(shape, dtype)

    @staticmethod
    def full(shape: Any, fill: Any, dtype: DTypeLike | None = None) -> NDArray[Any]:
        return guarded_array(shape, np.array(fill).dtype if dtype is None else dtype, fill)

    @staticmethod
    def empty_like(other: NDArray[Any]) -> NDArray[Any]:
        return guarded_array(other.shape, other.dtype)


@contextmanager
def guards() -> Iterator[None]:
    """Let the modules around kernels allocate between guard pages."""
    proxy = _GuardedNumpy("numpy")
    with ExitStack() as stack:
        for name in GUARDED:
            module = importlib.import_module(name)
            if hasattr(module, "np"):
                stack.enter_context(patch.object(module, "np", proxy))
        columns = importlib.import_module("udfs.tuples.columns")
        stack.enter_context(patch.object(columns, "_allocate", guarded))
        yield
