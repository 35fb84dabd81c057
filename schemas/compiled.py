"""Decorators that compile kernels: `entry` and `kernel` for calls from Python, `inner` and `inlined` for other kernels.

Compiled code is cached on disk, so a machine compiles each function once. Numba itself only checks whether the
function's own file has changed. But a kernel also contains functions and constants of other modules, so the cache key
is the digest of all modules of the project that its module imports, directly or not: an upgrade in place never runs
machine code of changed sources. Cached code that cannot be read (a renamed class, a truncated file) is compiled again.
`schemas.kernel_cache` has the folders.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

from schemas.kernel_cache import KernelCache

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGES = ("schemas", "sources", "udfs", "warehouse", "pipeline")
"""The packages whose modules kernels import: a kernel's cache key holds the text of these modules."""

_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+((?:{'|'.join(_PACKAGES)})\b[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|.*)"
    r"|import[ \t]+(.*))",
    re.MULTILINE,
)
"""Matches an import statement.

Sources are searched as text, because parsing about fifty modules takes 0.1 s in each process."""

_DOTTED_NAME = re.compile(r"[\w.]+")


@lru_cache
def _source(module: str) -> bytes | None:
    """Return the text of a module of the project; None if the module has no text, as a namespace package."""
    found = importlib.util.find_spec(module)
    if found is None or found.loader is None:
        return None
    # A module in the zip of the executors has no file of its own.
    get = getattr(found.loader, "get_source", None)
    text = get(module) if get is not None else None
    if text is None and found.origin is not None and Path(found.origin).is_file():
        return Path(found.origin).read_bytes()
    return None if text is None else text.encode()


def _modules_named_in(source: bytes) -> Iterator[str]:
    """Yield the names that a source imports from the project; a text that looks like an import counts too."""
    for module, names, plain in _IMPORT.findall(source.decode()):
        if module:
            yield from (module, *(f"{module}.{name}" for name in _DOTTED_NAME.findall(names)))
        else:
            yield from (name for name in _DOTTED_NAME.findall(plain) if name.partition(".")[0] in _PACKAGES)


@lru_cache
def _imported_modules(module: str) -> tuple[str, ...]:
    """Return the names that a module imports from the project, each once."""
    source = _source(module)
    return () if source is None else tuple(dict.fromkeys(_modules_named_in(source)))


@lru_cache
def digest_of(module: str) -> bytes:
    """Return the digest of all sources that a module's machine code may be compiled from."""
    seen: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        try:
            source = _source(name)
        except ModuleNotFoundError:  # the last part is the name of a function
            source = None
        seen[name] = source or b""
        if source is not None:
            waiting += _imported_modules(name)
    return hashlib.sha256(repr(sorted(seen.items())).encode()).digest()


def _compile(function: Any, **options: bool) -> Any:
    compiled = njit(nogil=True, **options)(function)
    compiled._cache = KernelCache(function, lambda: digest_of(function.__module__))
    return compiled


def is_cached(function: Any) -> bool:
    """Return whether the machine code of a function is on disk, so that its first call does not compile it."""
    return bool(function._cache._cache_file.has_any())


def kernel(function: Any) -> Any:
    """Compile a function as `entry` does, but return it with the type `Any`.

    It is for functions whose parameters are annotated as `int`, and which Python calls with numpy's integers.
    """
    return _compile(function)


def entry(function: Function) -> Function:
    """Compile a function that Python calls; its type does not change."""
    compiled: Function = _compile(function)
    return compiled


def inner(function: Function) -> Function:
    """Compile a function that only other compiled functions call.

    It gets no wrapper for Python, which halves the time of compilation.
    """
    compiled: Function = _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a function as `inner` does, inlined into each caller; for small functions that are called per field.

    A call saves and restores registers and returns through memory, which takes longer than such a function.
    """
    compiled: Function = _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
    return compiled
