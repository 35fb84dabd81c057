"""Finds some fields of many tuples, and writes them as comparable bytes.

Never fails: a field that cannot be reached is absent. `udfs.keys.kernels.sort_key` writes each value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.compiled import entry, inner
from udfs.kernels.memory import address
from udfs.kernels.values import ARRAY, BINARY, STRING, Int, head, skip
from udfs.keys.kernels.sort_key import FIXED_MAX, put_sort_key


@inner
def _locate_row(pos: Int, end: Int, base: Int, fields: Any, classes: Any, arguments: Any) -> Int:
    """Find the fields of one tuple; return the greatest number of bytes that they may take."""
    room = np.int64(FIXED_MAX * len(fields))
    if pos >= end:
        return room
    kind, count, first = head(pos, end)
    if kind != ARRAY:
        return room
    pos, number = first, np.int64(0)
    for part in range(len(fields)):
        field = fields[part]
        if field < 0 or field >= count:
            continue
        if field < number:
            pos, number = first, np.int64(0)
        while number < field and pos >= 0:
            pos = skip(pos, end)
            number += 1
        if pos < 0 or pos >= end:
            continue
        kind, argument, place = head(pos, end)
        classes[part] = kind
        arguments[part] = (place - base) << 32 | argument if kind >= STRING else argument
        if kind in (STRING, BINARY):
            room += 2 * argument
    return room


@entry
def locate(
    data: Any, offsets: Any, nulls: Any, which: Any, formats: Any, classes: Any, arguments: Any
) -> Int:
    """Find the fields of all tuples; return the greatest number of bytes that `write` may need.

    Parameters
    ----------
    data, offsets, nulls : arrays
        The tuples (`udfs.buffers.Flat`).
    which : int32 array, (rows,)
        Row of `formats`; if there is no such row, all fields are absent.
    formats : int32 array, (formats, parts)
        0-based field numbers; a negative one is absent.
    classes, arguments : int8 and int64 arrays, (rows, parts), zeroed
        The result: class and argument of each field (`udfs.kernels.values`).

    """
    base = address(data)
    room = np.int64(0)
    for row in range(len(nulls)):
        if nulls[row]:
            continue
        index = which[row]
        if index < 0 or index >= len(formats):
            room += FIXED_MAX * formats.shape[1]
            continue
        pos, end = base + offsets[row], base + offsets[row + 1]
        room += _locate_row(pos, end, base, formats[index], classes[row], arguments[row])
    return room


@entry
def write(data: Any, nulls: Any, classes: Any, arguments: Any, out: Any, ends: Any) -> bool:
    """Write the fields that `locate` has found, one row after another; a null row is empty.

    Returns whether all had room in `out`.

    Parameters
    ----------
    out : uint8 array
        As large as `locate` returned.
    ends : int64 array, (rows + 1,), zeroed
        Where each row starts in `out`, and where the last one ends.

    """
    base, begin = address(data), address(out)
    target, limit = begin, begin + len(out)
    for row in range(len(nulls)):
        if not nulls[row]:
            for part in range(classes.shape[1]):
                kind, argument = classes[row, part], arguments[row, part]
                pos = base
                if kind >= STRING:
                    pos += argument >> 32
                    argument &= 0xFFFFFFFF
                if target + FIXED_MAX + (2 * argument if kind in (STRING, BINARY) else 0) > limit:
                    return False
                target = put_sort_key(target, kind, argument, pos)
        ends[row + 1] = target - begin
    return True
