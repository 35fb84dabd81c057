"""The status of a field that is written to its column: `FITS`, `INEXACT`, or why it does not fit; and datetimes.

A field that does not fit leaves its column null; the other fields of its tuple are written
(`udfs.tuples.kernels.field_writers`).
"""

from __future__ import annotations

import numpy as np

from schemas.compiled import inner
from udfs.kernels.memory import load32, load64
from udfs.kernels.values import Int

FITS = 0
INEXACT = 1
OUT_OF_RANGE = 2
TOO_MANY_DIGITS = 3
INVALID = 4
NOT_UTF8 = 5
TOO_LARGE = 6
UNDECIDED = 7
NO_ROOM = 8
"""Not a status of the field: the column's buffer must grow, and then the tuple is walked again."""

WRONG_CLASS = 16
"""The field does not accept values of this class; the status is this number plus the class (`udfs.kernels.values`)."""

MISFITS = ~(1 << FITS | 1 << INEXACT | 1 << UNDECIDED | 1 << NO_ROOM)
"""The statuses of a field that does not fit, as bits."""

MIN_SECONDS = -62135596800
MAX_SECONDS = 253402300799


@inner
def read_datetime(pos: Int, size: Int) -> tuple[Int, Int, bool]:
    """Read the content of an MP_DATETIME; return seconds, nanoseconds, and whether it is valid.

    Format (`src/lib/core/mp_datetime.c`): seconds since 1970 UTC as int64, then, unless all are 0, nanoseconds
    as int32, offset in minutes and index of the time zone as int16; all little-endian. An instant has no zone.
    """
    if size not in (8, 16):
        return 0, 0, False
    nanoseconds = load32(pos + 8) if size == 16 else np.int64(0)
    return load64(pos), nanoseconds, bool(nanoseconds < 1000000000)
