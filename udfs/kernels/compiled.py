"""How the functions of this package are compiled: `entry` is called from Python, `inner` from other kernels only.

Compiled code is kept on disk beside the source, so a machine compiles each function once. An inner function gets
no wrapper for Python, which halves the time it takes to compile.
"""

from __future__ import annotations

from typing import Any

from numba import njit

entry: Any = njit(cache=True, nogil=True)
inner: Any = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
inlined: Any = njit(inline="always")
