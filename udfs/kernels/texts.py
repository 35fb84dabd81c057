"""Checks whether bytes are UTF-8."""

from __future__ import annotations

import numpy as np

from schemas.compiled import inner
from udfs.kernels.memory import load8, load64
from udfs.kernels.values import Int

_HIGH_BITS = np.int64(-9187201950435737472)  # 0x80 in each of eight bytes


@inner
def is_utf8(pos: Int, size: Int) -> bool:
    """Return whether bytes are UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.

    Up to 7 bytes past the end are loaded.
    """
    end = pos + size
    while pos < end:
        word = load64(pos) & _HIGH_BITS
        if end - pos < 8:
            word &= (1 << 8 * (end - pos)) - 1
        if word == 0:
            pos += 8
            continue
        byte = load8(pos)
        if byte < 0x80:
            pos += 1
            continue
        more = 1 if 0xC2 <= byte < 0xE0 else (2 if 0xE0 <= byte < 0xF0 else (3 if 0xF0 <= byte < 0xF5 else 0))
        if more == 0 or pos + more >= end:
            return False
        low, high = 0x80, 0xBF
        if byte in (0xE0, 0xF0):
            low = 0xA0 if byte == 0xE0 else 0x90
        elif byte in (0xED, 0xF4):
            high = 0x9F if byte == 0xED else 0x8F
        second = load8(pos + 1)
        if second < low or second > high:
            return False
        for k in range(2, more + 1):
            if load8(pos + k) >> 6 != 2:
                return False
        pos += more + 1
    return True
