"""Positions of rows and segments in a replicaset's log, within one batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sources.xlog.stream.segment import Segment


@dataclass(frozen=True)
class LogSegment:
    """The part of a log file that a batch reads, or rows that waited in `_pending`."""

    number: int
    """Unique in the batch; the numbers of a replicaset's segments ascend in the order of its log."""
    replicaset_uuid: str
    source: str
    file: str
    """The names of the source and of the file."""
    instance_uuid: str | None
    is_snapshot: bool
    vclock: Mapping[int, int]
    """The vclock in the file's header; empty for waiting rows."""
    server_version: str | None = None
    """The Tarantool version that wrote the segment's first row."""
    peer_versions: Mapping[int, str] = field(default_factory=dict)
    """For a spool filled by several peers: for each replica id, the version of the peer that sent its rows."""
    vinyl_spaces: frozenset[int] = frozenset()
    """For a snapshot: ids of the vinyl spaces whose rows are read with it."""
    members: Mapping[int, str] | None = None
    """The source's whole `_cluster` at the segment's begin, replica id to instance uuid; None if it was not read."""
    left_out_members: Mapping[int, str] = field(default_factory=dict)
    """Replica id to instance uuid, from the rows of `_cluster` in the segment's first block that the source's whitelist
    leaves out. Unlike `members`, these are only the rows at this position, not all of `_cluster`."""
    is_spool: bool = False
    """Whether the subscription daemon wrote the file: its snapshots contain the rows of vinyl spaces."""
    has_waited: bool = False
    """Whether the rows come from `_pending`, not from a file."""
    is_released: bool = False
    """For waiting rows: they waited only for the definition of their space, and are in `_changelog` already."""
    is_generation: bool = False
    """For a snapshot: logs before it are missing."""
    is_healing: bool = False
    """For a snapshot: it replaces the replicaset's state even if the tables are newer."""
    replaced_spaces: frozenset[int] | None = None
    """For a snapshot that heals: ids of the spaces that it replaces; None for all."""
    vclock_before: Mapping[int, int] = field(default_factory=dict)
    """For each replica id, the lsn of its last row before the file, by the file's header: all rows up to it must be
    read first. Empty for snapshots; without the ids that the source's whitelist leaves out, and without local changes.
    """


Int64s = npt.NDArray[np.int64]


class LogPosition(NamedTuple):
    """The position of a row in a replicaset's log; positions compare in log order."""

    segment: int
    """The segment's number in the batch; segments of waiting rows that come first have numbers below 0, and those that
    come later have numbers between those of log segments (`with_spaced_numbers`)."""
    position: int
    """Byte offset of the transaction block in the file."""
    row: int
    """Index of the row in the block."""


BEGINNING = LogPosition(-(2**31), 0, 0)
"""A position before every row of a batch."""


def row_index_at(begin: LogPosition, positions: Int64s, rows: Int64s) -> int:
    """Return the index of the first row at or after a position in the same segment, in log order."""
    first = int(np.searchsorted(positions, begin.position, "left"))
    last = int(np.searchsorted(positions, begin.position, "right"))
    return first + int(np.searchsorted(rows[first:last], begin.row, "left"))


def first_row_index(begin: LogPosition, segment: int, positions: Int64s, rows: Int64s) -> int:
    """Return the index of the first row of `segment` at or after the position `begin`, or the number of its rows.

    `begin` may be in an earlier or a later segment. `positions` and `rows` have, for each row of the segment, the
    position of its block and its number in the block.
    """
    if begin.segment != segment:
        return 0 if begin.segment < segment else len(positions)
    return row_index_at(begin, positions, rows)


SEGMENT_NUMBER_STEP = 1 << 20
"""Log segments are numbered in steps of this size, so that segments of waiting rows get numbers between them."""

MAX_SEGMENT_NUMBER = 2**31 - 1


def with_spaced_numbers(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return a batch's segments, numbered so that segments of waiting rows fit between them."""
    step = min(SEGMENT_NUMBER_STEP, MAX_SEGMENT_NUMBER // (len(segments) + 1))
    return tuple(replace(segment, number=segment.number * step) for segment in segments)
