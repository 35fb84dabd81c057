"""Selects rows by columns of their header, before any tuple is copied.

`Selection` is plain frozen data that is sent to Spark's workers; `filter_of` makes arrays for the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from schemas.iproto import LSN_MAX, VCLOCK_MAX
from sources.xlog.format.kernels.wanted import Filter


@dataclass(frozen=True)
class Selection:
    """The wanted rows: those that fulfil every condition that is set.

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

    A row without an lsn or timestamp fulfils no condition on it.

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
