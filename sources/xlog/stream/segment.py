"""The part of one file that a batch reads, as plain data that is sent to Spark's workers.

`sources.xlog.stream.plan` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sources.xlog.format.vclock import Vclock


@dataclass(frozen=True)
class LogGap:
    """A gap: rows that are missing before a segment.

    Parameters
    ----------
    end_of_previous : Vclock
        The vclock at the end of the file before the gap.
    start_of_next : Vclock
        The header VClock of the segment's file: rows above `end_of_previous` up to here are in no file.

    """

    end_of_previous: Vclock
    start_of_next: Vclock


@dataclass(frozen=True)
class OriginSpan:
    """The replica ids that a whitelist of instances means, from a position in a file on.

    Parameters
    ----------
    begin : int
        Bytes: the span applies to blocks from here to the next span.
    wanted_ids : frozenset of int
        Replica ids of whitelisted instances; 0 means rows of local spaces of the file's own instance.
    unknown_ids : frozenset of int
        Replica ids without a `_cluster` row so far: whether their rows are wanted is unknown, so they are an error.

    """

    begin: int
    wanted_ids: frozenset[int]
    unknown_ids: frozenset[int]


@dataclass(frozen=True)
class Segment:
    """The part of one file that a batch reads.

    Parameters
    ----------
    replicaset_uuid, source : str
        The replicaset and the source of the file.
    path : str
        Path or URI of the file.
    file : str
        Base name.
    number : int
        Within the batch, over all replicasets; in the order of the log within one.
    begin, end : int
        Bytes: blocks that start in [begin, end).
    is_snapshot : bool
        Whether the file is a `.snap`.
    is_closed : bool
        Whether the file cannot grow: it is a snapshot, or another file follows it.
    vclock : Vclock
        The header's VClock.
    instance_uuid : str or None
        The instance that the header names.
    gap : LogGap or None
        The gap before this file.
    since : Vclock or None
        Rows at or below it are left out: the snapshot that was read has them.
    origin_spans : tuple of OriginSpan or None
        The whitelist as replica ids; None means rows of every instance.
    left_out_registrations : mapping of int to str
        {replica id: instance uuid} from the rows of `_cluster` in the first block of the segment that the whitelist
        leaves out.
    space_id : int or None
        For a `.run` file of a vinyl space, whose rows do not name the space.
    vinyl_space_ids : frozenset of int or None
        For a `.snap`: ids of the vinyl spaces whose rows are read with it, from separate segments.
    is_generation : bool
        For a `.snap`: whether it follows a gap, so that it replaces all earlier rows of the replicaset.
    is_log : bool
        Whether the rows have an lsn and a timestamp, which can bound a batch read.
    skipped_rows : int
        Number of rows of the block at `begin` that the previous batch has read.
    last_block : (int, int) or None
        For a segment that ends within a block: the start of that block, and the number of its rows to read.

    """

    replicaset_uuid: str
    source: str
    path: str
    file: str
    number: int
    begin: int
    end: int
    is_snapshot: bool
    is_closed: bool
    vclock: Vclock
    instance_uuid: str | None
    gap: LogGap | None = None
    since: Vclock | None = None
    origin_spans: tuple[OriginSpan, ...] | None = None
    left_out_registrations: Mapping[int, str] = field(default_factory=dict)
    space_id: int | None = None
    vinyl_space_ids: frozenset[int] | None = None
    is_generation: bool = False
    is_log: bool = True
    skipped_rows: int = 0
    partial_last_block: tuple[int, int] | None = None


@dataclass(frozen=True)
class ByteRange:
    """The blocks of a segment that start in [begin, end).

    Parameters
    ----------
    segment : Segment
        The segment that the range is a part of.
    begin, end : int
        Bytes.
    exact : bool
        Whether blocks start at both positions; otherwise the reader searches for the first one.

    """

    segment: Segment
    begin: int
    end: int
    at_block_starts: bool = True
