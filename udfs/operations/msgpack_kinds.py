"""The kinds of MessagePack values, and the kind and the size of a value by its first byte (Tarantool's msgpuck)."""

from __future__ import annotations

UINT, INT, STR, BIN, ARRAY, MAP, BOOL, FLOAT, DOUBLE, EXT, NIL, INVALID = range(12)


def _kind_of_first_byte(code: int) -> int:
    if code < 0x80:
        return UINT
    if code < 0xC0:
        return MAP if code < 0x90 else ARRAY if code < 0xA0 else STR
    if code >= 0xE0:
        return INT
    first = (NIL, INVALID, BOOL, BOOL, BIN, BIN, BIN, EXT, EXT, EXT, FLOAT, DOUBLE)
    numbers = (*(UINT,) * 4, *(INT,) * 4, *(EXT,) * 5)
    return (*first, *numbers, STR, STR, STR, ARRAY, ARRAY, MAP, MAP)[code - 0xC0]


def _size_of_first_byte(code: int) -> int:
    fixed = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
    fixed |= {0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
    if code < 0x80 or code >= 0xE0:
        return 1
    return code - 0x9F if 0xA0 <= code < 0xC0 else fixed.get(code, 0)


KIND: tuple[int, ...] = tuple(_kind_of_first_byte(code) for code in range(256))
"""Kind by first byte (`mp_typeof`): a positive number in a signed encoding is an INT."""

SIZE: tuple[int, ...] = tuple(_size_of_first_byte(code) for code in range(256))
"""Whole size in bytes by first byte; 0 if a length follows or the value is a container."""
