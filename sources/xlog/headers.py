"""Rows without their tuples: the numbers of a byte range as numpy arrays, for summaries and plans.

Not here: the batches that Spark gets (`rows`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sources.xlog import kernel
from sources.xlog.kernel import NARROW, WIDE, Columns

ABSENT = -1


@dataclass(frozen=True)
class Headers:
    """The header columns of n rows, in the order of the log.

    Parameters
    ----------
    position, lsn, tsn, timestamp : int64[n]
        Position of the row's block in the file (bytes), lsn, tsn, microseconds since 1970 UTC.
    row, type, replica_id, group_id, space_id : int32[n]
        Number in the block, request type, replica id, group id, space id.
    is_commit : bool[n]
        Whether the row ends its transaction.

    What a row has not is `ABSENT` (-1); the timestamp is then the smallest int64.

    """

    position: npt.NDArray[np.int64]
    lsn: npt.NDArray[np.int64]
    tsn: npt.NDArray[np.int64]
    timestamp: npt.NDArray[np.int64]
    row: npt.NDArray[np.int32]
    type: npt.NDArray[np.int32]
    replica_id: npt.NDArray[np.int32]
    group_id: npt.NDArray[np.int32]
    space_id: npt.NDArray[np.int32]
    is_commit: npt.NDArray[np.bool_]


def headers_of(columns: Columns, count: int) -> Headers:
    """Return the first `count` rows of filled columns."""
    marks = columns.marks[:count]
    wide = {name: columns.wide[k, :count] for k, name in enumerate(WIDE)}
    narrow = {name: columns.narrow[k, :count] for k, name in enumerate(NARROW)}
    no_lsn = _without(marks, kernel.LSN)
    wide["lsn"][no_lsn] = ABSENT
    wide["tsn"][no_lsn] = ABSENT
    wide["timestamp"][_without(marks, kernel.TIMESTAMP)] = np.iinfo(np.int64).min
    for name, bit in (
        ("type", kernel.TYPE),
        ("replica_id", kernel.REPLICA_ID),
        ("group_id", kernel.GROUP_ID),
    ):
        narrow[name][_without(marks, bit)] = ABSENT
    narrow["space_id"][_without(marks, kernel.SPACE_ID)] = ABSENT
    del narrow["index_base"]
    is_commit = (marks >> np.uint32(kernel.COMMIT)) & np.uint32(1) == 1
    return Headers(**wide, **narrow, is_commit=is_commit)


def _without(marks: npt.NDArray[np.uint32], bit: int) -> npt.NDArray[np.bool_]:
    return marks & np.uint32(1 << bit) == 0
