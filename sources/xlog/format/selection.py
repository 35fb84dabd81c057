"""Selects rows by columns of their header, before any tuple is copied.

`Selection` is plain frozen data that is sent to Spark's workers; `filter_of` makes the arrays by which a kernel tests
each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.compiled import kernel
from schemas.iproto import LSN_MAX, SYSTEM_SPACE_ID_MAX, VCLOCK_MAX, RequestType
from sources.xlog.format.arrays import Flags, Int, Ints

_FIRST_RAFT = int(RequestType.RAFT)
_SYSTEM_ID_MAX = int(SYSTEM_SPACE_ID_MAX)


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


@dataclass(frozen=True)
class Selection:
    """The wanted rows: those that fulfil every condition that is set.

    A row without an lsn or timestamp fulfils no condition on it.

    Parameters
    ----------
    spaces : frozenset of int, optional
        Space ids.
    spaceless : bool
        With `spaces`: whether rows that have no space (NOP, RAFT_CONFIRM, ...) are wanted too.
    replica_ids : frozenset of int, optional
        Rows with these replica ids; rows without a replica id (of local spaces) count as 0.
    from_vclock : mapping of int to int, optional
        Rows after it: lsn > from_vclock[replica id], a missing component being 0.
    to_vclock : mapping of int to int, optional
        Rows up to it: lsn <= to_vclock[replica id].
    from_timestamp, to_timestamp : int, optional
        Microseconds since 1970 UTC: from <= timestamp < to.
    control_only : bool
        Only rows of system spaces (id up to 511) and those of the protocol (type 30 and up).

    """

    spaces: frozenset[int] | None = None
    spaceless: bool = False
    replica_ids: frozenset[int] | None = None
    from_vclock: Mapping[int, int] | None = None
    to_vclock: Mapping[int, int] | None = None
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    control_only: bool = False


def filter_of(selection: Selection | None) -> Filter:
    """Return a selection as arrays; None selects every row."""
    wanted = selection or Selection()
    lower, upper = wanted.from_timestamp, wanted.to_timestamp
    ids = range(VCLOCK_MAX)
    by_lsn = wanted.from_vclock is not None or wanted.to_vclock is not None
    after = [-1 if wanted.from_vclock is None else wanted.from_vclock.get(i, 0) for i in ids]
    upto = [LSN_MAX if wanted.to_vclock is None else wanted.to_vclock.get(i, 0) for i in ids]
    return Filter(
        active=wanted != Selection(spaceless=wanted.spaceless),
        by_space=wanted.spaces is not None,
        spaceless=wanted.spaceless,
        by_lsn=by_lsn,
        by_time=lower is not None or upper is not None,
        control_only=wanted.control_only,
        spaces=np.array(sorted(wanted.spaces or ()), np.int32),
        replica_ids=np.array([wanted.replica_ids is None or i in wanted.replica_ids for i in ids]),
        after=np.array(after, np.int64),
        upto=np.array(upto, np.int64),
        since=np.int64(-LSN_MAX if lower is None else lower),
        before=np.int64(LSN_MAX if upper is None else upper),
    )
