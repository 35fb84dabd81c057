"""Tests whether a row is wanted: a selection as arrays, and the test of one row (`sources.xlog.format.selection`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.compiled import kernel
from schemas.iproto import SYSTEM_ID_MAX, RequestType
from sources.xlog.format.arrays import Flags, Int, Ints

_FIRST_RAFT = int(RequestType.RAFT)
_SYSTEM_ID_MAX = int(SYSTEM_ID_MAX)


class Filter(NamedTuple):
    """A selection as the kernel reads it.

    Parameters
    ----------
    active, by_space, spaceless, by_lsn, by_time, control_only : bool
        Which conditions are set; `active` is any of them.
    spaces : int32[]
        Sorted.
    replica_ids : bool[32]
        Whether each id is wanted.
    after, upto : int64[32]
        Wanted lsns by replica id: after < lsn <= upto.
    since, before : int
        Wanted times in microseconds: since <= time < before.

    """

    active: bool
    by_space: bool
    spaceless: bool
    by_lsn: bool
    by_time: bool
    control_only: bool
    spaces: npt.NDArray[np.int32]
    replica_ids: Flags
    after: Ints
    upto: Ints
    since: Int
    before: Int


@kernel
def selected(
    wanted: Filter, kind: Int, replica: Int, lsn: Int, time: Int, space: Int, has_lsn: Int, has_time: Int
) -> bool:
    """Return whether a row is wanted.

    Parameters
    ----------
    wanted : Filter
        The conditions.
    kind, replica, lsn, time : int
        The row's type, replica id (0 without one), lsn and timestamp in microseconds.
    space : int
        Its space id, -1 without one.
    has_lsn, has_time : int
        0 if it has none.

    """
    if wanted.control_only and kind < _FIRST_RAFT and not 0 <= space <= _SYSTEM_ID_MAX:
        return False
    if wanted.by_space:
        at = np.searchsorted(wanted.spaces, np.int32(space))
        listed = at < wanted.spaces.size and wanted.spaces[at] == space
        if not (listed or (wanted.spaceless and space < 0)):
            return False
    if not wanted.replica_ids[replica]:
        return False
    if wanted.by_lsn and not (has_lsn and wanted.after[replica] < lsn <= wanted.upto[replica]):
        return False
    return bool(not wanted.by_time or (has_time and wanted.since <= time < wanted.before))
