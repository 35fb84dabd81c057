"""Columns of fixed width from the classes and arguments that `udfs.kernels.walk` left.

Each kernel fills one column and says of each row what became of it: `FITS`, `INEXACT`, or why it does not fit.
Rows whose field is absent or nil are left as they are. Not here: text and variants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfs.kernels.compiled import entry, inner
from udfs.kernels.decimals import read_decimal, rescale
from udfs.kernels.doubles import decimal_to_double, integer_to_double
from udfs.kernels.memory import address, load32, load64
from udfs.kernels.values import DATETIME, DECIMAL, DOUBLE, FLOAT, INTEGER, NIL, UNSIGNED_BIG, Int

FITS = 0
INEXACT = 1
OUT_OF_RANGE = 2
TOO_MANY_DIGITS = 3
INVALID = 4
NOT_UTF8 = 5
TOO_LARGE = 6
UNDECIDED = 7

MIN_SECONDS = -62135596800
MAX_SECONDS = 253402300799


@entry
def longs(classes: Any, statuses: Any) -> None:
    """Say which integers are above 2^63 - 1; the others are their arguments."""
    for row in range(len(classes)):
        if classes[row] == UNSIGNED_BIG:
            statuses[row] = OUT_OF_RANGE


@entry
def wides(classes: Any, arguments: Any, out: NDArray[np.int64]) -> None:
    """Fill decimal(20,0) words (lower, upper) from integers."""
    for row in range(len(classes)):
        out[row, 0] = arguments[row]
        out[row, 1] = -1 if classes[row] == INTEGER and arguments[row] < 0 else 0


@entry
def doubles(data: Any, classes: Any, arguments: Any, out: Any, statuses: Any) -> None:
    """Fill doubles from any number; decimals that are not decided here are `UNDECIDED`."""
    base = address(data)
    for row in range(len(classes)):
        kind, argument = classes[row], arguments[row]
        if kind in (DOUBLE, FLOAT):
            out[row] = np.int64(argument).view(np.float64)
        elif kind == DECIMAL:
            number = read_decimal(base + (argument >> 32), argument & 0xFFFFFFFF)
            if not number[4]:
                statuses[row] = INVALID
                continue
            out[row], same, known = decimal_to_double(number)
            if not same:
                statuses[row] = INEXACT if known else UNDECIDED
        elif kind > NIL:
            out[row], same = integer_to_double(kind, argument)
            if not same:
                statuses[row] = INEXACT


@entry
def decimals(data: Any, classes: Any, arguments: Any, scale: Int, out: Any, statuses: Any) -> None:
    """Fill decimal(38, scale) words (lower, upper) from decimals."""
    base = address(data)
    for row in range(len(classes)):
        kind, argument = classes[row], arguments[row]
        if kind <= NIL:
            continue
        number = read_decimal(base + (argument >> 32), argument & 0xFFFFFFFF)
        upper, lower, fits = rescale(number, scale)
        out[row, 0] = lower
        out[row, 1] = upper
        if not fits:
            statuses[row] = TOO_MANY_DIGITS if number[4] else INVALID


@inner
def read_datetime(pos: Int, size: Int) -> tuple[Int, Int, bool]:
    """Read the content of an MP_DATETIME: seconds, nanoseconds, whether it is valid.

    Format (`src/lib/core/mp_datetime.c`): seconds since 1970 UTC as int64, then, unless all are 0, nanoseconds
    as int32, offset in minutes and index of the time zone as int16; all little-endian. An instant has no zone.
    """
    if size not in (8, 16):
        return 0, 0, False
    nanoseconds = load32(pos + 8) if size == 16 else np.int64(0)
    return load64(pos), nanoseconds, bool(nanoseconds < 1000000000)


@entry
def timestamps(data: Any, classes: Any, arguments: Any, out: Any, statuses: Any) -> None:
    """Fill microseconds since 1970 UTC, of years 1 to 9999; nanoseconds beyond them are cut and said."""
    base = address(data)
    for row in range(len(classes)):
        if classes[row] != DATETIME:
            continue
        argument = arguments[row]
        seconds, nanoseconds, valid = read_datetime(base + (argument >> 32), argument & 0xFFFFFFFF)
        if not valid:
            statuses[row] = INVALID
        elif seconds < MIN_SECONDS or seconds > MAX_SECONDS:
            statuses[row] = OUT_OF_RANGE
        else:
            out[row] = seconds * 1000000 + nanoseconds // 1000
            if nanoseconds % 1000 != 0:
                statuses[row] = INEXACT
