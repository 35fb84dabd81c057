"""What one batch reads of one file, as plain data that travels to Spark's workers and to planning jobs.

Made by `sources.xlog.stream.plan`; nothing is opened or decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sources.xlog.format.vclock import Vclock


@dataclass(frozen=True)
class Gap:
    """Rows that are missing before a segment.

    Parameters
    ----------
    after : Vclock
        What the files before the hole reach.
    before : Vclock
        The header VClock of the segment's file: rows above `after` up to here are in no file.

    """

    after: Vclock
    before: Vclock


@dataclass(frozen=True)
class OriginSpan:
    """Which replica ids a whitelist of instances means, from a place in a file on.

    Parameters
    ----------
    position : int
        Bytes; holds for blocks from here to the next span.
    wanted : frozenset of int
        Replica ids of whitelisted instances; 0 = rows of local spaces of the file's own instance.
    unknown : frozenset of int
        Replica ids of which no `_cluster` row has been seen: rows of them can be neither taken nor left.

    """

    position: int
    wanted: frozenset[int]
    unknown: frozenset[int]


@dataclass(frozen=True)
class Segment:
    """What one batch reads of one file.

    Parameters
    ----------
    replicaset_uuid, source : str
        Whose file it is.
    path : str
        Path or URI to open the file by.
    file : str
        Base name.
    segment : int
        Number within the batch, over all replicasets; in the order of the log within one.
    begin, end : int
        Bytes: blocks that start in [begin, end).
    is_snapshot : bool
        Whether it is a `.snap`.
    is_closed : bool
        Whether it is known not to grow: a snapshot, or followed by another file.
    vclock : Vclock
        The header's VClock.
    instance_uuid : str or None
        The header's instance.
    gap : Gap or None
        What is missing before this file.
    since : Vclock or None
        Rows at or below it are left out: the snapshot that was read has them.
    origins : tuple of OriginSpan or None
        The whitelist in terms of replica ids; None = rows of every instance.
    space_id : int or None
        Of a vinyl space's `.run` file, whose rows do not say it.
    vinyl : frozenset of int or None
        Of a `.snap`: ids of the vinyl spaces whose rows are read with it, from segments of their own.
    is_generation : bool
        Of a `.snap`: whether the stream came to it behind a hole, so that it replaces what is known.
    is_log : bool
        Whether its rows have a lsn and a time of their own, by which a batch read may bound them.
    skipped_rows : int
        So many rows of the block at `begin` were read by the batch before.
    last_block : (int, int) or None
        Of a segment that ends within a block: where that block starts, and how many of its rows are read.

    """

    replicaset_uuid: str
    source: str
    path: str
    file: str
    segment: int
    begin: int
    end: int
    is_snapshot: bool
    is_closed: bool
    vclock: Vclock
    instance_uuid: str | None
    gap: Gap | None = None
    since: Vclock | None = None
    origins: tuple[OriginSpan, ...] | None = None
    space_id: int | None = None
    vinyl: frozenset[int] | None = None
    is_generation: bool = False
    is_log: bool = True
    skipped_rows: int = 0
    last_block: tuple[int, int] | None = None


@dataclass(frozen=True)
class ByteRange:
    """The blocks of a segment that start in [begin, end).

    Parameters
    ----------
    segment : Segment
        Of which it is a part.
    begin, end : int
        Bytes.
    exact : bool
        Whether blocks are known to start at both; otherwise whoever reads it searches the first one.

    """

    segment: Segment
    begin: int
    end: int
    exact: bool = True
