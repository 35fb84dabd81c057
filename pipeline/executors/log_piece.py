"""Names the piece of a log that a log cell has."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sources.xlog.stream.segment import ByteRange

CELLS_PER_TASK = 1 << 32
"""The ordinal of a cell is the task's number times this, plus the cell's index in the task, which is always lower."""


@dataclass(frozen=True)
class LogPiece:
    """Where the rows of a cell are from: a part of the byte range [`position`, `end`), which has one cell or more."""

    replicaset: str
    source: str
    instance: str | None
    file: str
    segment: int
    """The segment's number in the batch."""
    position: int
    end: int
    ordinal: int
    """Cells in the order of their ordinals are in the order of the log."""
    rows: int
    bytes: int
    """The size of the rows in memory."""
    at_block_starts: bool = True
    """Whether the byte range begins and ends where blocks do (`sources.xlog.stream.segment.ByteRange`)."""

    @staticmethod
    def of(
        byte_range: ByteRange, instance: str | None, ordinal: int, row_count: int, size_bytes: int
    ) -> LogPiece:
        """Return the piece with some rows of a byte range."""
        segment = byte_range.segment
        return LogPiece(
            *(segment.replicaset_uuid, segment.source, instance, segment.file, segment.number),
            *(byte_range.begin, byte_range.end, ordinal, row_count, size_bytes),
            at_block_starts=byte_range.at_block_starts,
        )

    def encoded(self) -> str:
        """Return the piece as a JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def decoded(text: str) -> LogPiece:
        """Return the piece that a JSON text names."""
        return LogPiece(**json.loads(text))
