"""Places in a replicaset's log within one batch: the position of a row, and the parts of the log that planning gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class LogSegment:
    """One part of a log.

    Parameters
    ----------
    segment : int
        Its number in the batch, over all replicasets; in the order of the log within one replicaset.
    replicaset_uuid, source, file : str
        Whose log it is, and where it lies.
    instance_uuid : str or None
        The instance that wrote the file.
    is_snapshot : bool
    vclock : mapping of int to int
        The header's VClock of a file; empty for rows that waited.
    server_version : str or None
        The version of the server that wrote it; of rows that waited, that of the first one.
    peer_versions : mapping of int to str
        Of a spool that several peers fill: replica id to the version of the peer that its rows are from.
    vinyl_spaces : frozenset of int
        Of a snapshot: ids of the vinyl spaces whose rows are read with it.
    members : mapping of int to str, or None
        The source's `_cluster` where the segment begins, replica id to instance uuid; None where it was not read.
    is_spool : bool
        Whether the subscription daemon wrote it: a snapshot then has the rows of vinyl spaces too.
    has_waited : bool
        Whether it is no part of a file, but rows of `_pending`.
    is_released : bool
        Of rows that waited: they are in `_changelog` already, and waited for the definition of their space alone.
    is_generation : bool
        Of a snapshot: the stream came to it behind a hole.
    heals : bool
        Of a snapshot: it replaces the replicaset's state although the tables are ahead of it.
    spaces : frozenset of int, or None
        Of a snapshot that heals: the spaces that it replaces; None for all.

    """

    segment: int
    replicaset_uuid: str
    source: str
    file: str
    instance_uuid: str | None
    is_snapshot: bool
    vclock: Mapping[int, int]
    server_version: str | None = None
    peer_versions: Mapping[int, str] = field(default_factory=dict)
    vinyl_spaces: frozenset[int] = frozenset()
    members: Mapping[int, str] | None = None
    is_spool: bool = False
    has_waited: bool = False
    is_released: bool = False
    is_generation: bool = False
    heals: bool = False
    spaces: frozenset[int] | None = None


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


def row_index_at(found: LogPosition, positions: Int64s, rows: Int64s) -> int:
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


def first_row_index(found: LogPosition, segment: int, positions: Int64s, rows: Int64s) -> int:
    """Return the index of the first row of a segment that is not before a place, which may be in another segment."""
    if found.segment != segment:
        return 0 if found.segment < segment else len(positions)
    return row_index_at(found, positions, rows)
