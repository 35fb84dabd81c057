"""The position of a row in a replicaset's log, within one batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class LogPosition(NamedTuple):
    """A place in a replicaset's log; places compare in the order of the log.

    Parameters
    ----------
    segment : int
        Number of the part of a file within the batch. Rows that waited have numbers below 0.
    position : int
        Byte offset of the transaction block in the file.
    row : int
        Index of the row in the block.

    """

    segment: int
    position: int
    row: int


BEGINNING = LogPosition(-(2**31), 0, 0)
"""Before every row of a batch."""


def row_at(found: LogPosition, positions: Int64s, rows: Int64s) -> int:
    """Return the index of the first of some consecutive rows of one segment that is not before a place.

    Parameters
    ----------
    found : LogPosition
        In the segment of the rows.
    positions, rows : int64[n]
        Of the rows, in the order of the log.

    """
    first = int(np.searchsorted(positions, found.position, "left"))
    last = int(np.searchsorted(positions, found.position, "right"))
    return first + int(np.searchsorted(rows[first:last], found.row, "left"))


def index_of(found: LogPosition, segment: int, positions: Int64s, rows: Int64s) -> int:
    """Return the index of the first row of a segment that is not before a place, which may be in another segment."""
    if found.segment != segment:
        return 0 if found.segment < segment else len(positions)
    return row_at(found, positions, rows)
