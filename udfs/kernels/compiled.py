"""How the functions of this package are compiled: `entry` is called from Python, `inner`, `inlined` from kernels.

Compiled code is kept on disk, so a machine compiles each function once. Numba asks of a kept function only
whether its own file has changed, not those of the functions compiled into it; so here every function is kept
under the digest of the whole package. An inner function gets no wrapper for Python, which halves the time it
takes to compile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def _package_digest() -> bytes:
    sources = {
        file.name: file.read_bytes()
        for file in resources.files(__package__ or "").iterdir()
        if file.name.endswith(".py")
    }
    return hashlib.sha256(repr(sorted(sources.items())).encode()).digest()


_DIGEST = _package_digest()


def _compile(function: Any, **options: bool) -> Any:
    compiled = njit(cache=True, nogil=True, **options)(function)
    compiled._cache._cache_file._source_stamp = _DIGEST
    return compiled


def entry(function: Function) -> Function:
    """Compile a function that Python calls."""
    compiled: Function = _compile(function)
    return compiled


def inner(function: Function) -> Function:
    """Compile a function that only other compiled functions call."""
    compiled: Function = _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a function as `inner` does, into each of its callers: for what is called for every field.

    A call saves and restores registers and returns through memory, which takes longer than such a function.
    """
    compiled: Function = _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
    return compiled
