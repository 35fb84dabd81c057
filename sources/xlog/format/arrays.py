"""Names of the types that the decoder's modules pass to each other. No code."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int: TypeAlias = int | np.int64
"""A number in a kernel, which may be called from Python or from compiled code."""

Word: TypeAlias = Any
"""A uint64 in a kernel; Any, because no static type fits both numpy's arithmetic on it and the compiled code."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Blocks: TypeAlias = npt.NDArray[np.int64]
RowBits: TypeAlias = npt.NDArray[np.uint32]
Flags: TypeAlias = npt.NDArray[np.bool_]
