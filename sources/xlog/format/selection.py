"""Selects rows by their headers and space ids, before any tuple is copied.

`Selection` is plain frozen data that is sent to Spark's workers. `filter_of` converts it to arrays, with which a kernel
tests each row.
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


class RowFilter(NamedTuple):
    """A selection in the form that the kernel reads."""

    has_conditions: bool
    by_space: bool
    with_spaceless: bool
    by_lsn: bool
    by_time: bool
    control_only: bool
    """Which conditions of the `Selection` are set. If `has_conditions` is False, every row is wanted."""
    space_ids: npt.NDArray[np.int32]
    """The wanted space ids, sorted."""
    replica_ids: Flags
    """By replica id: whether its rows are wanted (bool[32])."""
    after_lsn: Ints
    upto_lsn: Ints
    """By replica id: the wanted lsns, after_lsn < lsn <= upto_lsn (int64[32])."""
    from_time: Int
    before_time: Int
    """The wanted timestamps in microseconds since 1970: from_time <= timestamp < before_time."""


@kernel
def is_selected(
    row_filter: RowFilter,
    kind: Int,
    replica_id: Int,
    lsn: Int,
    time: Int,
    space_id: Int,
    has_lsn: Int,
    has_time: Int,
) -> bool:
    """Return whether a row is wanted.

    Args:
        row_filter: The conditions.
        kind, replica_id, lsn, time: The row's type, replica id (0 without one), lsn and timestamp in microseconds.
        space_id: The row's space id, -1 without one.
        has_lsn, has_time: 1 if the row has an lsn, or a timestamp; otherwise 0.
    """
    if row_filter.control_only and kind < _FIRST_RAFT and not 0 <= space_id <= _SYSTEM_ID_MAX:
        return False
    if row_filter.by_space:
        at = np.searchsorted(row_filter.space_ids, np.int32(space_id))
        listed = at < row_filter.space_ids.size and row_filter.space_ids[at] == space_id
        if not (listed or (row_filter.with_spaceless and space_id < 0)):
            return False
    if not row_filter.replica_ids[replica_id]:
        return False
    if row_filter.by_lsn and not (
        has_lsn and row_filter.after_lsn[replica_id] < lsn <= row_filter.upto_lsn[replica_id]
    ):
        return False
    return bool(
        not row_filter.by_time or (has_time and row_filter.from_time <= time < row_filter.before_time)
    )


@dataclass(frozen=True)
class Selection:
    """Says which rows are wanted: those that fulfil every condition that is set.

    A row without an lsn fulfils no condition on lsns, and a row without a timestamp none on timestamps.
    """

    space_ids: frozenset[int] | None = None
    """Rows of the spaces with these ids."""
    with_spaceless: bool = False
    """If `space_ids` is set: whether rows without a space (NOP, RAFT_CONFIRM, ...) are wanted too."""
    replica_ids: frozenset[int] | None = None
    """Rows with these replica ids. Rows without one (of local spaces) count as rows of replica id 0."""
    from_vclock: Mapping[int, int] | None = None
    """Rows after it: lsn > from_vclock[replica id]. A missing component is 0."""
    to_vclock: Mapping[int, int] | None = None
    """Rows up to it: lsn <= to_vclock[replica id]."""
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    """Microseconds since 1970 UTC: from <= timestamp < to."""
    control_only: bool = False
    """Whether only rows of system spaces (id up to 511) and of the protocol (type 30 and up) are wanted."""


def filter_of(selection: Selection | None) -> RowFilter:
    """Return a selection as arrays; None selects every row."""
    wanted = selection or Selection()
    lower, upper = wanted.from_timestamp, wanted.to_timestamp
    ids = range(VCLOCK_MAX)
    by_lsn = wanted.from_vclock is not None or wanted.to_vclock is not None
    after = [-1 if wanted.from_vclock is None else wanted.from_vclock.get(i, 0) for i in ids]
    upto = [LSN_MAX if wanted.to_vclock is None else wanted.to_vclock.get(i, 0) for i in ids]
    return RowFilter(
        has_conditions=wanted != Selection(with_spaceless=wanted.with_spaceless),
        by_space=wanted.space_ids is not None,
        with_spaceless=wanted.with_spaceless,
        by_lsn=by_lsn,
        by_time=lower is not None or upper is not None,
        control_only=wanted.control_only,
        space_ids=np.array(sorted(wanted.space_ids or ()), np.int32),
        replica_ids=np.array([wanted.replica_ids is None or i in wanted.replica_ids for i in ids]),
        after_lsn=np.array(after, np.int64),
        upto_lsn=np.array(upto, np.int64),
        from_time=np.int64(-LSN_MAX if lower is None else lower),
        before_time=np.int64(LSN_MAX if upper is None else upper),
    )
