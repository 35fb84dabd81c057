"""Damage of a log file: its kinds, their errors, and what each `mode` does about it.

The mode FAILFAST raises an error. The *lenient* modes DROPMALFORMED and PERMISSIVE leave the damaged part out, and
count it by error class, so nothing is skipped silently.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from schemas.errors import (
    TransactionLimitError,
    XlogChecksumError,
    XlogCompressionError,
    XlogError,
    XlogHeaderError,
    XlogMagicError,
    XlogRowError,
    XlogTruncatedError,
)

MAX_ERRORS = 100
"""How many errors `SkippedDamage` keeps."""

LIMIT_ADVICE = (
    "if such a large transaction is meant, raise the option maxBlockBytes of the source; "
    "in the configuration of a deployment, of the daemon and of the relay it is max_block_bytes"
)


class WalkStatus(IntEnum):
    """Why a walk over a file's bytes stopped. Negative values mean damage."""

    GROUP = 0  # the walk reached its end
    PART = 1  # the bytes end inside a block: more must be read
    EOF = 2  # the end marker
    ZEROS = 3  # allocated, not written
    MAGIC = -1
    LENGTH = -2
    CHECKSUM_FIELD = -3
    PADDING = -4
    TOO_LONG = -5
    CHECKSUM = -6
    FRAME = -7
    TOO_BIG = -8
    ROW_HEADER = -9
    ROW_BODY = -10
    ROW_RANGE = -11
    AFTER_EOF = -12
    TRUNCATED = -13
    FALSE_STARTS = -14


_DAMAGE: dict[WalkStatus, tuple[type[XlogError], str, str | None]] = {
    WalkStatus.MAGIC: (XlogMagicError, "no block starts here", None),
    WalkStatus.AFTER_EOF: (XlogMagicError, "bytes follow the end marker", None),
    WalkStatus.LENGTH: (XlogHeaderError, "the block's length is not a MessagePack number", None),
    WalkStatus.CHECKSUM_FIELD: (XlogHeaderError, "a checksum field is not a MessagePack number", None),
    WalkStatus.PADDING: (XlogHeaderError, "the padding does not fill the block's header", None),
    WalkStatus.TOO_LONG: (XlogHeaderError, "the block is longer than the limit", LIMIT_ADVICE),
    WalkStatus.CHECKSUM: (XlogChecksumError, "the block's checksum does not match its bytes", None),
    WalkStatus.FRAME: (XlogCompressionError, "the block is not one whole zstd frame", None),
    WalkStatus.TOO_BIG: (
        XlogCompressionError,
        "the block grows beyond the limit when decompressed",
        LIMIT_ADVICE,
    ),
    WalkStatus.ROW_HEADER: (XlogRowError, "a row's header is not a MessagePack map of an xrow", None),
    WalkStatus.ROW_BODY: (XlogRowError, "a row's body is not MessagePack of its type", None),
    WalkStatus.ROW_RANGE: (XlogRowError, "a number of a row is out of its range", None),
    WalkStatus.FALSE_STARTS: (
        XlogMagicError,
        "false starts of blocks claim more bytes than a search can prove wrong",
        "bring an undamaged copy of the file",
    ),
    WalkStatus.TRUNCATED: (XlogTruncatedError, "the file ends inside a block", None),
}


def damage_error(
    status: WalkStatus, file: str, offset: int, row: int | None = None, *, is_last: bool = False
) -> XlogError:
    """Return the error for a negative status.

    Args:
        status: The kind of damage.
        file, offset: The file's name, and the position of the damaged block in it, in bytes.
        row: The number of the damaged row in its block.
        is_last: Whether the rows after it in the block cannot be found, because its end is unknown.
    """
    kind, reason, advice = _DAMAGE[status]
    reason += ", and its end is unknown: the rows after it in the block cannot be read" if is_last else ""
    return kind(reason, file=file, offset=offset, row=row, advice=advice)


def transaction_limit_error(limit: int, **where: object) -> TransactionLimitError:
    """Return the error for a transaction longer than `limit` bytes, which is not written: no reader would accept it."""
    return TransactionLimitError(
        f"a transaction of more than {limit} bytes; it is neither written nor acknowledged",
        **where,
        limit=limit,
        advice="raise max_block_bytes for the daemon, the relay and the job, then start them again",
    )


class Mode(StrEnum):
    """Spark's modes for malformed records: raise an error, leave them out, or return them as corrupt records."""

    FAILFAST = "FAILFAST"
    DROPMALFORMED = "DROPMALFORMED"
    PERMISSIVE = "PERMISSIVE"


@dataclass
class SkippedDamage:
    """Counts what a lenient mode leaves out; a caller of a reader passes an object, and reads it afterwards."""

    damaged_parts: int = 0
    """Number of damaged parts of the file."""
    bytes: int = 0
    """Number of bytes that were left out: bytes of the file, but decompressed bytes for a single bad row."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Number of damaged parts by the name of the error class."""
    errors: list[XlogError] = field(default_factory=list)
    """The first `MAX_ERRORS` errors."""

    def add(self, error: XlogError, size: int) -> None:
        """Count one damaged part of `size` bytes."""
        self.damaged_parts += 1
        self.bytes += size
        self.reasons[type(error).__name__] += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)


def raise_or_count(error: XlogError, size: int, mode: Mode, skipped: SkippedDamage) -> XlogError:
    """Raise the error in mode FAILFAST, otherwise count it and return it."""
    if mode is Mode.FAILFAST:
        raise error
    skipped.add(error, size)
    return error
