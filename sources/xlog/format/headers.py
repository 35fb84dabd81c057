"""Rows without their tuples: the header columns of a byte range as numpy arrays, for summaries and plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sources.xlog.format.arrays import Flags, Ints
from sources.xlog.format.kernels import row as kernel
from sources.xlog.format.kernels.row import NARROW, WIDE, RowColumns

ABSENT = -1
NO_TIME = -(2**63)
_BITS = {
    "type": kernel.TYPE,
    "replica_id": kernel.REPLICA_ID,
    "group_id": kernel.GROUP_ID,
    "lsn": kernel.LSN,
    "tsn": kernel.LSN,
    "timestamp": kernel.TIMESTAMP,
    "space_id": kernel.SPACE_ID,
}


@dataclass(frozen=True)
class Headers:
    """The header columns of n rows, in the order of the log.

    A missing value is `ABSENT` (-1), a missing timestamp `NO_TIME`.

    Parameters
    ----------
    position, lsn, tsn, timestamp : int64[n]
        Position of the row's block in the file (bytes), lsn, tsn, microseconds since 1970 UTC.
    row, type, replica_id, group_id, space_id : int32[n]
        Number in the block, request type, replica id, group id, space id.
    is_commit, wait_ack : bool[n]
        Whether the row ends its transaction; whether its transaction waits for a quorum.

    """

    position: Ints
    lsn: Ints
    tsn: Ints
    timestamp: Ints
    row: npt.NDArray[np.int32]
    type: npt.NDArray[np.int32]
    replica_id: npt.NDArray[np.int32]
    group_id: npt.NDArray[np.int32]
    space_id: npt.NDArray[np.int32]
    is_commit: Flags
    wait_ack: Flags


def headers_of(columns: RowColumns, count: int) -> Headers:
    """Return the first `count` rows of filled columns as `Headers`; the columns must not be reused."""
    marks = columns.marks[:count]
    absent = {bit: marks & np.uint32(1 << bit) == 0 for bit in _BITS.values()}
    values: dict[str, Any] = {name: columns.wide[k, :count] for k, name in enumerate(WIDE)}
    values |= {name: columns.narrow[k, :count] for k, name in enumerate(NARROW) if name != "index_base"}
    for name, bit in _BITS.items():
        values[name][absent[bit]] = NO_TIME if name == "timestamp" else ABSENT
    is_commit = (marks >> np.uint32(kernel.COMMIT)) & np.uint32(1) == 1
    wait_ack = (marks >> np.uint32(kernel.WAIT_ACK)) & np.uint32(1) == 1
    return Headers(**values, is_commit=is_commit, wait_ack=wait_ack)
