"""The part of one file that a batch reads, as plain data that is sent to Spark's workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sources.xlog.format.vclock import Vclock
from sources.xlog.stream.slices import Slices


@dataclass(frozen=True)
class LogGap:
    """A gap in the logs: rows that are missing before a segment."""

    end_of_previous: Vclock
    """The vclock at the end of the file before the gap."""
    start_of_next: Vclock
    """The header VClock of the segment's file. Rows above `end_of_previous` and at most at this vclock are in no file.
    """


@dataclass(frozen=True)
class OriginSpan:
    """The replica ids whose rows a whitelist of instances selects, from a position in a file on."""

    begin: int
    """Position in bytes. The span applies to the blocks from here to the next span."""
    wanted_ids: frozenset[int]
    """Replica ids of whitelisted instances; 0 means rows of local spaces, which the file's own instance wrote."""
    unknown_ids: frozenset[int]
    """Replica ids that are not in `_cluster` so far. It is unknown whether their rows are wanted, so such rows are an
    error."""


@dataclass(frozen=True)
class Segment:
    """The part of one file that a batch reads."""

    replicaset_uuid: str
    source: str
    """Uuid of the replicaset, and name of the source."""
    path: str
    """Path or URI of the file."""
    file: str
    """Base name of the file."""
    number: int
    """Number of the segment in its batch, over all replicasets. Those of one replicaset are in the order of its log."""
    begin: int
    end: int
    """Positions in bytes: the segment has the blocks that start in [begin, end)."""
    is_snapshot: bool
    is_closed: bool
    """Whether the file cannot grow: it is a snapshot, or another file follows it."""
    vclock: Vclock
    """The VClock of the file's header."""
    instance_uuid: str | None
    """The instance that the header names."""
    gap: LogGap | None = None
    snapshot_vclock: Vclock | None = None
    """The vclock of the snapshot that was read before. Rows at or below it are left out."""
    origin_spans: tuple[OriginSpan, ...] | None = None
    """The whitelist as replica ids; None means that there is no whitelist."""
    left_out_registrations: Mapping[int, str] = field(default_factory=dict)
    """{replica id: instance uuid} of the rows of `_cluster` in the first block that the whitelist leaves out."""
    space_id: int | None = None
    """For a `.run` file of a vinyl space: the id of the space, which is not in the rows. None for other files."""
    slices: Slices | None = None
    """For a `.run` file: the keys to read, if others may belong to later runs. None if there are no others."""
    vinyl_space_ids: frozenset[int] | None = None
    """For a `.snap`: ids of the vinyl spaces whose rows are read together with it, from separate segments."""
    is_generation: bool = False
    """For a `.snap`: whether it replaces all earlier rows of the replicaset, because it follows a gap."""
    is_log: bool = True
    """Whether the rows have an lsn and a timestamp, so that the bounds of a batch read apply to them."""
    skipped_rows: int = 0
    """Number of rows at the beginning of the first block that an earlier batch has read."""
    partial_last_block: tuple[int, int] | None = None
    """For a segment that ends within a block: the start of that block, and the number of its rows to read."""


@dataclass(frozen=True)
class ByteRange:
    """The blocks of a segment that start in [begin, end)."""

    segment: Segment
    begin: int
    end: int
    """Positions in bytes."""
    at_block_starts: bool = True
    """Whether blocks start at both positions; otherwise the reader searches for the first block."""
